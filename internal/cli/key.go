package cli

import (
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

var apiKeys = collection{"apiKeys", "key",
	[]column{{"ID", "#name"}, {"ROLE", "role"}, {"PREFIX", "prefix"}, {"EXPIRES", "expireTime"},
		{"LAST USED", "lastUsedTime"}, {"CREATED", "createTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"Email", "email"}, {"Role", "role"},
		{"Priority", "priority"}, {"Key", "key"},
		{"Prefix", "prefix"}, {"Expires", "expireTime"}, {"Last used", "lastUsedTime"}, {"Created", "createTime"}}}

func keyCommand() *cobra.Command {
	return group("key", "Manage API keys", keyCreate(), apiKeys.listCommand(), apiKeys.deleteCommand())
}

// setExpiry sets the field expireTime of a body if --expire is given, to now plus lifetime. It
// returns a usage error for less than a second, because the API reads 0 as unlimited.
func setExpiry(c *cobra.Command, lifetime time.Duration, body map[string]any) error {
	if !c.Flags().Changed("expire") {
		return nil
	}
	if lifetime < time.Second {
		return usage.Errorf("--expire %s must be at least 1s, such as 720h; leave the flag out for an unlimited "+
			"lifetime", lifetime)
	}
	body["expireTime"] = time.Now().Add(lifetime).UTC().Format(time.RFC3339)
	return nil
}

func keyCreate() *cobra.Command {
	var role, priority, displayName, email string
	var expire time.Duration
	c := &cobra.Command{Use: "create [ID]", Short: "Create a key, which is only shown once", Args: arguments(0, 1),
		Example: "  anneal key create reader --role inference --expire 720h",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			key := map[string]any{"role": role, "displayName": displayName}
			if priority != "" {
				key["priority"] = priority
			}
			if email != "" {
				key["email"] = email
			}
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
	c.Flags().StringVar(&role, "role", "user", "role: admin, user, inference or reader")
	c.Flags().StringVar(&priority, "priority", "",
		"priority of the key's inference requests: interactive or batch (default: interactive)")
	c.Flags().StringVar(&displayName, "display-name", "", "display name")
	c.Flags().StringVar(&email, "email", "",
		"email address of the holder, shown as createdBy of what the key creates (default: the account's)")
	c.Flags().DurationVar(&expire, "expire", 0, "lifetime, such as 720h (default: unlimited)")
	return c
}
