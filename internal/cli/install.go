package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"anneal/internal/install"
	"anneal/internal/usage"
)

func installCommand() *cobra.Command {
	var root string
	var dryRun bool
	c := &cobra.Command{Use: "install SERVICE", Short: "Write the systemd unit of a server or an agent, and its settings",
		Args:    arguments(1, 1),
		Example: "  anneal install server --dry-run\n  anneal install agent",
		Long: `SERVICE is server or agent. The command copies this program to /usr/local/bin, and writes a hardened unit, the
user anneal (for systemd-sysusers), settings in /etc/anneal, manual pages and shell completions. It replaces
these files, but not existing settings. It does not start the service, and prints the commands that start it.`,
		RunE: func(c *cobra.Command, args []string) error {
			files, err := installedFiles(c, args[0], dryRun)
			if err != nil {
				return err
			}
			if dryRun {
				return printInstallation(c, files)
			}
			written := []string{}
			for _, file := range files {
				done, err := file.Write(root)
				if err != nil {
					return asRoot(err)
				}
				if done {
					written = append(written, file.Path)
				}
			}
			next := nextOf(args[0])
			note(c, "wrote %d files; edit /etc/anneal/%s.yaml, and then run:", len(written), args[0])
			for _, line := range next {
				note(c, "  %s", line)
			}
			return jsonOnly(c, map[string]any{"written": written, "next": next})
		}}
	c.Flags().StringVar(&root, "root", "/", "directory below which the files are written, such as the root of an image")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only print the files")
	return c
}

func uninstallCommand() *cobra.Command {
	var root string
	c := &cobra.Command{Use: "uninstall SERVICE",
		Short:   "Remove the files that 'anneal install' wrote, but not data and settings",
		Args:    arguments(1, 1),
		Example: "  anneal uninstall server",
		Long: `SERVICE is server or agent. Stop the service first. The program and the manual pages remain as long as the
other service is installed. Data, settings and the system user always remain: the command prints where.`,
		RunE: func(c *cobra.Command, args []string) error {
			files, err := installedFiles(c, args[0], true)
			if err != nil {
				return err
			}
			if slices.ContainsFunc(services, func(other string) bool {
				_, err := os.Stat(path.Join(root, install.Files(other)[0].Path))
				return other != args[0] && err == nil
			}) {
				files = files[:1] // the other service needs all files but the unit
			}
			removed := []string{}
			for _, file := range files {
				done, err := file.Remove(root)
				if err != nil {
					return asRoot(err)
				}
				if done {
					removed = append(removed, file.Path)
				}
			}
			remains := []string{install.StateDir(args[0]), "/etc/anneal", "user anneal"}
			note(c, "removed %d files; run 'systemctl daemon-reload'", len(removed))
			note(c, "these remain: %s (data and keys), %s (settings) and the %s", remains[0], remains[1], remains[2])
			return jsonOnly(c, map[string]any{"removed": removed, "remains": remains})
		}}
	c.Flags().StringVar(&root, "root", "/", "directory below which the files were written")
	return c
}

// asRoot adds a hint to an error if the user may not write the files.
func asRoot(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return withHint(err, "run the command as root, or with --root DIR")
	}
	return err
}

var services = []string{install.Server, install.Agent}

// nextOf returns the commands that start an installed service.
func nextOf(service string) []string {
	return []string{"systemd-sysusers", "systemctl daemon-reload", "systemctl enable " + install.Unit(service),
		"systemctl start " + install.Unit(service)}
}

// installedFiles returns the files of a service, the unit first. withoutProgram leaves the content of
// the program nil.
func installedFiles(c *cobra.Command, service string, withoutProgram bool) ([]install.File, error) {
	if !slices.Contains(services, service) {
		return nil, usage.Errorf("SERVICE %q must be server or agent", service)
	}
	files := install.Files(service)
	program := install.File{Path: install.Program, Mode: 0o755}
	if !withoutProgram {
		this, err := os.Executable()
		if err == nil {
			program.Content, err = os.ReadFile(this)
		}
		if err != nil {
			return nil, fmt.Errorf("read this program: %w", err)
		}
	}
	files = append(files, program)
	pages, err := manPages(c.Root())
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		files = append(files, install.File{Path: install.ManDir + "/" + page.name, Mode: 0o644, Content: page.content})
	}
	var bash, zsh, fish bytes.Buffer
	if err := errors.Join(c.Root().GenBashCompletionV2(&bash, true), c.Root().GenZshCompletion(&zsh),
		c.Root().GenFishCompletion(&fish, true)); err != nil {
		return nil, err
	}
	return append(files,
		install.File{Path: "/usr/local/share/bash-completion/completions/anneal", Mode: 0o644, Content: bash.Bytes()},
		install.File{Path: "/usr/local/share/zsh/site-functions/_anneal", Mode: 0o644, Content: zsh.Bytes()},
		install.File{Path: "/usr/local/share/fish/vendor_completions.d/anneal.fish", Mode: 0o644,
			Content: fish.Bytes()}), nil
}

// printInstallation prints the files of a service: the content of its unit and settings, and the
// paths of the others.
func printInstallation(c *cobra.Command, files []install.File) error {
	inJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	if inJSON {
		paths := []string{}
		for _, file := range files {
			paths = append(paths, file.Path)
		}
		return printJSON(c.OutOrStdout(), map[string]any{"files": paths})
	}
	out, pages := c.OutOrStdout(), 0
	for _, file := range files {
		switch {
		case strings.HasPrefix(file.Path, "/etc/"): // the unit, its user and its settings
			fmt.Fprintf(out, "# %s\n%s\n", file.Path, file.Content)
		case path.Dir(file.Path) == install.ManDir:
			pages++
		default:
			fmt.Fprintf(out, "# %s\n", file.Path)
		}
	}
	fmt.Fprintf(out, "# %s: %d pages\n", install.ManDir, pages)
	return nil
}
