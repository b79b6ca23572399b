package cli

import (
	"cmp"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"anneal/internal/certs"
	"anneal/internal/datadir"
	"anneal/internal/node"
	"anneal/internal/telemetry"
	"anneal/internal/usage"
	"anneal/tracing"
)

func workCommand() *cobra.Command {
	var join, tokenFile, dir, natsCA, natsCert, natsKey string
	var traces telemetry.Flags
	flags := node.Flags{Metrics: &node.MetricsFlags{}}
	var logs *logFlags
	c := &cobra.Command{Use: "work --join URL [--token-file FILE]", Short: "Run the agent of a node that joins a server",
		Args:    arguments(0, 0),
		Example: "  anneal work --join nats://SERVER:4222 --token-file node.token",
		Long: `At its first start the agent generates its own key, node.nkey in its directory, and enrolls with the
token. From then on it authenticates by the key alone: the token may expire, and no other agent can
use the node's name. If the key is lost or stolen, revoke the node and join with a new token.`,
		RunE: func(c *cobra.Command, _ []string) error {
			token, tokenNode := "", ""
			if tokenFile != "" {
				var err error
				if token, tokenNode, err = datadir.ReadJoinToken(tokenFile); err != nil {
					return err
				}
			}
			flags.ID, flags.Version = cmp.Or(flags.ID, tokenNode), c.Root().Version
			pair, err := certs.Open("--nats-cert", natsCert, "--nats-key", natsKey)
			if err != nil {
				return err
			}
			ca, _ := c.Flags().GetString("ca")
			config, err := certs.ClientConfig(pair, natsCA, ca)
			if err != nil {
				return err
			}
			var options []nats.Option
			if pair != nil || natsCA != "" || strings.HasPrefix(join, "tls://") {
				options = append(options, nats.Secure(config))
			}
			logger := logs.logger(c.Context())
			tracer, stop, err := traces.Open(c.Context(), "anneal-agent", flags.Version, logger)
			if err != nil {
				return err
			}
			defer stop()
			return node.Join(tracing.NewContext(c.Context(), tracer), node.JoinOptions{URL: join, Token: token, Dir: dir,
				Flags: flags, TLS: config, NATS: options, Stdout: c.OutOrStdout(), Log: logger})
		}}
	flags.Add(c.Flags())
	usage.AddSection(c.Flags(), "Metrics and traces", func(f *pflag.FlagSet) {
		flags.Metrics.Add(f)
		traces.Add(f)
	})
	f := c.Flags()
	f.StringVar(&join, "join", "", "NATS address of the server")
	f.StringVar(&natsCA, "nats-ca", "",
		"PEM file of certificate authorities to trust in addition to the system's, for NATS and for files; requires TLS for "+
			"NATS")
	f.StringVar(&natsCert, "nats-cert", "",
		"PEM file of this node's certificate, for a server with --tls-client-ca; reloaded when the file changes")
	f.StringVar(&natsKey, "nats-key", "", "private key of --nats-cert")
	f.StringVar(&tokenFile, "token-file", "", "file with the join token, with which this node enrolls at its first "+
		"start")
	f.StringVar(&dir, "data", "",
		"directory for the node's key and downloads (default: one per node below the user's cache directory)")
	logs = configure(c, func() error {
		for _, check := range []func() error{flags.Check, flags.Metrics.Check, traces.Check} {
			if err := check(); err != nil {
				return err
			}
		}
		if join == "" {
			return usage.Errorf("--join is required: give the server's NATS address (natsUrl in the server's context file)")
		}
		return nil
	})
	return c
}
