package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

var secrets = collection{"secrets", "secret",
	[]column{{"ID", "#name"}, {"KEY NAME", "keyName"}},
	[]column{{"Name", "name"}, {"Key name", "keyName"}}}

func secretCommand() *cobra.Command {
	return group("secret", "Manage secrets, whose values are never shown", secretWrite("create", "Store a secret"),
		secretWrite("update", "Replace a secret's value"), secrets.listCommand(), secrets.getCommand(),
		secrets.deleteCommand())
}

// secretWrite returns the command that creates a secret or updates it. The command reads the value
// from standard input or a file, because other users of the machine can see command lines.
func secretWrite(verb, short string) *cobra.Command {
	var keyName, file string
	c := &cobra.Command{Use: verb + " ID", Short: short, Args: arguments(1, 1),
		Example: "  printf %s \"$TOKEN\" | anneal secret " + verb + " tracker" +
			map[string]string{"create": " --key-name TRACKER_KEY"}[verb],
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
	c.Flags().StringVar(&keyName, "key-name", "", "environment variable in which evaluators get the value")
	c.Flags().StringVar(&file, "value-file", "", "file that contains the value (default: standard input)")
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
