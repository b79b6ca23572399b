package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"anneal/internal/server"
)

func serveCommand() *cobra.Command {
	var flags server.Flags
	var logs *logFlags
	c := &cobra.Command{Use: "serve", Short: "Run the control plane, with a local worker", Args: arguments(0, 0),
		Example: "  anneal serve --data data --listen 127.0.0.1:8080",
		Long: `Serves the management and the inference API on one address. The first start creates the account
"default" with an admin key and writes DATA/context.json, which the other commands read.

With --nats-url the log is stored in an existing NATS cluster instead of the embedded server. The
servers of the cluster need the accounts of compose/nats.conf, and the environment variables
ANNEAL_NATS_PASSWORD, ANNEAL_NATS_READER_PASSWORD and ANNEAL_NATS_ISSUER_SEED must be set.`,
		RunE: func(c *cobra.Command, _ []string) error {
			flags.Node.Version = c.Root().Version
			running, err := server.Start(c.Context(), flags, logs.logger(c.Context()))
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "anneal is ready at %s (context: %s)\n", running.Context().Address,
				running.Dir().Path("context.json"))
			return running.Wait(c.Context())
		}}
	flags.Add(c.Flags())
	logs = configure(c, func() error { return flags.Check() })
	c.Flags().SetOutput(stderr) // print warnings about deprecated flags to stderr
	return c
}
