package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const (
	jobPoll       = 250 * time.Millisecond
	progressWidth = 24 // width of progress bars and loss curves, in characters
	// progressStride is the minimum progress, in percent, between two printed lines if standard
	// error is not a terminal.
	progressStride = 20

	// progressEvery is the maximum time between two printed lines if standard error is not a
	// terminal.
	progressEvery = time.Minute
)

// jobState returns the state of a job without the prefix JOB_STATE_.
func jobState(item map[string]any) string {
	return strings.TrimPrefix(cell(item, "state"), "JOB_STATE_")
}

// watchJob shows the progress of a job until the job ends or waits for a step, and returns the job.
// It returns an error if the job fails or is cancelled. If the user interrupts the command, it
// prints that the job continues on the server.
func watchJob(cmd *cobra.Command, client *client, name string) (map[string]any, error) {
	item, err := (&jobWatch{watch: watch{client: client, cmd: cmd, name: name}, message: "-"}).run()
	command := commandOf[collectionOf(name)]
	return item, onInterrupt(cmd, err,
		"The job continues. Run `anneal %s watch %s` to show its progress again, "+
			"or `anneal %s cancel %s` to stop it.",
		command, id(name), command, id(name))
}

// A jobWatch shows the progress, the loss and the remaining time of a job, and what delays it.
type jobWatch struct {
	watch
	metrics lossCurve
	message string // last printed status message

	state   string // last printed state, if standard error is not a terminal
	percent float64
	printed time.Time // time of the last printed line
}

func (w *jobWatch) run() (map[string]any, error) {
	out := w.cmd.ErrOrStderr()
	terminal := onTerminal(out)
	for {
		item, err := w.read()
		if err != nil {
			if terminal && w.cmd.Context().Err() == nil {
				fmt.Fprintln(out) // end the line of progress
			}
			return nil, err
		}
		state := jobState(item)
		w.draw(out, terminal, item)
		if ended(item) {
			if terminal {
				fmt.Fprintln(out)
			}
			if state != "COMPLETED" && state != "EARLY_STOPPED" && state != "IDLE" {
				return item, fmt.Errorf("job %s is %s: %s", id(w.name), state, cell(item, statusMessage))
			}
			return item, nil
		}
		if message := cell(item, statusMessage); message != w.message {
			if terminal {
				fmt.Fprintln(out)
			}
			if w.message = message; message != "-" {
				fmt.Fprintln(out, message)
			}
		}
		if err := sleep(w.cmd.Context(), jobPoll); err != nil {
			return nil, err
		}
	}
}

// draw shows the progress: on a terminal it redraws a line; otherwise it prints a line after
// progressStride or progressEvery.
func (w *jobWatch) draw(out io.Writer, terminal bool, item map[string]any) {
	state, percent := jobState(item), jobPercent(item)
	line := progressLine(item, w.metrics.add(item))
	switch {
	case terminal:
		redraw(out, line)
	case state != w.state || percent >= w.percent+progressStride,
		time.Since(w.printed) >= progressEvery:
		fmt.Fprintln(out, line)
		w.state, w.percent, w.printed = state, percent, time.Now()
	}
}

// progressLine returns the line with the progress of a job, its metrics and its place in the queue.
func progressLine(item map[string]any, metrics string) string {
	percent := jobPercent(item)
	line := fmt.Sprintf("%-15s %s %3.0f%%%s", jobState(item), bar(percent/100, progressWidth), percent, metrics)
	if place := cell(item, queuePath); place != "-" {
		line += "  queue " + place
	}
	return line
}

func jobPercent(item map[string]any) (percent float64) {
	if progress, ok := item["jobProgress"].(map[string]any); ok {
		percent, _ = progress["percent"].(float64)
	}
	if jobState(item) == "COMPLETED" {
		percent = 100
	}
	return percent
}

// A lossCurve collects the losses of a job, to draw a curve.
type lossCurve struct {
	losses []float64
	metric string // last value of the accuracy or the reward, as text
}

// add adds the newest metrics of a job, and returns the text after the progress bar: the loss, the
// accuracy or reward, and the remaining time.
func (l *lossCurve) add(item map[string]any) string {
	progress, _ := item["jobProgress"].(map[string]any)
	if metrics, ok := progress["metrics"].(map[string]any); ok {
		loss, known := metrics["train/loss"].(float64)
		if n := len(l.losses); known && (n == 0 || l.losses[n-1] != loss) {
			l.losses = append(l.losses, loss)
		}
		for _, metric := range []column{{"accuracy", "train/accuracy"}, {"reward", "reward/mean"}} {
			if value, known := metrics[metric.path].(float64); known {
				l.metric = fmt.Sprintf("  %s %.3f", metric.title, value)
			}
		}
	}
	if len(l.losses) == 0 && l.metric == "" { // jobs whose responses all have equal scores report no loss
		return ""
	}
	line := l.metric
	if n := len(l.losses); n > 0 {
		line = fmt.Sprintf("  loss %.3f %s", l.losses[n-1], sparkline(l.losses, progressWidth)) + l.metric
	}
	if left, known := progress["secondsLeft"].(float64); known {
		line += fmt.Sprintf("  %s left", time.Duration(left)*time.Second)
	}
	return line
}
