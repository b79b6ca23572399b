package main

import (
	"context"
	"log"
	"os"
	"path/filepath"
	"time"

	"anneal/engines"
	"anneal/engines/embedded/train"
)

// A tuning is the result of fine-tuning a model on a new task.
type tuning struct {
	before, after, prompts             int // new task: exact answers before and after tuning, of so many prompts
	baseBefore, baseAfter, basePrompts int // the same numbers for the prompts of base tasks
	took                               time.Duration
	result                             engines.TrainResult
}

// tune fine-tunes the model in base on rows of a new task and of base tasks, in a new directory
// below dir. fresh and kept are the numbers of these rows. It evaluates the result on held-out
// prompts of the new task, and on the examples old of base tasks.
func tune(
	ctx context.Context, base, dir string, t newTask, fresh, kept int, settings engines.TrainSettings, old []example,
	seed uint64,
) (out tuning, err error) {
	rows, held := tuningRows(t, fresh, kept, seed)
	out.prompts, out.basePrompts = len(held), len(old)
	work := filepath.Join(dir, t.name)
	if err := os.MkdirAll(work, 0o755); err != nil {
		return out, err
	}
	file := filepath.Join(work, "rows.jsonl")
	if err := writeLines(file, rows); err != nil {
		return out, err
	}
	begin := time.Now()
	out.result, err = train.Trainer{}.Train(ctx, engines.TrainRequest{
		BaseDir: base, DataFiles: []string{file}, WorkDir: work, Parallelism: 2, Settings: settings,
		Seed: seed,
	}, silent{})
	if err != nil {
		return out, err
	}
	out.took = time.Since(begin)
	before, after := engines.ModelFiles{Dir: base}, engines.ModelFiles{Dir: out.result.Dir}
	if out.result.Adapter {
		after = engines.ModelFiles{Dir: base, AdapterDir: out.result.Dir}
	}
	evaluate := func(files engines.ModelFiles, prompts []example, correct *int) {
		if err == nil {
			*correct, err = exact(ctx, files, prompts)
		}
	}
	evaluate(before, held, &out.before)
	evaluate(after, held, &out.after)
	evaluate(before, old, &out.baseBefore)
	evaluate(after, old, &out.baseAfter)
	return out, err
}

// tuneAll fine-tunes the model in base on each new task with the settings, and prints the results.
func tuneAll(ctx context.Context, base string, settings engines.TrainSettings) error {
	dir, err := os.MkdirTemp("", "tune")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, t := range newTasks {
		got, err := tune(ctx, base, dir, t, newRows, oldRows, settings, heldOutOfBase(100), 1)
		if err != nil {
			return err
		}
		log.Printf(
			"%-14s exact answers %2d → %2d of %d   base tasks %d → %d of %d   %d steps, %d tokens, %s", t.name, got.before,
			got.after,
			got.prompts,
			got.baseBefore, got.baseAfter, got.basePrompts,
			got.result.Steps, got.result.Tokens, got.took.Round(100*time.Millisecond))
	}
	return nil
}

// silent is an engines.TrainWatcher that does nothing.
type silent struct{}

func (silent) Step(engines.Metrics)                          {}
func (silent) Checkpoint(context.Context, int, string) error { return nil }
