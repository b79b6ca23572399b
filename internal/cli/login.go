package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"anneal/api/request"
	"anneal/internal/datadir"
	"anneal/internal/usage"
)

func loginCommand() *cobra.Command {
	var byOIDC bool
	c := &cobra.Command{Use: "login [URL]", Short: "Store a server and an API key or a login for further commands",
		Args: arguments(0, 1),
		Example: "  anneal login http://127.0.0.1:8080\n  anneal login https://anneal.example.com < key.txt\n" +
			"  anneal login https://anneal.example.com --oidc",
		Long: `Reads an API key from the terminal, or a line of standard input, asks the server whether it accepts the
key, and stores both in a context file that only its owner can read: --context, else $` + contextVariable + `,
else anneal/context.json in the user's configuration directory.

With --oidc it prints a URL and a code instead, with which you log in at the identity provider of the server
in any browser. Further commands renew the login until the provider ends it.

Programs can set $` + keyVariable + ` and $` + urlVariable + ` instead; they replace a context file.`,
		RunE: func(c *cobra.Command, args []string) error {
			path, err := loginPath(c)
			if err != nil {
				return err
			}
			address, err := serverURL(cmp.Or(append(args, os.Getenv(urlVariable), defaultURL)...))
			if err != nil {
				return err
			}
			file := datadir.Context{Address: address}
			if ca, _ := c.Flags().GetString("ca"); ca != "" {
				if file.CAFile, err = filepath.Abs(ca); err != nil {
					return err
				}
			}
			if byOIDC {
				err = logInByDevice(c, &file)
			} else if file.APIKey, err = readKey(c, address); err == nil {
				file.Account, err = accountOf(file, "the input")
			}
			if err != nil {
				return err
			}
			client, err := clientOf(c, file)
			if err != nil {
				return err
			}
			self, err := client.whoAmI(c.Context())
			if err != nil {
				return err
			}
			file.Account = cell(self, "account")
			if err := replaceLogin(path, file); err != nil {
				return err
			}
			warnHidden(c, path)
			self["source"] = path
			if err := printItem(c, self, identityColumns...); err != nil {
				return err
			}
			suggest(c, "model names")
			return nil
		}}
	c.Flags().BoolVar(&byOIDC, "oidc", false, "log in at the identity provider of the server, with a browser")
	return c
}

func logoutCommand() *cobra.Command {
	return &cobra.Command{Use: "logout", Short: "Delete the API key or the login that login stored", Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			path, err := loginPath(c)
			if err != nil {
				return err
			}
			outcome, err := logOut(c, path)
			if err != nil {
				return err
			}
			return printDone(c, "context file", path, outcome)
		}}
}

// logOut deletes the context file at path, and revokes its login at the identity provider. It returns what
// remains valid, for a message.
func logOut(c *cobra.Command, path string) (outcome string, err error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("there is no context file %s: nothing to delete", path)
	}
	release, err := datadir.LockFile(path) // a command that renews the login must not store it again
	if err != nil {
		return "", err
	}
	defer release()
	file, _ := datadir.ReadContext(path)
	if err := os.Remove(path); err != nil {
		return "", err
	}
	_ = os.Remove(path + ".lock")
	if file.Login == nil {
		return "deleted; the API key remains valid until you delete it with `anneal key delete`", nil
	}
	outcome = "deleted"
	if file.Login.RefreshToken != "" {
		client, err := clientOf(c, file)
		if err == nil {
			err = client.revoke(c.Context(), file.Login)
		}
		switch {
		case err == nil:
			outcome = "deleted, and the login revoked"
		case !errors.Is(err, errNoRevocation):
			warn(c, "the login could not be revoked at %s, so copies of the deleted file remain valid: %v",
				file.Login.Issuer, err)
		}
	}
	return outcome + "; to end the session too, log out at " + file.Login.Issuer, nil
}

var identityColumns = []column{{"Server", "address"}, {"Account", "account"}, {"User", "user"}, {"Key", "key"},
	{"Role", "role"}, {"Expires", "expireTime"}, {"Context", "source"}}

func whoamiCommand() *cobra.Command {
	return &cobra.Command{Use: "whoami", Short: "Show the server, the account and the role that commands use",
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			file, source, err := selectContext(c)
			if err != nil {
				return err
			}
			client, err := clientOf(c, file)
			if err != nil {
				return err
			}
			self, err := client.whoAmI(c.Context())
			if err != nil {
				return err
			}
			self["source"] = source
			return printItem(c, self, identityColumns...)
		}}
}

// roleInError matches the role in the API's error for a request that the role does not permit.
var roleInError = regexp.MustCompile(`\brole is ([a-z]+)\b`)

