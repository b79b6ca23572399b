package cli

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"anneal/internal/datadir"
	"anneal/internal/server"
	"anneal/internal/usage"
)

func serverCommand() *cobra.Command {
	return group("server", "Add control planes to an installation (run on the servers' machines)", serverBundle(),
		serverJoin(), serverList())
}

func serverBundle() *cobra.Command {
	c := &cobra.Command{Use: "bundle FILE", Short: "Write the keys that a further control plane needs to a new file",
		Args:    arguments(1, 1),
		Example: "  anneal server bundle control-plane.bundle --data data",
		Long: `Control planes of one installation share a NATS cluster (serve --nats-url), a bucket (serve --blobs) and
their keys. The file has these keys, and the keys of the accounts default and system: a user who can
read it controls the installation. Move it over an encrypted connection, and delete it after 'anneal server
join'. The server may run meanwhile. An installation with an embedded NATS server can have only one control
plane, and the command fails.`,
		RunE: func(c *cobra.Command, args []string) error {
			err := storeSecret(c, args[0], func() ([]byte, error) {
				bundle, err := operatorDir(c).Bundle()
				if err != nil {
					return nil, err
				}
				return bundle.Content()
			})
			if err != nil {
				return err
			}
			note(c, "wrote %s, which is confidential. On the machine of the further control plane, run:\n"+
				"  anneal server join %s --data data", args[0], args[0])
			return jsonOnly(c, map[string]string{"bundle": args[0]})
		}}
	dataFlag(c.Flags())
	return c
}

func serverJoin() *cobra.Command {
	var dir string
	c := &cobra.Command{Use: "join FILE",
		Short:   "Write the keys in a bundle to the data directory of a further control plane",
		Args:    arguments(1, 1),
		Example: "  anneal server join control-plane.bundle --data data",
		Long: `Writes the keys of the installation, from the FILE of 'anneal server bundle', to the data directory of a
control plane that has not started yet. Then start it with the --nats-url and --blobs of the others.`,
		RunE: func(c *cobra.Command, args []string) error {
			bundle, err := datadir.ReadBundle(args[0])
			if err != nil {
				return err
			}
			if err := bundle.Install(datadir.Dir(dir)); err != nil {
				return err
			}
			note(c, "%s has the keys of the installation. Delete %s, and start the control plane with the --nats-url and "+
				"--blobs of the others:\n  anneal serve --data %s --nats-url URL --blobs URL", dir, args[0], dir)
			return jsonOnly(c, map[string]string{"data": dir})
		}}
	c.Flags().StringVar(&dir, "data", "data", "data directory of the further control plane")
	return c
}

func serverList() *cobra.Command {
	var natsURL string
	var certificates server.TLSFlags
	c := &cobra.Command{Use: "list", Short: "List the control planes of an installation", Args: arguments(0, 0),
		Example: "  anneal server list --nats-url nats://nats-1:4222",
		Long: `Lists the control planes whose log is in a NATS cluster, with their versions. A control plane that was
killed remains listed for half a minute. EVENTS is the newest event format that a control plane can read:
events of a newer format are recorded only when all control planes can read it.

The environment variable ANNEAL_NATS_PASSWORD must be set.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if natsURL == "" {
				return usage.Errorf("--nats-url is required: an installation with an embedded NATS server has one control plane")
			}
			record, err := server.Members(c.Context(), natsURL, certificates)
			if err != nil {
				return err
			}
			var items []map[string]any
			for _, id := range slices.Sorted(maps.Keys(record.Members)) {
				one := record.Members[id]
				items = append(items, map[string]any{"id": id, "version": one.Release, "eventVersion": one.EventVersion})
			}
			return printItems(c, noRows{"no control planes", "check --nats-url"},
				items, column{"ID", "id"}, column{"VERSION", "version"}, column{"EVENTS", "eventVersion"})
		}}
	c.Flags().StringVar(&natsURL, "nats-url", "", "NATS cluster that stores the log")
	certificates.AddCluster(c.Flags())
	return c
}

// jsonOnly prints the value if the output format is JSON, and otherwise nothing.
func jsonOnly(c *cobra.Command, value any) error {
	if inJSON, err := wantsJSON(c); err != nil || !inJSON {
		return err
	}
	return printJSON(c.OutOrStdout(), value)
}
