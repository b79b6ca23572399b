package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// A collection is what the list, get and delete commands of a kind share.
type collection struct {
	name    string // in URLs and in list answers
	noun    string
	columns []column // of the list
	details []column // of get
}

func (k collection) listCommand() *cobra.Command {
	var filter, orderBy string
	c := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List " + k.noun + "s", Args: arguments(0, 0), RunE: func(c *cobra.Command, _ []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		query := url.Values{}
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
		return printItems(c, items, k.columns...)
	}}
	c.Flags().StringVar(&filter, "filter", "", "which ones, such as '"+k.filterExample()+"' (AIP-160)")
	c.Flags().StringVar(&orderBy, "order-by", "", "fields to sort by, such as 'createTime desc'")
	return c
}

// filterExample is a filter that fits the kind.
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
	case secrets.name:
		return `keyName = "HOME*"`
	}
	return "state = READY"
}

func (k collection) getCommand() *cobra.Command {
	return &cobra.Command{Use: "get ID", Short: "Show one " + k.noun, Args: arguments(1, 1), RunE: func(c *cobra.Command, args []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		var item map[string]any
		if err := client.call(c.Context(), http.MethodGet, "/v1/"+client.name(k.name, args[0]), nil, nil, &item); err != nil {
			return err
		}
		return printItem(c, item, k.details...)
	}}
}

func (k collection) deleteCommand() *cobra.Command {
	return &cobra.Command{Use: "delete ID", Short: "Delete " + withArticle(k.noun), Args: arguments(1, 1), RunE: func(c *cobra.Command, args []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		query := url.Values{}
		for _, flag := range []string{"hard", "ignore-checks"} {
			if on, err := c.Flags().GetBool(flag); err == nil && on {
				query.Set(map[string]string{"hard": "hard", "ignore-checks": "ignoreChecks"}[flag], "true")
			}
		}
		if err := client.call(c.Context(), http.MethodDelete, "/v1/"+client.name(k.name, args[0]), query, nil, nil); err != nil {
			return err
		}
		return done(c, k.noun, args[0], "deleted")
	}}
}

func withArticle(noun string) string {
	if strings.ContainsRune("aeiou", rune(noun[0])) {
		return "an " + noun
	}
	return "a " + noun
}

// verbCommand posts a custom verb without a body: {name}:{verb}.
func (k collection) verbCommand(verb, short, past string) *cobra.Command {
	return &cobra.Command{Use: verb + " ID", Short: short, Args: arguments(1, 1), RunE: func(c *cobra.Command, args []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		if err := client.call(c.Context(), http.MethodPost, "/v1/"+client.name(k.name, args[0])+":"+verb, nil, struct{}{}, nil); err != nil {
			return err
		}
		return done(c, k.noun, args[0], past)
	}}
}

// done tells that something was carried out.
func done(c *cobra.Command, noun, what, past string) error {
	inJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	if inJSON {
		return printJSON(c.OutOrStdout(), struct{}{})
	}
	note(c, "%s %s %s", noun, id(what), past)
	return nil
}

// mostInput is how much of a file or of standard input is read, in bytes.
const mostInput = 1 << 20

// readInput reads a file whole, or standard input where the path is "-".
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
	text, err := io.ReadAll(io.LimitReader(in, mostInput+1))
	if err == nil && len(text) > mostInput {
		err = fmt.Errorf("%s has more than %d bytes, which are the most that are sent", called(path), mostInput)
	}
	return text, err
}

// called is a path in messages.
func called(path string) string {
	if path == "-" {
		return "standard input"
	}
	return path
}
