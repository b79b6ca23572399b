package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/examples"
)

// The tasks of the demonstration that are taught without answers to copy: by
// pairs of answers, and by the scores of an evaluator.
const (
	loudlyTask     = "loudly"
	shoutTask      = "shout"
	shoutEvaluator = "shout-evaluator"
	oldTasks       = "base-tasks.jsonl"
	oldPrompts     = 40 // of them, asked to see what is left
)

// A demoMessage is a turn of a row.
type demoMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// prefer teaches by pairs, and measures how often the preferred answer is
// given and whether what the model could before is left.
func (d *demonstration) prefer(ctx context.Context) error {
	d.say("\n5. Prefer: pairs of answers, of which one is liked better (DPO). The base model says nothing loudly")
	if err := d.teach(ctx, "dpoJobs", "dpoJobId", loudlyTask, map[string]any{}, map[string]any{"epochs": 4}); err != nil {
		return err
	}
	var pairs []struct {
		Input struct {
			Messages []demoMessage `json:"messages"`
		} `json:"input"`
		Preferred []demoMessage `json:"preferred_output"`
	}
	if err := exampleRows(loudlyTask+"-heldout.jsonl", &pairs); err != nil {
		return err
	}
	var asked []exchange
	for _, p := range pairs {
		asked = append(asked, exchange{p.Input.Messages[0].Content, p.Preferred[0].Content})
	}
	before, after, err := d.exact(ctx, loudlyTask, asked)
	if err != nil {
		return err
	}
	var old []struct{ Prompt, Completion string }
	if err := exampleRows(oldTasks, &old); err != nil {
		return err
	}
	asked = asked[:0]
	for _, row := range old[:oldPrompts] {
		asked = append(asked, exchange{row.Prompt, row.Completion})
	}
	knew, kept, err := d.exact(ctx, loudlyTask, asked)
	if err != nil {
		return err
	}
	d.say("   the preferred answer: base %d of %d held-out prompts, tuned %d. Right answers to %d prompts of old tasks: %d before, %d after",
		before, len(pairs), after, oldPrompts, knew, kept)
	return nil
}

// exact counts the prompts that the base model and a task's answer as they
// should.
func (d *demonstration) exact(ctx context.Context, task string, asked []exchange) (base, tuned int, err error) {
	for _, one := range asked {
		before, err := d.ask(ctx, "base", one.prompt)
		if err != nil {
			return 0, 0, err
		}
		after, err := d.ask(ctx, task, one.prompt)
		if err != nil {
			return 0, 0, err
		}
		if before == one.right {
			base++
		}
		if after == one.right {
			tuned++
		}
	}
	return base, tuned, nil
}

type exchange struct{ prompt, right string }

// reinforce teaches by scores: the model answers, code in Python judges. Where
// that code cannot run it says what is missing, and goes on.
func (d *demonstration) reinforce(ctx context.Context) error {
	d.say("\n6. Reinforce: the model answers, an evaluator in Python scores. No answer is shown to it")
	ready, err := d.buildEvaluator(ctx)
	if err != nil || !ready {
		return err
	}
	settings := map[string]any{"evaluator": d.name("evaluators", shoutTask), "inferenceParameters": map[string]any{
		"temperature": 1, "responseCandidatesCount": 8, "maxOutputTokens": 16}}
	if err := d.teach(ctx, "reinforcementFineTuningJobs", "reinforcementFineTuningJobId", shoutTask, settings, map[string]any{"epochs": 2}); err != nil {
		return err
	}
	var rows []struct {
		Messages    []demoMessage `json:"messages"`
		GroundTruth string        `json:"ground_truth"`
	}
	if err := exampleRows(shoutTask+"-heldout.jsonl", &rows); err != nil {
		return err
	}
	means := map[string]float64{}
	for _, model := range []string{"base", shoutTask} {
		var samples []any
		for _, row := range rows {
			answer, err := d.ask(ctx, model, row.Messages[0].Content)
			if err != nil {
				return err
			}
			samples = append(samples, map[string]any{"messages": append(slices.Clip(row.Messages), demoMessage{"assistant", answer}), "ground_truth": row.GroundTruth})
		}
		if means[model], err = d.meanScore(ctx, samples); err != nil {
			return err
		}
	}
	d.say("   mean score on %d held-out prompts: base %.2f, tuned %.2f", len(rows), means["base"], means[shoutTask])
	return nil
}

