package cli

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"anneal/api/request"
	"anneal/internal/datadir"
	"anneal/internal/usage"
)

// Environment variables that select the server and the API key. They take precedence over a context
// file.
const (
	contextVariable = "ANNEAL_CONTEXT" // path of a context file
	keyVariable     = "ANNEAL_API_KEY"
	urlVariable     = "ANNEAL_URL"
)

// defaultURL is the default address of `anneal serve`.
const defaultURL = "http://127.0.0.1:8080"

// contextPath returns the path of the context file: --context, $ANNEAL_CONTEXT, the file of a
// server in the working directory, or the one in the user's configuration directory.
func contextPath(c *cobra.Command) string {
	if path, _ := c.Flags().GetString("context"); path != "" {
		return path
	}
	if path := os.Getenv(contextVariable); path != "" {
		return path
	}
	if _, err := os.Stat(datadir.LocalContext); err == nil {
		return datadir.LocalContext
	}
	return cmp.Or(datadir.UserContext(), datadir.LocalContext)
}

// dataFlag adds the flag --data to a command of the operator.
func dataFlag(f *pflag.FlagSet) {
	f.String("data", "", "data directory of the server (default: the directory of the context file)")
}

// operatorDir returns the data directory that --data names or, without --data, the directory of the
// context file.
func operatorDir(c *cobra.Command) datadir.Dir {
	if dir, err := c.Flags().GetString("data"); err == nil && dir != "" {
		return datadir.Dir(dir)
	}
	return datadir.Dir(filepath.Dir(contextPath(c)))
}

// newClient returns a client for the server and the account that the command line selects.
func newClient(c *cobra.Command) (*client, error) {
	file, _, err := selectContext(c)
	if err != nil {
		return nil, err
	}
	return clientOf(c, file)
}

// selectContext returns the server and the API key for a command, and their source for messages: a
// context file or a variable. The flag --context comes first, then $ANNEAL_API_KEY with
// $ANNEAL_URL, then a context file. With $ANNEAL_API_KEY, the server is $ANNEAL_URL, else the one
// in the context file, else defaultURL; the certificates in the context file are used only for the
// server in it.
func selectContext(c *cobra.Command) (selected datadir.Context, source string, err error) {
	path := contextPath(c)
	key, address := os.Getenv(keyVariable), os.Getenv(urlVariable)
	if c.Flags().Changed("context") || key == "" && address == "" {
		selected, err = datadir.ReadContext(path)
		if err == nil {
			selected.Account, err = accountOf(selected, path)
		}
		return selected, path, err
	}
	if key == "" { // the API key of a context file must not be sent to the server of the variable
		return selected, "", usage.Errorf("%s is set without %s: set both, or unset %s and log in with `anneal login`",
			urlVariable, keyVariable, urlVariable)
	}
	if address != "" {
		if address, err = serverURL(address); err != nil {
			return selected, "", fmt.Errorf("%s: %w", urlVariable, err)
		}
	}
	file, err := datadir.ReadContext(path)
	if err != nil || address != "" && address != file.Address {
		file = datadir.Context{Address: cmp.Or(address, file.Address, defaultURL)}
	}
	selected = datadir.Context{Address: file.Address, APIKey: key, CAFile: file.CAFile, CertFile: file.CertFile,
		KeyFile: file.KeyFile}
	selected.Account, err = accountOf(selected, keyVariable)
	return selected, keyVariable, err
}

// accountOf returns the account in a context or, if the context has none, the account in its API
// key. source names the file or variable with the key, for messages.
func accountOf(file datadir.Context, source string) (string, error) {
	if file.Account != "" || file.Login != nil {
		return file.Account, nil
	}
	name, ok := request.KeyName(file.APIKey)
	if !ok {
		return "", fmt.Errorf("the API key in %s was mistyped or cut off: a key is ank_ACCOUNT_KEYID_ followed by 72 "+
			"hexadecimal digits; copy the whole key again", source)
	}
	return name.Account(), nil
}

// newOperator returns a client with the operator's API key. The key is in the server's data
// directory.
func newOperator(c *cobra.Command) (*client, error) {
	if err := checkOperator(operatorDir(c)); err != nil {
		return nil, err
	}
	file, err := datadir.ReadContext(operatorDir(c).Path("operator.json"))
	if err != nil {
		return nil, err
	}
	return clientOf(c, file)
}

// checkOperator returns an error unless the data directory contains the operator's context file.
func checkOperator(dir datadir.Dir) error {
	if _, err := os.Stat(dir.Path("operator.json")); err != nil {
		return fmt.Errorf("only the operator can run this command: run it on the server's machine with --data DIR "+
			"(cannot read %s)",
			dir.Path("operator.json"))
	}
	return nil
}

// clientOf returns a client for the server in a context, which prints warnings of responses on the
// command's standard error.
func clientOf(c *cobra.Command, file datadir.Context) (*client, error) {
	ca, _ := c.Flags().GetString("ca")
	made := &client{Context: file, warn: func(text string) { warn(c, "%s", text) }, seen: positionsOf(c)}
	return made, made.configureTLS(ca)
}

// warn prints a warning on the command's standard error.
func warn(c *cobra.Command, format string, args ...any) {
	fmt.Fprintf(c.ErrOrStderr(), "anneal: warning: "+format+"\n", args...)
}