// whoAmI returns the account, the ID and the role of the client's API key. It returns an error if
// the server rejects the key.
func (c *client) whoAmI(ctx context.Context) (map[string]any, error) {
	self := map[string]any{"address": c.Address, "account": c.Account}
	if c.Login != nil {
		return self, c.describeLogin(ctx, self)
	}
	name, ok := request.KeyName(c.APIKey)
	if !ok {
		return nil, errors.New("the API key was mistyped or cut off: copy the whole key again, and log in with " +
			"`anneal login`")
	}
	self["key"] = name.ID()
	var key map[string]any
	err := c.call(ctx, http.MethodGet, "/v1/"+string(name), nil, nil, &key)
	var refused *apiError
	switch {
	case err == nil:
		self["role"] = key["role"]
		if expires, ok := key["expireTime"]; ok {
			self["expireTime"] = expires
		}
	// Only an admin can read API keys, but the error states the key's role.
	case errors.As(err, &refused) && refused.Reason == "ROLE":
		if role := roleInError.FindStringSubmatch(refused.Message); role != nil {
			self["role"] = role[1]
		}
	default:
		return nil, err
	}
	return self, nil
}

// serverURL returns the URL of a server for an address that the user typed. The default scheme is
// https, but http for an address of this machine.
func serverURL(text string) (string, error) {
	text = strings.TrimRight(strings.TrimSpace(text), "/")
	if !strings.Contains(text, "://") {
		host, _, _ := strings.Cut(text, ":")
		scheme := "https://"
		if host == "localhost" || host == "127.0.0.1" {
			scheme = "http://"
		}
		text = scheme + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return "", usage.Errorf("URL %q must be the address of a server, such as https://anneal.example.com", text)
	}
	return text, nil
}

// loginPath returns the context file that login writes. It returns an error if a server has written
// the file, because that file contains more than a login.
func loginPath(c *cobra.Command) (string, error) {
	path, _ := c.Flags().GetString("context")
	path = cmp.Or(path, os.Getenv(contextVariable), datadir.UserContext())
	if path == "" {
		return "", errors.New("this user has no configuration directory: give a file with --context")
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return path, nil
	}
	if err != nil {
		return "", err
	}
	var existing datadir.Context
	if err := json.Unmarshal(data, &existing); err != nil || existing.Address == "" {
		return "", fmt.Errorf("%s exists, but is not a context file: give another file with --context", path)
	}
	if existing.NATSURL != "" {
		return "", fmt.Errorf("%s was written by a server or by `anneal events credentials`: give another file with "+
			"--context", path)
	}
	return path, nil
}

// replaceLogin stores a context file, after commands that renew the login in it.
func replaceLogin(path string, file datadir.Context) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	release, err := datadir.LockFile(path)
	if err != nil {
		return err
	}
	defer release()
	return storeLogin(path, file)
}

func storeLogin(path string, file datadir.Context) error {
	data, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return datadir.WritePrivate(path, append(data, '\n'))
}

// warnHidden prints a warning if the next commands will not use the context file at path.
func warnHidden(c *cobra.Command, path string) {
	if os.Getenv(keyVariable) != "" {
		warn(c, "commands will use the API key in $%s instead of this login: unset the variable", keyVariable)
		return
	}
	if c.Flags().Changed("context") && os.Getenv(contextVariable) != path {
		fmt.Fprintf(c.ErrOrStderr(), "use this login with --context %s or %s=%s\n", path, contextVariable, path)
		return
	}
	if variable := os.Getenv(contextVariable); variable != "" && variable == path {
		fmt.Fprintf(c.ErrOrStderr(), "this login is stored in %s, the value of $%s: commands use it while the "+
			"variable has this value\n", path, contextVariable)
		return
	}
	if used := contextPath(c); used != path {
		warn(c, "commands in this directory will use %s instead of this login: give them --context %s", used, path)
	}
}

// maxKeyLine is the maximum length of an input line with an API key, in bytes.
const maxKeyLine = 4096

// readKey reads an API key from standard input. On a terminal it does not show the typed key.
func readKey(c *cobra.Command, address string) (key string, err error) {
	in := c.InOrStdin()
	if file, ok := in.(*os.File); ok && isTerminal(file) {
		fmt.Fprintf(c.ErrOrStderr(), "API key for %s (not shown): ", address)
		key, err = readHidden(c.Context(), file)
		fmt.Fprintln(c.ErrOrStderr())
	} else {
		key, err = readLine(io.LimitReader(in, maxKeyLine))
	}
	if err != nil {
		return "", err
	}
	if key = strings.TrimSpace(key); key == "" {
		return "", usage.Errorf("an API key is required: type it, or pass it on standard input, such as `anneal " +
			"login URL " +
			"< key.txt`; an admin creates keys with `anneal key create`")
	}
	return key, nil
}

// readLine returns the first line of a reader.
func readLine(r io.Reader) (string, error) {
	line, err := bufio.NewReader(r).ReadString('\n')
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return line, err
}
