package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/examples"
	"anneal/internal/datadir"
	"anneal/internal/server"
)

// The demo's task: a rule that the base model has never seen.
const (
	demoTraining = "packing-codes.jsonl"
	demoHeldOut  = "packing-codes-heldout.jsonl"
	demoEpochs   = 8
)

func demoCommand() *cobra.Command {
	var keep string
	c := &cobra.Command{Use: "demo", Short: "Teach the base model a new task, deploy both and compare their answers; transcribe speech", Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			dir := keep
			if dir == "" {
				temp, err := os.MkdirTemp("", "anneal-demo-")
				if err != nil {
					return err
				}
				defer os.RemoveAll(temp)
				dir = temp
			}
			return demo(c, dir)
		}}
	c.Flags().StringVar(&keep, "data", "", "folder to keep everything in (default: a temporary one)")
	return c
}

// demo is the main job from end to end, on a server of its own.
func demo(c *cobra.Command, dir string) error {
	began := time.Now()
	logger := newLogger()
	if os.Getenv("ANNEAL_LOG") == "" {
		logger = newErrorLogger()
	}
	if _, err := os.Stat(filepath.Join(dir, "server", "version")); err == nil {
		return fmt.Errorf("%s holds an earlier demonstration: choose another folder, or look at it with `anneal serve --data %s`", dir, filepath.Join(dir, "server"))
	}
	flags := server.DefaultFlags()
	flags.Data, flags.Listen = filepath.Join(dir, "server"), "127.0.0.1:0"
	ctx, stop := context.WithCancel(c.Context())
	defer stop()
	running, err := server.Start(ctx, flags, logger)
	if err != nil {
		return err
	}
	d := &demonstration{c, &client{Context: running.Context()}, dir}
	err = d.run(ctx)
	stop()
	if ended := running.Wait(ctx); err == nil {
		err = ended
	}
	if err == nil {
		d.say("\nDone in %s. Next: `make run`, and the README.", time.Since(began).Round(100*time.Millisecond))
	}
	return err
}

type demonstration struct {
	cmd *cobra.Command
	*client
	dir string
}

func (d *demonstration) say(format string, args ...any) {
	fmt.Fprintf(d.cmd.OutOrStdout(), format+"\n", args...)
}

func (d *demonstration) run(ctx context.Context) error {
	d.say("A server with everything embedded is ready at %s\n", d.Address)
	if err := d.train(ctx); err != nil {
		return err
	}
	if err := d.deploy(ctx); err != nil {
		return err
	}
	if err := d.compareAnswers(ctx); err != nil {
		return err
	}
	if err := d.history(ctx); err != nil {
		return err
	}
	if err := d.prefer(ctx); err != nil {
		return err
	}
	if err := d.reinforce(ctx); err != nil {
		return err
	}
	if err := d.listen(ctx); err != nil {
		return err
	}
	d.say("\n8. Is the log true? Every event is folded anew and compared with what is served")
	report, err := server.Verify(ctx, datadir.Dir(filepath.Join(d.dir, "server")))
	if err != nil {
		return err
	}
	printVerification(d.cmd.OutOrStdout(), report)
	if !report.Equal {
		return fmt.Errorf("the log and the world differ")
	}
	return nil
}

func (d *demonstration) train(ctx context.Context) error {
	data, err := examples.Files.ReadFile(demoTraining)
	if err != nil {
		return err
	}
	path := filepath.Join(d.dir, demoTraining)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return err
	}
	d.say("1. Upload examples/%s: %d rows of a task that the base model cannot do", demoTraining, bytes.Count(data, []byte("\n")))
	d.say("   first row: %.140s", firstLine(data))
	body := map[string]any{"datasetId": "packing-codes", "dataset": map[string]any{"displayName": "Packing codes"}}
	if err := d.call(ctx, http.MethodPost, d.path("datasets"), nil, body, nil); err != nil {
		return err
	}
	dataset, err := upload(ctx, d.client, "packing-codes", path)
	if err != nil {
		return err
	}
	d.say("   %s rows checked, format %s, state %s", cell(dataset, "exampleCount"), cell(dataset, "format"), cell(dataset, "state"))
	d.say("\n2. Train: LoRA of rank 8, %d epochs, on this machine's CPU", demoEpochs)
	job := map[string]any{"dataset": d.name("datasets", "packing-codes"), "baseModel": domain.DefaultBaseModel, "epochs": demoEpochs, "outputModel": "packing-codes"}
	var item map[string]any
	if err := d.call(ctx, http.MethodPost, d.path("supervisedFineTuningJobs")+"?supervisedFineTuningJobId=packing-codes", nil, job, &item); err != nil {
		return err
	}
	_, err = watchJob(d.cmd, d.client, cell(item, "name"))
	return err
}

