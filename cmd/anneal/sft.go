package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

var supervisedJobs = collection{"supervisedFineTuningJobs", "job",
	[]column{{"ID", "#name"}, {"STATE", "state"}, {"DONE %", "jobProgress.percent"}, {"DATASET", "#dataset"}, {"BASE", "#baseModel"}, {"OUTPUT", "#outputModel"}, {"CREATED", "createTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"State", "state"}, {"Status", "status.message"}, {"Progress", "jobProgress.percent"}, {"Dataset", "dataset"},
		{"Learns from", "inputDatasets.train"}, {"Measured on", "inputDatasets.evaluation"}, {"Base model", "baseModel"}, {"Warm start", "warmStartFrom"}, {"Output model", "outputModel"}, {"Epochs", "epochs"}, {"Learning rate", "learningRate"}, {"LoRA rank", "loraRank"},
		{"Accelerator seconds", "acceleratorSeconds"}, {"Created by", "createdBy"}, {"Created", "createTime"}, {"Completed", "completedTime"}}}

func sftCommand() *cobra.Command {
	return group("sft", "Supervised fine-tuning jobs", sftCreate(), sftWatch(), supervisedJobs.listCommand(), supervisedJobs.getCommand(), supervisedJobs.metricsCommand(column{"EVAL", "eval/loss"}),
		supervisedJobs.verbCommand("cancel", "Stop a job and keep its last checkpoint", "is being cancelled"),
		supervisedJobs.verbCommand("resume", "Let a stopped job go on", "goes on"), supervisedJobs.deleteCommand())
}

// sftFlags are the flags that become fields of a supervised job, beside those
// of every training.
type sftFlags struct {
	trainingFlags
	dataset, evaluation, displayName string
	batch, samples, nodes            int
	earlyStop, carve                 bool
}

func (s *sftFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&s.dataset, "dataset", "", "dataset to learn from")
	f.StringVar(&s.evaluation, "evaluation-dataset", "", "dataset to measure on")
	f.BoolVar(&s.carve, "eval-auto-carveout", false, "hold rows back to measure on")
	s.trainingFlags.add(c)
	f.IntVar(&s.batch, "batch-size", 0, "tokens in a gradient batch; 0 is the engine's default")
	f.IntVar(&s.samples, "batch-size-samples", 0, "samples in a gradient batch; 0 is the engine's default")
	f.BoolVar(&s.earlyStop, "early-stop", false, "stop when the validation loss no longer falls")
	f.IntVar(&s.nodes, "nodes", 1, "machines to train on")
	f.StringVar(&s.displayName, "display-name", "", "a name for people")
}

// fill adds what the command line says to a body.
func (s *sftFlags) fill(c *cobra.Command, client *client, body map[string]any) error {
	set(c, body, map[string]setting{"dataset": {"dataset", client.name("datasets", s.dataset)}, "evaluation-dataset": {"evaluationDataset", client.name("datasets", s.evaluation)},
		"eval-auto-carveout": {"evalAutoCarveout", s.carve}, "batch-size": {"batchSize", s.batch}, "batch-size-samples": {"batchSizeSamples", s.samples},
		"early-stop": {"earlyStop", s.earlyStop}, "nodes": {"nodes", s.nodes}, "display-name": {"displayName", s.displayName}})
	s.set(c, client, body)
	if body[spelt(body, "dataset")] == nil {
		return requiredHere("dataset", "dataset")
	}
	return nil
}

func sftCreate() *cobra.Command {
	var flags sftFlags
	var file string
	var watch bool
	c := &cobra.Command{Use: "create [ID]", Short: "Train a model on answers to imitate", Args: arguments(0, 1),
		Example: "  anneal sft create polite --dataset greetings --epochs 8 --watch",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			body, err := jsonFile(c, file)
			if err != nil {
				return err
			}
			if err := flags.fill(c, client, body); err != nil {
				return err
			}
			query := url.Values{}
			if len(args) == 1 {
				query.Set("supervisedFineTuningJobId", args[0])
			}
			var item map[string]any
			if err := client.call(c.Context(), http.MethodPost, client.path("supervisedFineTuningJobs"), query, body, &item); err != nil {
				return err
			}
			if watch {
				if item, err = client.watchJob(c, cell(item, "name")); err != nil {
					return err
				}
			}
			return printItem(c, item, supervisedJobs.details...)
		}}
	flags.add(c)
	fileFlag(c, &file, "job")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show progress until the job ends")
	return c
}

func sftWatch() *cobra.Command {
	return &cobra.Command{Use: "watch ID", Short: "Show a job's progress until it ends", Args: arguments(1, 1), RunE: func(c *cobra.Command, args []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		item, err := client.watchJob(c, client.name("supervisedFineTuningJobs", args[0]))
		if err != nil {
			return err
		}
		return printItem(c, item, supervisedJobs.details...)
	}}
}

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
	command := commandOf(name)
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
		if words := inCommands(cmd, cell(item, statusText)); words != held {
			if live {
				fmt.Fprintln(out)
			}
			if held = words; words != "-" {
				fmt.Fprintln(out, words)
			}
		}
		if err := pause(cmd.Context(), 250*time.Millisecond); err != nil {
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

// metrics reads a job's metrics file, one object a step.
func (c *client) metrics(ctx context.Context, name string) ([]map[string]any, error) {
	var answer struct {
		SignedURL string `json:"signedUrl"`
	}
	if err := c.call(ctx, http.MethodGet, "/v1/"+name+":getMetricsFileEndpoint", nil, nil, &answer); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, answer.SignedURL, nil)
	if err != nil {
		return nil, err
	}
	res, err := c.send(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, refusal(res)
	}
	var rows []map[string]any
	scanner := bufio.NewScanner(res.Body)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var row map[string]any
		if json.Unmarshal(scanner.Bytes(), &row) == nil {
			rows = append(rows, row)
		}
	}
	return rows, scanner.Err()
}

// metricsCommand shows what training measured; figures are those beside the
// ones of every kind of job.
func (k collection) metricsCommand(figures ...column) *cobra.Command {
	return &cobra.Command{Use: "metrics ID", Short: "Show a job's loss and other figures, step by step", Args: arguments(1, 1), RunE: func(c *cobra.Command, args []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		rows, err := client.metrics(c.Context(), client.name(k.name, args[0]))
		if err != nil {
			return err
		}
		return printItems(c, rows, slices.Concat([]column{{"STEP", "step"}, {"EPOCH", "epoch"}, {"LOSS", "train/loss"}}, figures,
			[]column{{"RATE", "learning_rate"}, {"TOKENS", "tokens"}, {"TIME", "time"}})...)
	}}
}
