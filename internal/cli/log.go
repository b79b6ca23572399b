package cli

import (
	"crypto/rand"

	"github.com/spf13/cobra"

	"anneal/eventlog/natsserver"
)

func logCommand() *cobra.Command {
	return group("log", "Verify, prove and repair the event log", logVerify(), logRepair(),
		logRotateKey(), logCredentials(), logKey(), logCheckpoint(),
		logProve(), logCheckFile())
}

func logCredentials() *cobra.Command {
	return &cobra.Command{Use: "credentials", Short: "Generate the credentials of a NATS cluster as environment variables",
		Args: arguments(0, 0),
		Long: `Prints the passwords and keys of a NATS cluster that stores the log, as environment variables for its
servers and for serve --nats-url.`,
		Example: "  anneal log credentials > .env",
		RunE: func(c *cobra.Command, _ []string) error {
			seed, public, err := natsserver.NewIssuer()
			if err != nil {
				return err
			}
			lines := [][2]string{{"ANNEAL_NATS_ISSUER_SEED", seed}, {"ANNEAL_NATS_ISSUER", public},
				{"ANNEAL_NATS_PASSWORD", rand.Text()}, {"ANNEAL_NATS_READER_PASSWORD", rand.Text()}}
			object := map[string]string{}
			for _, line := range lines {
				note(c, "%s=%s", line[0], line[1])
				object[line[0]] = line[1]
			}
			if inJSON, err := wantsJSON(c); err != nil || !inJSON {
				return err
			}
			return printJSON(c.OutOrStdout(), object)
		}}
}
