package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"anneal/blobs/reconcile"
	"anneal/eventlog/integrity"
	"anneal/internal/server"
)

func logRepair() *cobra.Command {
	var acceptLoss bool
	c := &cobra.Command{Use: "repair", Short: "Restore damaged and missing events in the log of a stopped server",
		Args:    arguments(0, 0),
		Example: "  anneal log repair --data data",
		Long: `Replaces damaged and missing events by those of the mirror, the second copy of the log on the
same server, if the hash chain of the repaired log then matches the high-water mark. If an event is lost in
both copies, the command reports its position and changes nothing, unless --accept-loss is given: then it
truncates the log before the first lost event. The former files, the events after the loss and a report are
kept in DATA/nats.repaired-TIME. While the file DATA/sweep.held exists, no stored file and no data key is
deleted.`,
		RunE: func(c *cobra.Command, _ []string) error {
			report, err := server.Repair(operatorDir(c), acceptLoss)
			if err != nil {
				return err
			}
			if inJSON, _ := wantsJSON(c); !inJSON {
				printRepair(c.OutOrStdout(), report)
			} else if err := printJSON(c.OutOrStdout(), report); err != nil {
				return err
			}
			switch {
			case report.Intact():
			case report.Changed: // the user has accepted the loss with --accept-loss
				note(c, "%s", lossAdvice(report))
			default:
				return errors.New("nothing was changed: restore the directory from a backup, or repair with --accept-loss")
			}
			return nil
		}}
	dataFlag(c.Flags())
	c.Flags().BoolVar(&acceptLoss, "accept-loss", false, "truncate the log before the first event that "+
		"cannot be restored, or accept an altered log that does not match the high-water mark")
	return c
}

// lossAdvice returns what the operator must do after a repair that removed events or accepted
// changed ones.
func lossAdvice(r integrity.RepairReport) string {
	if len(r.Lost) > 0 {
		return fmt.Sprintf("the log was truncated after position %d: the removed events are in %s; "+
			"files and data keys of those events are kept until you remove %s", r.Events, r.Aside, reconcile.HoldFile)
	}
	return fmt.Sprintf("the altered log was accepted as it is; the former files are in %s",
		r.Aside)
}

func printRepair(w io.Writer, r integrity.RepairReport) {
	for _, part := range []struct {
		what string
		gaps []integrity.Gap
	}{{"restored", r.Restored}, {"lost", r.Lost}, {"differs", r.Differs}} {
		for _, gap := range part.gaps {
			fmt.Fprintf(w, "%s: %s\n", part.what, gap)
		}
	}
	if r.Altered {
		fmt.Fprintln(w, "altered: the log's hash does not match the hash recorded at the high-water mark, "+
			"and no copy contains the original events")
	}
	if r.GivenUp > 0 && len(r.Lost) > 0 {
		fmt.Fprintf(w, "removed because they follow a lost event: %d intact events\n", r.GivenUp)
		for _, event := range server.RevertedEvents(r) {
			fmt.Fprintln(w, "no longer in effect: "+event)
		}
	}
	switch {
	case r.Changed:
		fmt.Fprintf(w, "the log now contains %d events; the former files are in %s\n", r.Events, r.Aside)
	case r.Intact():
		fmt.Fprintf(w, "the log contains %d events, all intact: nothing to repair\n", r.Events)
	}
}
