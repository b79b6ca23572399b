package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"anneal/internal/datadir"
	"anneal/internal/usage"
)

func credentialsCommand() *cobra.Command {
	return group("credentials", "Manage NATS credentials that can only read the account's events and usage records",
		credentialsCreate(), credentialsList(), credentialsRevoke())
}

func credentialsCreate() *cobra.Command {
	var displayName, file string
	var expire time.Duration
	c := &cobra.Command{Use: "create [ID]", Short: "Create credentials, which are only shown once", Args: arguments(0, 1),
		Example: "  anneal events credentials create auditor --expire 720h --file auditor.json",
		Long: `Creates an API key with the role reader. With it, a NATS client reads the streams EVENTS and USAGE of
the account with pull or ordered consumers, and curl follows the events over HTTP. With --file the
credentials are written to a context file, which "anneal events --context FILE" and NATS clients read.`,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			if file != "" {
				if at, err := os.Stat(filepath.Dir(file)); err != nil || !at.IsDir() {
					return usage.Errorf("--file %s: the directory %s does not exist", file, filepath.Dir(file))
				}
			}
			key := map[string]any{"role": "reader", "displayName": displayName}
			if err := setExpiry(c, expire, key); err != nil {
				return err
			}
			body := map[string]any{"apiKey": key}
			if len(args) == 1 {
				body["apiKeyId"] = args[0]
			}
			var item map[string]any
			create := func() error {
				return client.call(c.Context(), http.MethodPost, client.path(apiKeys.name), nil, body, &item)
			}
			if file == "" {
				if err := create(); err != nil {
					return err
				}
				return printItem(c, item, column{"Name", "name"}, column{"NATS URL", "natsUrl"}, column{"NATS user", "natsUser"},
					column{"NATS password", "key"}, column{"Expires", "expireTime"})
			}
			if err := storeSecret(c, file, func() ([]byte, error) {
				if err := create(); err != nil {
					return nil, err
				}
				return readerContext(client, item)
			}); err != nil {
				return err
			}
			return printFiles(c, []string{file})
		}}
	c.Flags().StringVar(&displayName, "display-name", "", "display name")
	c.Flags().DurationVar(&expire, "expire", 0, "lifetime, such as 720h (default: unlimited)")
	c.Flags().StringVar(&file, "file", "",
		"write the credentials to this context file, readable only by its owner, instead of printing them")
	return c
}

// readerContext returns the content of a context file for a reader of events. item is the API key
// that the server has created.
func readerContext(client *client, item map[string]any) ([]byte, error) {
	text := func(field string) string { value, _ := item[field].(string); return value }
	context := datadir.Context{Address: client.Address, Account: client.Account, APIKey: text("key"),
		NATSURL: text("natsUrl"), NATSUser: text("natsUser"), CAFile: client.CAFile}
	if context.NATSUser != "" {
		context.NATSPassword = context.APIKey
	}
	data, err := json.MarshalIndent(context, "", "  ")
	return append(data, '\n'), err
}

func credentialsList() *cobra.Command {
	return &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List credentials", Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			items, err := client.list(c.Context(), client.path(apiKeys.name), apiKeys.name,
				url.Values{"filter": {"role = reader"}})
			if err != nil {
				return err
			}
			return printItems(c, noRows{"no credentials", "create some with `anneal events credentials create`"},
				items, column{"ID", "#name"}, column{"NATS USER", "natsUser"}, column{"EXPIRES", "expireTime"},
				column{"LAST USED", "lastUsedTime"}, column{"CREATED", "createTime"})
		}}
}

func credentialsRevoke() *cobra.Command {
	return &cobra.Command{Use: "revoke ID", Short: "Revoke credentials and close their connections", Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			path := "/v1/" + client.name(apiKeys.name, args[0])
			var item map[string]any
			if err := client.call(c.Context(), http.MethodGet, path, nil, nil, &item); err != nil {
				return err
			}
			if item["role"] != "reader" {
				return fmt.Errorf("API key %q has the role %v, but only keys with the role reader are credentials for events: "+
					"if you want to delete this key, run 'anneal key delete %s'", id(args[0]), item["role"], id(args[0]))
			}
			if err := client.call(c.Context(), http.MethodDelete, path, nil, nil, nil); err != nil {
				return err
			}
			return printDone(c, "credentials", args[0], "revoked")
		}}
}
