package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// stateOf is a job's state without its prefix.
func stateOf(item map[string]any) string {
	return strings.TrimPrefix(cell(item, "state"), "JOB_STATE_")
}

func ended(state string) bool {
	switch state {
	case "COMPLETED", "FAILED", "CANCELLED", "EXPIRED", "EARLY_STOPPED":
		return true
	}
	return false
}

// watchJob draws a job's progress until it has ended, or waits for a step. A
// job that did not succeed is an error. Who leaves is told that it goes on.
func (c *client) watchJob(cmd *cobra.Command, name string) (map[string]any, error) {
	item, err := c.drawJob(cmd, name)
	command := commandOf[collectionOf(name)]
	return item, leaving(cmd, err, "The job goes on; `anneal %s watch %s` shows it again, `anneal %s cancel %s` stops it.", command, id(name), command, id(name))
}

// leaving tells who interrupts a watch what becomes of what was watched.
func leaving(cmd *cobra.Command, err error, format string, args ...any) error {
	if err != nil && cmd.Context().Err() != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "\n"+format+"\n", args...)
		return cmd.Context().Err() // however the request that was cut off put it
	}
	return err
}

// drawJob draws a job's progress, loss and time left, and tells what holds it
// up.
func (c *client) drawJob(cmd *cobra.Command, name string) (map[string]any, error) {
	out := cmd.ErrOrStderr()
	live := onTerminal(out)
	curve := lossCurve{}
	last, told := "", 0.0 // what was printed last where lines cannot be drawn over
	held := "-"           // what the job said last that it waits for
	watch := watched{client: c, cmd: cmd, name: name}
	for {
		item, err := watch.read()
		if err != nil {
			if live && cmd.Context().Err() == nil {
				fmt.Fprintln(out) // the fault has a line of its own
			}
			return nil, err
		}
		state := stateOf(item)
		percent := percentOf(item)
		line := fmt.Sprintf("%-15s %s %3.0f%%%s", state, bar(percent/100, 24), percent, curve.add(item))
		switch {
		case live:
			redraw(out, line)
		case state != last || percent >= told+20:
			fmt.Fprintln(out, line)
			last, told = state, percent
		}
		if ended(state) || state == "PAUSED" || state == "IDLE" {
			if live {
				fmt.Fprintln(out)
			}
			if state != "COMPLETED" && state != "EARLY_STOPPED" && state != "IDLE" {
				return item, fmt.Errorf("job %s is %s: %s", id(name), state, cell(item, "status.message"))
			}
			return item, nil
		}
		if words := cell(item, statusText); words != held {
			if live {
				fmt.Fprintln(out)
			}
			if held = words; words != "-" {
				fmt.Fprintln(out, words)
			}
		}
		if err := sleep(cmd.Context(), 250*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func percentOf(item map[string]any) (percent float64) {
	if progress, ok := item["jobProgress"].(map[string]any); ok {
		percent, _ = progress["percent"].(float64)
	}
	if stateOf(item) == "COMPLETED" {
		percent = 100
	}
	return percent
}

// A lossCurve remembers what was seen of a job's loss, to draw it.
type lossCurve struct {
	losses []float64
	figure string // what shows beside the loss whether the job learns
}

// add notes the newest figures and answers the end of a progress line.
func (l *lossCurve) add(item map[string]any) string {
	progress, _ := item["jobProgress"].(map[string]any)
	if metrics, ok := progress["metrics"].(map[string]any); ok {
		loss, known := metrics["train/loss"].(float64)
		if n := len(l.losses); known && (n == 0 || l.losses[n-1] != loss) {
			l.losses = append(l.losses, loss)
		}
		for _, shown := range []column{{"accuracy", "train/accuracy"}, {"reward", "reward/mean"}} {
			if value, known := metrics[shown.path].(float64); known {
				l.figure = fmt.Sprintf("  %s %.3f", shown.title, value)
			}
		}
	}
	if len(l.losses) == 0 && l.figure == "" { // answers that are scored alike have no loss
		return ""
	}
	line := l.figure
	if n := len(l.losses); n > 0 {
		line = fmt.Sprintf("  loss %.3f %s", l.losses[n-1], sparkline(l.losses, 24)) + l.figure
	}
	if left, known := progress["secondsLeft"].(float64); known {
		line += fmt.Sprintf("  %s left", time.Duration(left)*time.Second)
	}
	return line
}