func firstLine(data []byte) string {
	line, _, _ := bytes.Cut(data, []byte("\n"))
	return string(line)
}

func (d *demonstration) deploy(ctx context.Context) error {
	d.say("\n3. Deploy the base model and the tuned one")
	for id, model := range map[string]string{"base": domain.DefaultBaseModel, "tuned": d.name("models", "packing-codes")} {
		body := map[string]any{"baseModel": model, "minReplicaCount": 1}
		if err := d.call(ctx, http.MethodPost, d.path("deployments")+"?deploymentId="+id, nil, body, nil); err != nil {
			return err
		}
	}
	for _, id := range []string{"base", "tuned"} {
		if _, err := watchDeployment(d.cmd, d.client, d.name("deployments", id)); err != nil {
			return err
		}
	}
	return nil
}

// shown is how many of the held-out prompts are printed; all are asked.
const shown = 8

func (d *demonstration) compareAnswers(ctx context.Context) error {
	var rows []struct{ Prompt, Completion string }
	if err := exampleRows(demoHeldOut, &rows); err != nil {
		return err
	}
	d.say("\n4. Ask both %d prompts that were held out (the first %d are shown)", len(rows), shown)
	w := tabwriter.NewWriter(d.cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "   PROMPT\tRIGHT\tBASE\tTUNED")
	base, tuned := 0, 0
	for i, row := range rows {
		before, err := d.ask(ctx, "base", row.Prompt)
		if err != nil {
			return err
		}
		after, err := d.ask(ctx, "tuned", row.Prompt)
		if err != nil {
			return err
		}
		if before == row.Completion {
			base++
		}
		if after == row.Completion {
			tuned++
		}
		if i < shown {
			fmt.Fprintf(w, "   %s\t%s\t%s\t%s\n", row.Prompt, row.Completion, mark(before, row.Completion), mark(after, row.Completion))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	d.say("   exactly right: base %d of %d, tuned %d of %d (%.0f %%)", base, len(rows), tuned, len(rows), 100*float64(tuned)/float64(len(rows)))
	return nil
}

func mark(answer, right string) string {
	answer = strings.Join(strings.Fields(answer), " ")
	if runes := []rune(answer); len(runes) > 24 {
		answer = string(runes[:24]) + "…"
	}
	if answer == right {
		return answer + " ✓"
	}
	return answer + " ✗"
}

func (d *demonstration) ask(ctx context.Context, deployment, prompt string) (string, error) {
	var answer completion
	err := d.call(ctx, http.MethodPost, "/inference/v1/completions", nil, map[string]any{
		"model": d.name("deployments", deployment), "prompt": prompt, "max_tokens": 64, "temperature": 0}, &answer)
	if err != nil || len(answer.Choices) == 0 {
		return "", err
	}
	return answer.Choices[0].Text, nil
}

func (d *demonstration) history(ctx context.Context) error {
	d.say("\n   The job's history, as the log keeps it")
	events, err := d.list(ctx, "/v1/"+d.name("supervisedFineTuningJobs", "packing-codes")+"/events", "events", nil)
	if err != nil {
		return err
	}
	return printEvents(d.cmd.OutOrStdout(), events)
}

func printEvents(out io.Writer, events []map[string]any) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, e := range events {
		fmt.Fprintf(w, "   %s\t%s\t%s\t%s\t%s\n", cell(e, "position"), cell(e, "time"), cell(e, "type"), cell(e, "state"), cell(e, "actor"))
	}
	return w.Flush()
}
