package cli

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"anneal/api/rest"
)

var rebuildColumns = []column{{"ID", "id"}, {"STATE", "state"}, {"STARTED", "startTime"}, {"ENDED", "endTime"},
	{"EVENTS", "foldedEvents"}, {"DIFFERENT", "differenceCount"}, {"MESSAGE", statusMessage}}

func worldCommand() *cobra.Command {
	c := group("world", "Rebuild a server's state from the event log (run on the server's machine)",
		worldRebuild(), worldStatus(), worldCancel())
	dataFlag(c.PersistentFlags())
	return c
}

func worldRebuild() *cobra.Command {
	return &cobra.Command{Use: "rebuild", Short: "Replay the event log, and replace the server's state by the result",
		Args: arguments(0, 0), Example: "  anneal world rebuild",
		Long: `Replays all events into new tables while the server continues to use its present tables. Then the new
tables replace the present ones at one position of the log, and the command compares the two, collection by
collection. If they differ, the command reports and records the names of the resources, and exits with a
status other than zero. A rebuild that fails or is cancelled changes nothing.

Until it ends, a rebuild needs memory for a second copy of all resources. With several servers, each has its
own state: run the command on each machine.`,
		RunE: func(c *cobra.Command, _ []string) error {
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			var one rest.Rebuild
			if err := operator.call(c.Context(), http.MethodPost, "/v1/rebuilds", nil, nil, &one); err != nil {
				return err
			}
			return awaitRebuild(c, operator, one.ID)
		}}
}

// awaitRebuild shows the progress of the rebuild with an ID until it ends, and prints its result.
func awaitRebuild(c *cobra.Command, operator *client, id string) error {
	out := c.ErrOrStderr()
	terminal := onTerminal(out)
	for {
		item, err := rebuildOf(c, operator, id)
		if err != nil {
			return err
		}
		if terminal {
			fmt.Fprintf(out, "\r\033[K%d of %d events replayed", item.FoldedEvents, item.LogEvents)
		}
		if item.State == rest.RebuildRunning {
			select {
			case <-time.After(backupPoll):
				continue
			case <-c.Context().Done():
				return onInterrupt(c, c.Context().Err(), "The rebuild continues. Run `anneal world status` to show its state, or "+
					"`anneal world cancel "+id+"`.")
			}
		}
		if terminal {
			fmt.Fprint(out, "\r\033[K")
		}
		return printRebuild(c, item)
	}
}

func rebuildOf(c *cobra.Command, operator *client, id string) (rest.Rebuild, error) {
	var list struct{ Rebuilds []rest.Rebuild }
	if err := operator.call(c.Context(), http.MethodGet, "/v1/rebuilds", nil, nil, &list); err != nil {
		return rest.Rebuild{}, err
	}
	for _, one := range list.Rebuilds {
		if one.ID == id {
			return one, nil
		}
	}
	return rest.Rebuild{}, fmt.Errorf("the server has no rebuild %s: list rebuilds with `anneal world status`", id)
}

// printRebuild prints the result of a rebuild. It returns an error unless the rebuild completed and
// the tables were equal.
func printRebuild(c *cobra.Command, r rest.Rebuild) error {
	inJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	w := c.OutOrStdout()
	switch {
	case inJSON:
		if err := printJSON(w, r); err != nil {
			return err
		}
	case r.Folded != nil:
		result := "equal"
		if r.DifferenceCount > 0 {
			result = "DIFFERENT"
		}
		fmt.Fprintf(w, "%d events replayed in %.2f s; state replaced at position %d: %s\n", r.FoldedEvents,
			r.EndTime.Sub(*r.StartTime).Seconds(), r.Folded.Position, result)
		for _, name := range slices.Sorted(maps.Keys(r.Folded.Tables)) {
			printDigests(w, name, r.Folded.Tables[name], r.Served.Tables[name])
		}
		for _, d := range r.Differences {
			fmt.Fprintf(w, "%-8s %s\n", d.Kind, d.Name)
		}
	}
	switch {
	case r.State != rest.RebuildCompleted:
		return fmt.Errorf("rebuild %s is %s: %s", r.ID, r.State, r.Status.Message)
	case r.DifferenceCount > 0:
		return fmt.Errorf("the state differed from the log in %d resources, and was replaced by that of the log: save "+
			"the output of `anneal world status -o json` and report it as a bug", r.DifferenceCount)
	}
	return nil
}

func worldStatus() *cobra.Command {
	return &cobra.Command{Use: "status", Short: "Show the last rebuilds of the server, and what differed",
		Args: arguments(0, 0), RunE: func(c *cobra.Command, _ []string) error {
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			var list struct{ Rebuilds []map[string]any }
			if err := operator.call(c.Context(), http.MethodGet, "/v1/rebuilds", nil, nil, &list); err != nil {
				return err
			}
			return printItems(c, noRows{"no rebuilds", "start one with `anneal world rebuild`"}, list.Rebuilds,
				rebuildColumns...)
		}}
}

func worldCancel() *cobra.Command {
	return &cobra.Command{Use: "cancel REBUILD", Short: "Cancel a rebuild, which then changes nothing",
		Args:    arguments(1, 1),
		Example: "  anneal world cancel r1893553445000000",
		RunE: func(c *cobra.Command, args []string) error {
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			var item map[string]any
			if err := operator.call(c.Context(), http.MethodPost, "/v1/rebuilds/"+args[0]+":cancel", nil, nil,
				&item); err != nil {
				return err
			}
			return printItem(c, item, column{"Rebuild", "id"}, column{"State", "state"})
		}}
}
