package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"anneal/eventlog/integrity"
	"anneal/internal/server"
	"anneal/projections"
)

func logVerify() *cobra.Command {
	c := &cobra.Command{Use: "verify", Short: "Verify that the served state matches the event log", Args: arguments(0, 0),
		Long: `Replays all events from the first one, and compares the result, collection by collection, with the
state that the server serves or, if it is stopped, with its newest snapshot.

The files of the embedded server are also verified: every checksum, the hash chain of all events
against the high-water mark, and each event against the mirror. An altered, missing or swapped event
is reported by its position.`,
		RunE: func(c *cobra.Command, _ []string) error {
			dir := operatorDir(c)
			result, err := server.Verify(c.Context(), dir)
			if err != nil {
				return err
			}
			if inJSON, _ := wantsJSON(c); !inJSON {
				printVerification(c.OutOrStdout(), result)
			} else if err := printJSON(c.OutOrStdout(), result); err != nil {
				return err
			}
			return result.Err(dir)
		}}
	dataFlag(c.Flags())
	return c
}

func printVerification(w io.Writer, v server.Verification) {
	if v.Log != nil {
		printFileReport(w, *v.Log)
	}
	if v.Against == "" {
		if v.Log != nil && v.Log.Intact() {
			fmt.Fprintln(w, "there is no snapshot to compare the log with: start the server, and stop it with "+
				"SIGTERM to write a snapshot")
		}
		return
	}
	result := "equal"
	if !v.Equal {
		result = "DIFFERENT"
	}
	fmt.Fprintf(w, "%d events replayed in %.2f s; %s at position %d: %s\n", v.Folded.Position, v.Seconds, v.Against,
		v.Served.Position, result)
	for _, name := range slices.Sorted(maps.Keys(v.Folded.Tables)) {
		printDigests(w, name, v.Folded.Tables[name], v.Served.Tables[name])
	}
}

// printDigests prints whether the digests of a collection are equal, with the number of rows.
func printDigests(w io.Writer, name string, folded, served projections.TableDigest) {
	sign := "="
	if folded != served {
		sign = "≠"
	}
	fmt.Fprintf(w, "  %-28s %6d rows  %.16s %s %.16s\n", name, folded.Rows, folded.SHA256, sign, served.SHA256)
}

func printFileReport(w io.Writer, r integrity.FileReport) {
	result := "intact"
	if !r.Intact() {
		result = "DAMAGED"
	}
	fmt.Fprintf(w, "files: %d events without a gap, of at least %d: %s\n", r.Events, r.Must, result)
	for _, gap := range r.Missing {
		fmt.Fprintf(w, "  missing: %s\n", gap)
	}
	for _, gap := range r.Differs {
		fmt.Fprintf(w, "  altered: %s\n", gap)
	}
	switch {
	case r.Marked == "":
		fmt.Fprintf(w, "  hash chain %.16s; no high-water mark to compare it with\n", r.Hash)
	case r.Hash == r.Marked:
		fmt.Fprintf(w, "  hash chain %.16s = high-water mark\n", r.Hash)
	case r.Hash == "":
		fmt.Fprintf(w, "  hash chain: not computed; high-water mark %.16s\n", r.Marked)
	default:
		fmt.Fprintf(w, "  hash chain %.16s ≠ high-water mark %.16s: an event was altered or swapped\n", r.Hash, r.Marked)
	}
	if r.Lost > 0 {
		fmt.Fprintf(w, "  %d events were removed by earlier repairs\n", r.Lost)
	}
}
