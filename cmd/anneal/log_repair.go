package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"anneal/blobs/reconcile"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

func logRepair() *cobra.Command {
	var data string
	var accept bool
	c := &cobra.Command{Use: "repair", Short: "Restore damaged and missing events of a stopped server's log", Args: arguments(0, 0),
		Example: "  anneal log repair --data data",
		Long: "Takes damaged and missing events from the readers' copy, which the same server keeps, when the running\n" +
			"hash of the result is that of the high-water mark. What no copy has is reported by its positions, and\n" +
			"nothing is changed then, unless --accept-loss is given: it cuts the log off before the first lost event.\n" +
			"The former files, the events behind the loss and a report stay in DATA/nats.repaired-TIME, and the file\n" +
			"DATA/sweep.held keeps all stored files and data keys until it is removed.",
		RunE: func(c *cobra.Command, _ []string) error {
			dir := folder(data)
			if data == "" {
				dir = folder(filepath.Dir(contextPath(c)))
			}
			if _, err := os.Stat(dir.path("version")); err != nil {
				return fmt.Errorf("%s is not a server's folder: give --data DIR", dir)
			}
			release, err := eventlog.LockDir(string(dir))
			if err != nil {
				return err
			}
			defer release()
			report, err := repairLog(dir, accept)
			if err != nil {
				return err
			}
			inJSON, err := asJSON(c)
			switch {
			case err != nil:
				return err
			case inJSON:
				err = printJSON(c.OutOrStdout(), report)
			default:
				printRepair(c.OutOrStdout(), report)
			}
			if err != nil || report.Whole() {
				return err
			}
			if report.Changed { // as --accept-loss allows
				note(c, "%s", lossAdvice(report))
				return nil
			}
			return errors.New(lossAdvice(report))
		}}
	c.Flags().StringVar(&data, "data", "", "the server's folder (default: that of the context file)")
	c.Flags().BoolVar(&accept, "accept-loss", false, "cut the log off before the first event that nothing can restore")
	return c
}

func lossAdvice(report eventlog.RepairReport) string {
	switch {
	case report.Changed && len(report.Lost) > 0:
		return fmt.Sprintf("the log was cut off behind position %d: what was given up is in %s; files and data keys of those events are kept until you remove %s",
			report.Events, report.Aside, reconcile.HoldFile)
	case report.Changed:
		return fmt.Sprintf("the log was altered, and is taken as it is: its former files are in %s", report.Aside)
	}
	return "nothing was changed: restore the folder from a backup, or run it again with --accept-loss"
}

// repairLog repairs a folder's log, and moves snapshots of what is lost aside.
func repairLog(dir folder, accept bool) (eventlog.RepairReport, error) {
	holds, err := projections.Newest(dir.path("snapshots"))
	if err != nil {
		return eventlog.RepairReport{}, err
	}
	report, err := eventlog.Repair(eventlog.RepairOptions{Dir: dir.path("nats"), Holds: holds, AcceptLoss: accept, Now: time.Now(),
		BeforeLoss: func(r eventlog.RepairReport) error {
			return dir.holdSweeps("'anneal log repair --accept-loss' cut the log off behind position %d. Files and data keys of the events "+
				"that were given up are kept until you have dealt with %s and remove this file.", r.Events, filepath.Join(r.Aside, "given-up.jsonl"))
		}})
	if err != nil || report.Whole() || !report.Changed {
		return report, err
	}
	err = os.Rename(dir.path("snapshots"), filepath.Join(report.Aside, "snapshots"))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return report, err
}

// undoneBy lists what was deleted or revoked by events that were given up: it is
// back after the next start, so an operator deletes or revokes it again.
func undoneBy(givenUp string) (undone []string) {
	content, err := os.ReadFile(givenUp)
	if err != nil {
		return nil // nothing was given up
	}
	for line := range bytes.Lines(content) {
		var event struct {
			Subject    string            `json:"subject"`
			Attributes map[string]string `json:"attributes"`
		}
		if json.Unmarshal(line, &event) != nil {
			continue
		}
		kind := event.Attributes["ce-type"]
		if strings.Contains(kind, ".deleted.") || strings.Contains(kind, ".revoked.") || strings.Contains(kind, ".suspended.") {
			undone = append(undone, fmt.Sprintf("%s (%s)", domain.NameOf(event.Subject), kind))
		}
	}
	return undone
}

// holdSweeps has the reconciler delete nothing until an operator removes the file.
func (f folder) holdSweeps(format string, args ...any) error {
	why := time.Now().UTC().Format(time.RFC3339) + " " + fmt.Sprintf(format, args...) + "\n"
	return writePrivate(f.path(reconcile.HoldFile), []byte(why))
}

func printRepair(w io.Writer, r eventlog.RepairReport) {
	for _, part := range []struct {
		what string
		gaps []eventlog.Gap
	}{{"restored", r.Restored}, {"lost", r.Lost}, {"differs", r.Differs}} {
		for _, gap := range part.gaps {
			fmt.Fprintf(w, "%s: %s\n", part.what, gap)
		}
	}
	if r.Altered {
		fmt.Fprintln(w, "altered: the running hash differs from that of the high-water mark, and no copy holds the original events")
	}
	if r.GivenUp > 0 && len(r.Lost) > 0 {
		fmt.Fprintf(w, "behind the loss: %d whole events\n", r.GivenUp)
		for _, undone := range undoneBy(filepath.Join(r.Aside, "given-up.jsonl")) {
			fmt.Fprintln(w, "no longer in force: "+undone)
		}
	}
	switch {
	case r.Changed:
		fmt.Fprintf(w, "the log holds %d events now; the former files are in %s\n", r.Events, r.Aside)
	case r.Whole():
		fmt.Fprintf(w, "the log holds %d events, all of them whole: nothing to repair\n", r.Events)
	}
}

func printFileReport(w io.Writer, r eventlog.FileReport) {
	verdict := "whole"
	if !r.Whole() {
		verdict = "DAMAGED"
	}
	fmt.Fprintf(w, "files: %d events up to position %d, %s\n", r.Events, r.Must, verdict)
	for _, gap := range r.Missing {
		fmt.Fprintf(w, "  missing: %s\n", gap)
	}
	for _, gap := range r.Differs {
		fmt.Fprintf(w, "  altered: %s\n", gap)
	}
	switch {
	case r.Marked == "":
		fmt.Fprintf(w, "  running hash %.16s; there is no high-water mark\n", r.Hash)
	case r.Hash == r.Marked:
		fmt.Fprintf(w, "  running hash %.16s = high-water mark\n", r.Hash)
	case r.Hash == "":
		fmt.Fprintf(w, "  running hash: not computed; high-water mark %.16s\n", r.Marked)
	default:
		fmt.Fprintf(w, "  running hash %.16s ≠ high-water mark %.16s: an event was altered or swapped\n", r.Hash, r.Marked)
	}
	if r.Lost > 0 {
		fmt.Fprintf(w, "  %d events were given up by earlier repairs\n", r.Lost)
	}
}

// markThere tells whether a folder has had a log.
func markThere(dir folder) bool {
	_, err := os.Stat(dir.path("nats.mark"))
	return err == nil
}
