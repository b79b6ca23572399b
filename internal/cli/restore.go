package cli

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"anneal/eventlog/transparency"
	"anneal/internal/backup"
	"anneal/internal/datadir"
	"anneal/internal/server"
	"anneal/internal/usage"
)

func restoreCommand() *cobra.Command {
	var at, identity, key string
	to := server.RestoreTarget{}
	var certificates server.TLSFlags
	c := &cobra.Command{Use: "restore TARGET", Short: "Restore an installation from a backup", Args: arguments(1, 1),
		Example: "  anneal restore /mnt/backups --identity backup.key --data data\n" +
			"  anneal restore /mnt/backups --identity backup.key --data data --at 2026-11-24T14:00:00Z",
		Long: `Creates the data directory of a server from the newest backup in TARGET or, with --at, from
the backups that have the state at a position of the log or at a time. The command verifies the hash chain
of the events, the checksum of each file, and the signature of each backup's manifest with the key of --key
or of the identity file. Without both, it uses the key in the backup: a program that replaces the backup can
replace that key too. The directory appears when the restore is complete. Then start the server with the
same --blobs and --nats-url. A restored installation has the accounts, keys and node enrollments of the
backup: make sure that the earlier installation does not run.

With --nats-url, the events are restored to an empty NATS cluster. No control plane can join until the restore
is complete; after an interruption, run the same command again. ANNEAL_NATS_PASSWORD and
ANNEAL_NATS_ISSUER_SEED must be set, as for serve.`,
		RunE: func(c *cobra.Command, args []string) (err error) {
			if identity == "" {
				return usage.Errorf("--identity is required: the file that `anneal backup key` wrote, which decrypts " +
					"the backup")
			}
			settings := backup.RestoreSettings{Progress: func(step string) { fmt.Fprintln(c.ErrOrStderr(), step) },
				Logger: slog.New(slog.NewTextHandler(c.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))}
			if settings.Position, settings.Time, err = positionOrTime(at); err != nil {
				return err
			}
			if settings.Identities, err = backup.ReadIdentities(identity); err != nil {
				return err
			}
			if settings.Key, err = backup.ReadKey(identity); err == nil && key != "" {
				if settings.Key, err = transparency.ParseKey(key); err != nil {
					return usage.Errorf("--key: %v", err)
				}
			}
			if err != nil {
				return err
			}
			if to.TLS, err = certificates.LoadCluster(to.NATSURL != ""); err != nil {
				return err
			}
			from, err := backup.OpenExisting(c.Context(), args[0])
			if err != nil {
				return err
			}
			defer from.Close()
			restored, err := server.Restore(c.Context(), from, to, settings)
			if err != nil {
				return err
			}
			if inJSON, _ := wantsJSON(c); inJSON {
				return printJSON(c.OutOrStdout(), restored)
			}
			printRestored(c, restored, to.Dir, settings.Key != nil)
			return nil
		}}
	f := c.Flags()
	f.StringVar((*string)(&to.Dir), "data", "data", "new data directory to create")
	f.StringVar(&identity, "identity", "", "`FILE` that 'anneal backup key' wrote, which decrypts the backup")
	f.StringVar(&key, "key", "", "public `KEY` of the server that was backed up, as 'anneal log key' prints it "+
		"(default: the key in the identity file)")
	f.StringVar(&at, "at", "", "position of the log, or time, whose state is restored (default: the newest backup)")
	f.StringVar(&to.Blobs, "blobs", "", "empty bucket for the files; for a backup with --references, the bucket that has "+
		"them (default: DATA/blobs)")
	f.StringVar(&to.NATSURL, "nats-url", "", "empty NATS cluster for the log (default: an embedded server)")
	f.IntVar(&to.Replicas, "nats-replicas", 0, "replicas of each stream in the NATS cluster (default: 3)")
	certificates.AddCluster(f)
	return c
}

// printRestored prints the result of a restore to dir. trusted reports whether the user gave the key
// with which the signatures were verified.
func printRestored(c *cobra.Command, restored backup.Restored, dir datadir.Dir, trusted bool) {
	note(c, "restored backup %s to %s: position %d, event %s, files %d (%d bytes), data keys %d\nSHA-256 of the "+
		"state: %s",
		restored.Backup, dir, restored.Position, restored.EventID, restored.Files, restored.Bytes, restored.DataKeys,
		restored.SHA256)
	switch {
	case restored.Key == "":
		note(c, "the backup is not signed: an earlier version of anneal created it, or its signatures were "+
			"removed")
	case !trusted:
		note(c, "signed with the key %s, which the backup itself contains: compare it with `anneal log key` "+
			"of the earlier server", restored.Key)
	default:
		note(c, "signed with the key %s", restored.Key)
	}
	for _, missing := range restored.Missing {
		note(c, "not in any backup, and therefore not restored: %s", missing)
	}
	note(c, "start the server with: anneal serve --data %s", dir)
}
