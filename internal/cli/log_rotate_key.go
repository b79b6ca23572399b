package cli

import (
	"github.com/spf13/cobra"

	"anneal/internal/server"
)

func logRotateKey() *cobra.Command {
	var natsURL string
	var certificates server.TLSFlags
	c := &cobra.Command{Use: "rotate-key", Short: "Rotate the master encryption key of a stopped server",
		Args:    arguments(0, 0),
		Example: "  anneal log rotate-key --data data",
		Long: `Each sealed value (secrets, trackers' keys, signed URLs) is encrypted with its own data key,
which is encrypted with (wrapped by) the newest master key in DATA/keys/ring. This command generates a new
master key, wraps all data keys with it, and removes the former master keys from the file, so that they
cannot decrypt values in copies of the data that are made after the rotation. Backups from before the
rotation need the former file.

With --nats-url, and ANNEAL_NATS_PASSWORD set, the log is in a NATS cluster: stop all servers, and copy
DATA/keys/ring to the other servers before they start again.`,
		RunE: func(c *cobra.Command, _ []string) error {
			dir := operatorDir(c)
			cluster, err := certificates.LoadCluster(natsURL != "")
			if err != nil {
				return err
			}
			wrapped, err := server.RotateKey(c.Context(), dir, natsURL, cluster)
			if err != nil {
				return err
			}
			if inJSON, _ := wantsJSON(c); inJSON {
				return printJSON(c.OutOrStdout(), map[string]int{"wrapped": wrapped})
			}
			note(c, "%s has a new master key: back it up\nwrapped data keys: %d", dir.RingPath(), wrapped)
			return nil
		}}
	dataFlag(c.Flags())
	c.Flags().StringVar(&natsURL, "nats-url", "",
		"NATS cluster that stores the log (default: the server's data directory)")
	certificates.AddCluster(c.Flags())
	return c
}
