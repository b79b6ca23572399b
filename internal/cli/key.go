package cli

import (
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

var apiKeys = collection{"apiKeys", "key",
	[]column{{"ID", "#name"}, {"ROLE", "role"}, {"PREFIX", "prefix"}, {"EXPIRES", "expireTime"}, {"LAST USED", "lastUsedTime"}, {"CREATED", "createTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"Role", "role"}, {"Key", "key"}, {"Prefix", "prefix"}, {"Expires", "expireTime"}, {"Last used", "lastUsedTime"}, {"Created", "createTime"}}}

func keyCommand() *cobra.Command {
	return group("key", "API keys of the account", keyCreate(), apiKeys.listCommand(), apiKeys.deleteCommand())
}

// setExpiry sets a body's expireTime as --expire asks, and leaves it out where
// the flag is not given. A time that is not ahead is refused: left out, it would
// mean for ever.
func setExpiry(c *cobra.Command, after time.Duration, body map[string]any) error {
	if !c.Flags().Changed("expire") {
		return nil
	}
	if after < time.Second {
		return usage.Errorf("--expire: %s is not ahead: give a second or more, such as 720h, or leave it out for never", after)
	}
	body["expireTime"] = time.Now().Add(after).UTC().Format(time.RFC3339)
	return nil
}

func keyCreate() *cobra.Command {
	var role, displayName string
	var expire time.Duration
	c := &cobra.Command{Use: "create [ID]", Short: "Make a key; it is shown this once", Args: arguments(0, 1), Example: "  anneal key create reader --role inference --expire 720h", RunE: func(c *cobra.Command, args []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		key := map[string]any{"role": role, "displayName": displayName}
		if err := setExpiry(c, expire, key); err != nil {
			return err
		}
		body := map[string]any{"apiKey": key}
		if len(args) == 1 {
			body["apiKeyId"] = args[0]
		}
		var item map[string]any
		if err := client.call(c.Context(), http.MethodPost, client.path("apiKeys"), nil, body, &item); err != nil {
			return err
		}
		return printItem(c, item, apiKeys.details...)
	}}
	c.Flags().StringVar(&role, "role", "user", "admin, user, inference or reader")
	c.Flags().StringVar(&displayName, "display-name", "", "a name for people")
	c.Flags().DurationVar(&expire, "expire", 0, "how long it is good for, such as 720h (default: for ever)")
	return c
}
