package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"anneal/internal/install"
)

func manCommand() *cobra.Command {
	return &cobra.Command{Use: "man DIR", Short: "Write the manual pages of all commands to a directory",
		Args:    arguments(1, 1),
		Example: "  anneal man ~/.local/share/man/man1",
		Long: `DIR is created if necessary. There is one page for each command, in section 1, such as
anneal-dataset-create.1. $SOURCE_DATE_EPOCH sets the date of the pages.`,
		RunE: func(c *cobra.Command, args []string) error {
			pages, err := manPages(c.Root())
			if err != nil {
				return err
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil { // with the umask of the user
				return err
			}
			for _, page := range pages { // replaces the pages of an earlier version
				file := install.File{Path: page.name, Mode: 0o644, Content: page.content}
				if _, err := file.Write(args[0]); err != nil {
					return err
				}
			}
			note(c, "wrote %d pages to %s; read them with 'man -l %s'", len(pages), args[0],
				filepath.Join(args[0], "anneal.1"))
			return jsonOnly(c, map[string]any{"dir": args[0], "pages": len(pages)})
		}}
}

// A manPage is one page of the manual.
type manPage struct {
	name    string
	content []byte
}

// manPages returns the manual pages of a command and of its subcommands, except hidden ones.
func manPages(c *cobra.Command) (pages []manPage, err error) {
	var page bytes.Buffer
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	header := doc.GenManHeader{Title: strings.ToUpper(name), Section: "1", Source: "anneal " + c.Root().Version,
		Manual: "anneal"}
	c.DisableAutoGenTag = true
	if err := doc.GenMan(c, &header, &page); err != nil {
		return nil, fmt.Errorf("write the manual page of %s: %w", c.CommandPath(), err)
	}
	pages = append(pages, manPage{name + ".1", page.Bytes()})
	for _, child := range c.Commands() {
		if !child.IsAvailableCommand() {
			continue
		}
		below, err := manPages(child)
		if err != nil {
			return nil, err
		}
		pages = append(pages, below...)
	}
	return pages, nil
}
