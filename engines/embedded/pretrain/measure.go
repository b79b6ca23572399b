package main

import (
	"context"
	"errors"
	"log"
	"math/rand/v2"
	"strings"
	"sync"

	"anneal/engines"
	"anneal/engines/embedded/serve"
)

// A result is the number of held-out prompts of a task, and the number of those that the model
// answers exactly.
type result struct {
	task         string
	right, asked int
	sample       example
}

// perTask is the number of held-out prompts of each task.
const perTask = 200

// measure evaluates the model in dir on the held-out prompts of every task.
func measure(ctx context.Context, dir string) ([]result, error) {
	rng := rand.New(rand.NewPCG(0x6d656173757265, 1))
	var out []result
	for _, t := range tasks {
		r := result{task: t.name, asked: perTask}
		var asked []example
		for range perTask {
			asked = append(asked, drawOf(t, rng, true))
		}
		right, err := exact(ctx, engines.ModelFiles{Dir: dir}, asked)
		if err != nil {
			return nil, err
		}
		r.right, r.sample = right, asked[0]
		log.Printf("%-12s %3d of %d", r.task, r.right, r.asked)
		out = append(out, r)
	}
	return out, nil
}

// exact returns the number of prompts that the model answers exactly, with greedy decoding. The
// prompts are plain text without special tokens.
func exact(ctx context.Context, files engines.ModelFiles, asked []example) (right int, err error) {
	model, err := serve.New(serve.Options{}).Load(ctx, files)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	correct, failed := make([]bool, len(asked)), make([]error, len(asked))
	var wg sync.WaitGroup
	for i, e := range asked {
		wg.Go(func() {
			var answer strings.Builder
			_, failed[i] = model.Complete(
				ctx, engines.CompletionRequest{Prompt: e.prompt, MaxTokens: 128}, func(c engines.Chunk) error {
					answer.WriteString(c.Text)
					return nil
				})
			correct[i] = answer.String() == e.answer
		})
	}
	wg.Wait()
	for _, ok := range correct {
		if ok {
			right++
		}
	}
	return right, errors.Join(failed...)
}
