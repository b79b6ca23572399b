package cli

import (
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"anneal/internal/server"
	"anneal/internal/usage"
	"anneal/projections"
	"anneal/schedulers/replay"
)

// replayGCPercent is the garbage collector's target while simulations run. They allocate much
// memory that they soon release; with this value they take a quarter less time.
const replayGCPercent = 400

func replayCommand() *cobra.Command {
	var from, to string
	var with []string
	var step time.Duration
	c := &cobra.Command{Use: "replay", Short: "Show what other scheduler settings would have done in a recorded period",
		Args: arguments(0, 0),
		Example: "  anneal replay --from 2026-03-01T00:00:00Z --to 2026-03-02T00:00:00Z --with weight:acme=3 " +
			"--with nodes=+2xCPU",
		Long: `Reads the event log, and runs the schedulers on the workload of the period with a virtual clock: with the
recorded settings, and with the settings of each --with. The table compares what was recorded with the
simulations. The difference between the columns recorded and simulated is the error of the simulation: compare
variants with the column simulated, not with recorded.

The command only reads the log in the data directory: the mirror of a running server, or the files of a stopped
one. Each --with is one variant; commas separate its settings:

  ` + strings.Join(replay.SettingsHelp, "\n  "),
		RunE: func(c *cobra.Command, _ []string) error {
			options, err := replayOptions(from, to, with, step)
			if err != nil {
				return err
			}
			debug.SetGCPercent(replayGCPercent)
			var report replay.Report
			err = server.ReadLog(c.Context(), operatorDir(c), func(log projections.Reader) error {
				report, err = replay.Run(c.Context(), log, options)
				return err
			})
			if err != nil {
				return err
			}
			if inJSON, _ := wantsJSON(c); inJSON {
				return printJSON(c.OutOrStdout(), report)
			}
			return printReplay(c, report)
		}}
	f := c.Flags()
	f.StringVar(&from, "from", "", "start of the period, a `TIME` such as 2026-03-01T00:00:00Z (default: a day before "+
		"the end)")
	f.StringVar(&to, "to", "", "end of the period, a `TIME` (default: the last event)")
	f.StringArrayVar(&with, "with", nil, "simulate with these `SETTINGS`; repeat the flag for more variants")
	f.DurationVar(&step, "step", 0, "minimum time between two plans of a simulation (default: 20s for a day, in "+
		"proportion for other periods, and at least 1s)")
	dataFlag(f)
	return c
}

func replayOptions(from, to string, with []string, step time.Duration) (options replay.Options, err error) {
	options.Step = step
	for _, one := range []struct {
		flag, text string
		time       *time.Time
	}{{"from", from, &options.From}, {"to", to, &options.To}} {
		if one.text == "" {
			continue
		}
		if *one.time, err = time.Parse(time.RFC3339, one.text); err != nil {
			return options, usage.Errorf("--%s %q must be a time such as 2026-03-01T00:00:00Z", one.flag, one.text)
		}
	}
	if !options.From.IsZero() && !options.To.IsZero() && !options.From.Before(options.To) {
		return options, usage.Errorf("--from %s must be before --to %s", from, to)
	}
	for _, text := range with {
		settings, err := replay.ParseSettings(text)
		if err != nil {
			return options, usage.Errorf("--with: %v", err)
		}
		options.With = append(options.With, settings)
	}
	return options, nil
}

func printReplay(c *cobra.Command, r replay.Report) error {
	out := c.OutOrStdout()
	fmt.Fprintf(out, "%s to %s: events %d to %d\n", r.From.UTC().Format(time.RFC3339), r.To.UTC().Format(time.RFC3339),
		r.First, r.Last)
	if r.Estimate > 0 {
		fmt.Fprintf(out, "the run times of %d jobs are estimated, because the log does not show their ends\n", r.Estimate)
	}
	for _, line := range r.Variants() {
		fmt.Fprintln(out, line)
	}
	return printTable(out, r.Table())
}
