package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

var secrets = collection{"secrets", "secret",
	[]column{{"ID", "#name"}, {"KEY NAME", "keyName"}},
	[]column{{"Name", "name"}, {"Key name", "keyName"}}}

func secretCommand() *cobra.Command {
	return group("secret", "Credentials of third parties; values are never shown again", secretWrite("create", "Store a secret"),
		secretWrite("update", "Replace a secret's value"), secrets.listCommand(), secrets.getCommand(), secrets.deleteCommand())
}

// secretWrite reads the value from standard input or a file, never from the
// command line, where other users of the machine could see it.
func secretWrite(verb, short string) *cobra.Command {
	var keyName, file string
	c := &cobra.Command{Use: verb + " ID", Short: short, Args: arguments(1, 1),
		Example: "  printf %s \"$TOKEN\" | anneal secret " + verb + " tracker" + map[string]string{"create": " --key-name TRACKER_KEY"}[verb],
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			value, err := readValue(c, file)
			if err != nil {
				return err
			}
			body := map[string]any{"value": value}
			if keyName != "" {
				body["keyName"] = keyName
			}
			method, path := http.MethodPatch, "/v1/"+client.name("secrets", args[0])
			if verb == "create" {
				body["name"] = client.name("secrets", args[0])
				method, path = http.MethodPost, client.path("secrets")
			}
			var item map[string]any
			if err := client.call(c.Context(), method, path, nil, body, &item); err != nil {
				return err
			}
			delete(item, "value")
			return printItem(c, item, secrets.details...)
		}}
	c.Flags().StringVar(&keyName, "key-name", "", "name under which code finds it")
	c.Flags().StringVar(&file, "value-file", "", "file that holds the value (default: standard input)")
	return c
}

func readValue(c *cobra.Command, file string) (string, error) {
	in := c.InOrStdin()
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	} else if f, ok := in.(*os.File); ok && onTerminal(f) {
		fmt.Fprint(c.ErrOrStderr(), "value: ")
		line, err := bufio.NewReader(in).ReadString('\n')
		if err != nil && err != io.EOF {
			return "", err
		}
		in = strings.NewReader(line)
	}
	value, err := io.ReadAll(io.LimitReader(in, 1<<20))
	if err != nil {
		return "", err
	}
	if text := strings.TrimRight(string(value), "\r\n"); text != "" {
		return text, nil
	}
	return "", errors.New("the value is empty: give it on standard input or with --value-file")
}

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
		return usageError{fmt.Errorf("--expire: %s is not ahead: give a second or more, such as 720h, or leave it out for never", after)}
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
