package cli

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"anneal/internal/datadir"
)

// contextPath returns the context file that a command line selects.
func contextPath(c *cobra.Command) string {
	if path, _ := c.Flags().GetString("context"); path != "" {
		return path
	}
	if path := os.Getenv("ANNEAL_CONTEXT"); path != "" {
		return path
	}
	if _, err := os.Stat(datadir.LocalContext); err == nil {
		return datadir.LocalContext
	}
	return cmp.Or(datadir.UserContext(), datadir.LocalContext)
}

// dataFlag adds --data to a command of the operator.
func dataFlag(f *pflag.FlagSet) {
	f.String("data", "", "data directory of the server (default: the directory of the context file)")
}

// operatorDir returns the data directory that an operator's command selects.
func operatorDir(c *cobra.Command) datadir.Dir {
	if dir, err := c.Flags().GetString("data"); err == nil && dir != "" {
		return datadir.Dir(dir)
	}
	return datadir.Dir(filepath.Dir(contextPath(c)))
}

// newClient returns a client with the context file that a command line selects.
func newClient(c *cobra.Command) (*client, error) {
	file, err := datadir.ReadContext(contextPath(c))
	if err != nil {
		return nil, err
	}
	return clientOf(c, file)
}

// newOperator returns a client with the operator's key, which is only on the server's machine.
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

// checkOperator returns an error unless the operator's context file is in a data directory.
func checkOperator(dir datadir.Dir) error {
	if _, err := os.Stat(dir.Path("operator.json")); err != nil {
		return fmt.Errorf("only the operator can run this command: run it on the server's machine with --data DIR (no %s here)",
			dir.Path("operator.json"))
	}
	return nil
}

// clientOf returns a client that prints the server's warnings to the command's standard error.
func clientOf(c *cobra.Command, file datadir.Context) (*client, error) {
	ca, _ := c.Flags().GetString("ca")
	made := &client{Context: file, warn: func(text string) { fmt.Fprintln(c.ErrOrStderr(), "anneal: warning:", text) }}
	return made, made.configureTLS(ca)
}
