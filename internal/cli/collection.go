package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// A collection describes one kind of resources, for the commands that all kinds have in common.
type collection struct {
	name    string // collection ID in URLs and in responses, such as datasets
	noun    string
	columns []column // columns of the table that the list command prints
	details []column // fields that the get command shows
}

func (k collection) listCommand() *cobra.Command {
	var filter, orderBy string
	c := asOfFlag(&cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List " + k.noun + "s",
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			query := asOf(c, nil)
			if filter != "" {
				query.Set("filter", filter)
			}
			if orderBy != "" {
				query.Set("orderBy", orderBy)
			}
			if deleted, err := c.Flags().GetBool("show-deleted"); err == nil && deleted {
				query.Set("showDeleted", "true")
			}
			items, err := client.list(c.Context(), client.path(k.name), k.name, query)
			if err != nil {
				return err
			}
			return printItems(c, k.emptyList(c), items, withStatus(withQueue(k.columns, items), items)...)
		}})
	c.Flags().StringVar(&filter, "filter", "", "AIP-160 filter, such as '"+k.filterExample()+"'")
	c.Flags().StringVar(&orderBy, "order-by", "", "fields to sort by, such as 'createTime desc'")
	return c
}

// withStatus returns columns and, if an item has a status message, a column for it: the message
// states why the resource failed, or what it waits for.
func withStatus(columns []column, items []map[string]any) []column {
	hasMessage := func(item map[string]any) bool { return cell(item, statusMessage) != cell(nil, statusMessage) }
	if !slices.ContainsFunc(items, hasMessage) {
		return columns
	}
	return append(slices.Clip(columns), column{"STATUS", statusMessage})
}

// filterExample returns an example of --filter for the help of the list command.
func (k collection) filterExample() string {
	if strings.HasSuffix(k.name, "Jobs") {
		return "state = JOB_STATE_COMPLETED"
	}
	switch k.name {
	case evaluators.name:
		return "state = ACTIVE"
	case shapes.name:
		return "acceleratorType = VENDOR_A_H100_80GB"
	case deployedModels.name:
		return "state = DEPLOYED"
	case apiKeys.name:
		return "role = inference"
	case subscriptions.name:
		return "state = DISABLED"
	case secrets.name:
		return `keyName = "HOME*"`
	}
	return "state = READY"
}

// emptyList returns what the list command prints for an empty list: which command creates a
// resource.
func (k collection) emptyList(list *cobra.Command) noRows {
	for _, c := range list.Parent().Commands() {
		if c.Name() == "create" || c.Name() == "load" {
			return noRows{"no " + k.noun + "s", "`" + c.CommandPath() + " --help` shows how to " + c.Name() + " one"}
		}
	}
	return noRows{"no " + k.noun + "s", ""}
}

func (k collection) getCommand() *cobra.Command {
	return asOfFlag(&cobra.Command{Use: "get ID", Short: "Show " + withArticle(k.noun), Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			var item map[string]any
			if err := client.call(c.Context(), http.MethodGet, "/v1/"+client.name(k.name, args[0]), asOf(c, nil), nil,
				&item); err != nil {
				return err
			}
			return printItem(c, item, k.details...)
		}})
}

func (k collection) deleteCommand() *cobra.Command {
	return &cobra.Command{Use: "delete ID", Short: "Delete " + withArticle(k.noun), Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			query := url.Values{}
			for _, flag := range []string{"hard", "ignore-checks"} {
				if on, err := c.Flags().GetBool(flag); err == nil && on {
					query.Set(fieldName(flag), "true")
				}
			}
			if err := client.call(c.Context(), http.MethodDelete, "/v1/"+client.name(k.name, args[0]), query, nil,
				nil); err != nil {
				return err
			}
			return printDone(c, k.noun, args[0], "deleted")
		}}
}

func withArticle(noun string) string {
	if strings.ContainsRune("aeiou", rune(noun[0])) {
		return "an " + noun
	}
	return "a " + noun
}

// verbCommand returns a command that calls the custom method {name}:{verb}, without a body, and
// then prints done.
func (k collection) verbCommand(verb, short, done string) *cobra.Command {
	return &cobra.Command{Use: verb + " ID", Short: short, Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			path := "/v1/" + client.name(k.name, args[0]) + ":" + verb
			if err := client.call(c.Context(), http.MethodPost, path, nil, struct{}{}, nil); err != nil {
				return err
			}
			return printDone(c, k.noun, args[0], done)
		}}
}

// watchedVerb returns a verbCommand with the flag --watch. If the flag is given, the command calls
// watch instead of printing done. usage is the help of the flag.
func (k collection) watchedVerb(verb, short, done, usage string,
	watch func(c *cobra.Command, client *client, name string) error) *cobra.Command {
	var on bool
	c := k.verbCommand(verb, short, done)
	c.Flags().BoolVarP(&on, "watch", "w", false, usage)
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if !on {
			return run(c, args)
		}
		client, err := newClient(c)
		if err != nil {
			return err
		}
		name := client.name(k.name, args[0])
		if err := client.call(c.Context(), http.MethodPost, "/v1/"+name+":"+verb, nil, struct{}{}, nil); err != nil {
			return err
		}
		return watch(c, client, name)
	}
	return c
}

// printDone prints the noun and the ID of a resource, and what was done to it, such as "model m
// exported". With -o json it prints an empty object.
func printDone(c *cobra.Command, noun, name, done string) error {
	inJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	if inJSON {
		return printJSON(c.OutOrStdout(), struct{}{})
	}
	note(c, "%s %s %s", noun, id(name), done)
	return nil
}

// maxInput is the maximum size of a file or of standard input that a command reads into memory, in
// bytes.
const maxInput = 1 << 20

// readInput returns the content of a file, or of standard input if path is "-".
func readInput(c *cobra.Command, path string) ([]byte, error) {
	in := c.InOrStdin()
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, maxInput+1))
	if err == nil && len(text) > maxInput {
		err = fmt.Errorf("%s exceeds the maximum size of %d bytes", inputName(path), maxInput)
	}
	return text, err
}

// inputName returns how messages name an input path: "standard input" for "-", otherwise the path.
func inputName(path string) string {
	if path == "-" {
		return "standard input"
	}
	return path
}