// buildEvaluator uploads the evaluator's code. It answers false where the code
// cannot be run, having said why.
func (d *demonstration) buildEvaluator(ctx context.Context) (bool, error) {
	dir := filepath.Join(d.dir, shoutEvaluator)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	const file = "evaluator.py"
	code, err := examples.Files.ReadFile(path.Join(shoutEvaluator, file))
	if err != nil {
		return false, err
	}
	if err := os.WriteFile(filepath.Join(dir, file), code, 0o600); err != nil {
		return false, err
	}
	body := map[string]any{"evaluatorId": shoutTask, "evaluator": map[string]any{"displayName": "Shouts", "entryPoint": file + "::evaluate"}}
	if err := d.call(ctx, http.MethodPost, d.path("evaluators"), nil, body, nil); err != nil {
		return false, err
	}
	files, done, err := readCode(dir)
	defer done()
	if err != nil {
		return false, err
	}
	if _, err := uploadCode(d.cmd, d.client, shoutTask, files, true); err != nil {
		d.say("   This act is left out, since the code cannot be run here: %v", err)
		return false, ctx.Err()
	}
	return true, nil
}

func (d *demonstration) meanScore(ctx context.Context, samples []any) (float64, error) {
	var answer struct{ Results []struct{ Score float64 } }
	body := map[string]any{"evaluator": map[string]any{"name": d.name("evaluators", shoutTask)}, "sampleData": samples}
	if err := d.call(ctx, http.MethodPost, d.path("evaluators:previewEvaluator"), nil, body, &answer); err != nil {
		return 0, err
	}
	sum := 0.0
	for _, result := range answer.Results {
		sum += result.Score
	}
	return sum / float64(max(len(answer.Results), 1)), nil
}

// teach uploads a task's rows, trains the base model on them by a job of a kind
// and deploys what comes of it under the task's name.
func (d *demonstration) teach(ctx context.Context, kind, idParam, task string, job, training map[string]any) error {
	file := task + ".jsonl"
	data, err := examples.Files.ReadFile(file)
	if err != nil {
		return err
	}
	local := filepath.Join(d.dir, file)
	if err := os.WriteFile(local, data, 0o600); err != nil {
		return err
	}
	d.say("   first of %d rows: %.200s", bytes.Count(data, []byte("\n")), firstLine(data))
	body := map[string]any{"datasetId": task, "dataset": map[string]any{"displayName": strings.ToUpper(task[:1]) + task[1:]}}
	if err := d.call(ctx, http.MethodPost, d.path("datasets"), nil, body, nil); err != nil {
		return err
	}
	if _, err := upload(ctx, d.client, task, local); err != nil {
		return err
	}
	training["baseModel"], training["outputModel"] = domain.DefaultBaseModel, task
	job["dataset"], job["trainingConfig"] = d.name("datasets", task), training
	var item map[string]any
	if err := d.call(ctx, http.MethodPost, d.path(kind)+"?"+idParam+"="+task, nil, job, &item); err != nil {
		return err
	}
	if _, err := watchJob(d.cmd, d.client, cell(item, "name")); err != nil {
		return err
	}
	deployment := map[string]any{"baseModel": d.name("models", task), "minReplicaCount": 1}
	if err := d.call(ctx, http.MethodPost, d.path("deployments")+"?deploymentId="+task, nil, deployment, nil); err != nil {
		return err
	}
	_, err = watchDeployment(d.cmd, d.client, d.name("deployments", task))
	return err
}

// exampleRows reads a file of examples into a slice.
func exampleRows[T any](file string, rows *[]T) error {
	data, err := examples.Files.ReadFile(file)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(data) {
		var row T
		if err := json.Unmarshal(line, &row); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		*rows = append(*rows, row)
	}
	return nil
}
