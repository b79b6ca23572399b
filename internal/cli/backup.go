package cli

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"anneal/internal/backup"
	"anneal/internal/server"
	"anneal/internal/usage"
)

var backupColumns = []column{{"TARGET", "target"}, {"STATE", "state"}, {"POSITION", "last.position"},
	{"STATE AT", "last.stateTime"}, {"AGE", "age"}, {"EVENTS SINCE", "eventsSince"}, {"FILES", "last.files"},
	{"BYTES", "last.fileBytes"},
	{"COPIED", "last.copiedBytes"}, {"MESSAGE", statusMessage}}

func backupCommand() *cobra.Command {
	c := group("backup", "Back up an installation (run on the server's machine)", backupCreate(), backupStatus(),
		backupPrune(), backupKey())
	dataFlag(c.PersistentFlags())
	return c
}

func backupCreate() *cobra.Command {
	var recipients []string
	var references bool
	c := &cobra.Command{Use: "create TARGET",
		Short: "Add a backup to a target; it copies only what changed since the last backup",
		Args:  arguments(1, 1),
		Example: "  anneal backup create /mnt/backups --recipient age1…\n" +
			"  anneal backup create 's3://BUCKET?region=eu-west-1&prefix=anneal/' --recipient age1…",
		Long: `Copies the events, the files of datasets and models, the usage records and the keys of a
running installation to TARGET, a directory or the URL of a bucket. The backup has the state at one position
of the log; requests continue meanwhile. Later backups to the same target copy only what changed. Keys and
secrets are encrypted for the recipients; a later backup without --recipient uses those of the last one.
'anneal restore' restores any backup, and the state at any position before the newest one.

To back up regularly, start the server with --backup TARGET --backup-recipient age1….`,
		RunE: func(c *cobra.Command, args []string) error {
			target, err := absoluteTarget(args[0])
			if err != nil {
				return err
			}
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			var item map[string]any
			if err := operator.call(c.Context(), http.MethodPost, "/v1/backups", nil, map[string]any{"target": target,
				"recipients": recipients, "references": references}, &item); err != nil {
				return err
			}
			return awaitBackup(c, operator, target)
		}}
	c.Flags().StringArrayVar(&recipients, "recipient", nil,
		"`RECIPIENT` for which the keys are encrypted, as 'anneal backup key' prints it; repeat the flag for more")
	c.Flags().BoolVar(&references, "references", false,
		"do not copy files of datasets and models, because the bucket of serve --blobs keeps them")
	bindArgument(c, "TARGET", "target", "")
	bindFlag(c, "recipient", "recipients")
	return c
}

// absoluteTarget returns a target whose path does not depend on the working directory of the
// server.
func absoluteTarget(target string) (string, error) {
	if strings.Contains(target, "://") {
		return target, nil
	}
	return filepath.Abs(target)
}

const backupPoll = 200 * time.Millisecond

// awaitBackup shows the progress of the backup to a target until the backup ends.
func awaitBackup(c *cobra.Command, operator *client, target string) error {
	out := c.ErrOrStderr()
	terminal := onTerminal(out)
	for {
		item, err := backupTo(c, operator, target)
		if err != nil {
			return err
		}
		if terminal {
			fmt.Fprintf(out, "\r\033[Kcopied %s bytes", cell(item, "copiedBytes"))
		}
		if item["state"] == backup.Running {
			select {
			case <-time.After(backupPoll):
				continue
			case <-c.Context().Done():
				return onInterrupt(c, c.Context().Err(), "The backup continues. Run `anneal backup status` to show its state.")
			}
		}
		if terminal {
			fmt.Fprint(out, "\r\033[K")
		}
		if item["state"] != backup.Completed {
			return fmt.Errorf("the backup to %s failed: %s", target, cell(item, statusMessage))
		}
		if err := printItem(c, item, column{"Target", "target"}, column{"Backup", "last.id"},
			column{"Position", "last.position"}, column{"State at", "last.stateTime"}, column{"Files", "last.files"},
			column{"File bytes", "last.fileBytes"}, column{"Copied bytes", "last.copiedBytes"},
			column{"Recipients", "recipients"}, column{"Missing", "last.missing"}); err != nil {
			return err
		}
		if missing := cell(item, "last.missing"); missing != "-" {
			return fmt.Errorf("the backup is complete, except for files that the installation has lost: %s", missing)
		}
		return nil
	}
}

func backupTo(c *cobra.Command, operator *client, target string) (map[string]any, error) {
	items, err := backups(c, operator)
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		if item["target"] == target {
			return item, nil
		}
	}
	return nil, fmt.Errorf("the server has made no backup to %s: list its backups with `anneal backup status`", target)
}

func backups(c *cobra.Command, operator *client) ([]map[string]any, error) {
	var list struct{ Backups []map[string]any }
	err := operator.call(c.Context(), http.MethodGet, "/v1/backups", nil, nil, &list)
	return list.Backups, err
}

func backupStatus() *cobra.Command {
	return &cobra.Command{Use: "status", Short: "Show the last backup to each target, and how many newer events it " +
		"lacks",
		Args: arguments(0, 0), RunE: func(c *cobra.Command, _ []string) error {
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			items, err := backups(c, operator)
			if err != nil {
				return err
			}
			return printItems(c, noRows{"no backups", "create one with `anneal backup create TARGET --recipient RECIPIENT`"},
				items, backupColumns...)
		}}
}

func backupKey() *cobra.Command {
	return &cobra.Command{Use: "key FILE", Short: "Create a key that decrypts backups, and print the recipient for " +
		"'backup create'",
		Args:    arguments(1, 1),
		Example: "  anneal backup key backup.key",
		Long: `Writes a private key of the tool age to a new FILE, and prints its public key, for
'anneal backup create --recipient'. Keep the file apart from the server and from the backups: without it, no
backup can be restored. On the server's machine, the file also gets the public key of the installation (see
'anneal log key'): 'anneal restore' then accepts only backups that this installation has signed.`,
		RunE: func(c *cobra.Command, args []string) error {
			var recipient string
			key, err := server.LogKey(operatorDir(c))
			if err != nil {
				key = ""
				fmt.Fprintf(c.ErrOrStderr(), "%s is no data directory of a server: restores with this key file do "+
					"not check who signed the backup; run the command on the server's machine, or pass --key to "+
					"`anneal restore`\n", operatorDir(c))
			}
			err = storeSecret(c, args[0], func() (content []byte, err error) {
				text, public, err := backup.NewIdentity(key)
				recipient = public
				return []byte(text), err
			})
			if err != nil {
				return err
			}
			note(c, "%s", recipient)
			return jsonOnly(c, map[string]string{"file": args[0], "recipient": recipient, "key": key})
		}}
}

// positionOrTime parses the value of --at, which is a position of the log or a time. For a time,
// position is 0; for a position, t is the zero time.
func positionOrTime(text string) (position uint64, t time.Time, err error) {
	if text == "" {
		return 0, t, nil
	}
	if _, err := fmt.Sscanf(text, "%d", &position); err == nil && fmt.Sprint(position) == text && position > 0 {
		return position, t, nil
	}
	if t, err = time.Parse(time.RFC3339, text); err != nil {
		return 0, t, usage.Errorf("--at %q must be a position of the log, or a time such as 2026-11-24T14:00:00Z", text)
	}
	return 0, t, nil
}

func backupPrune() *cobra.Command {
	var keep, days int
	c := &cobra.Command{Use: "prune TARGET", Short: "Remove old backups from a target", Args: arguments(1, 1),
		Example: "  anneal backup prune /mnt/backups --keep 24 --keep-days 30",
		Long: `Removes the backups of a target except the newest --keep and those of the last --keep-days days, and deletes
what no other backup needs. The newest backup and all events are always kept: a position before the oldest
backup can still be restored, without the files that were deleted since then. If the command is interrupted, all
remaining backups can be restored; run it again.`,
		RunE: func(c *cobra.Command, args []string) error {
			if keep == 0 && days == 0 {
				return usage.Errorf("--keep or --keep-days is required: which backups to keep")
			}
			target, err := absoluteTarget(args[0])
			if err != nil {
				return err
			}
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			var item map[string]any
			if err := operator.call(c.Context(), http.MethodPost, "/v1/backups:prune", nil, map[string]any{"target": target,
				"keep": keep, "keepDays": days}, &item); err != nil {
				return err
			}
			return printItem(c, item, column{"Target", "target"}, column{"Kept", "kept"}, column{"Removed", "removed"},
				column{"Objects deleted", "deletedObjects"}, column{"Bytes deleted", "deletedBytes"})
		}}
	c.Flags().IntVar(&keep, "keep", 0, "number of newest backups to keep")
	c.Flags().IntVar(&days, "keep-days", 0, "keep backups of the last `DAYS` days")
	bindArgument(c, "TARGET", "target", "")
	return c
}
