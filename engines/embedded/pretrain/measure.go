package main

import (
	"fmt"
	"math/rand/v2"

	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
)

// A result is a task's share of exact answers on held-out prompts.
type result struct {
	task         string
	right, asked int
	sample       example
}

// perTask is how many held-out prompts each task is measured on.
const perTask = 200

// measure asks the model held-out prompts as raw text, without any marker.
func measure(tokens *tokenizer.Tokenizer, weights *llama.Weights, workers int) ([]result, error) {
	net := llama.NewNet(weights, nil, workers)
	rng := rand.New(rand.NewPCG(0x6d656173757265, 1))
	var out []result
	for _, t := range tasks {
		r := result{task: t.name, asked: perTask}
		var asked []example
		for range perTask {
			asked = append(asked, drawOf(t, rng, true))
		}
		for i, answer := range answers(net, tokens, asked) {
			if answer == asked[i].answer {
				r.right++
			}
		}
		r.sample = asked[0]
		fmt.Printf("%-12s %3d of %d\n", r.task, r.right, r.asked)
		out = append(out, r)
	}
	return out, nil
}

// answers completes prompts greedily, all side by side, without a cache: the
// serving path is not needed to make the model that it is tested with.
func answers(net *llama.Net, tokens *tokenizer.Tokenizer, asked []example) []string {
	const most = 64
	sequences, prompts := make([][]int32, len(asked)), make([]int, len(asked))
	for i, e := range asked {
		for _, id := range tokens.Prompt(e.prompt) {
			sequences[i] = append(sequences[i], int32(id))
		}
		prompts[i] = len(sequences[i])
	}
	done := make([]bool, len(asked))
	pass := llama.NewPass(net)
	for range most {
		batch, open := &llama.Batch{}, []int(nil)
		for i, s := range sequences {
			if done[i] {
				continue
			}
			open = append(open, i)
			batch.Starts = append(batch.Starts, int32(len(batch.Tokens)))
			batch.Tokens = append(batch.Tokens, s...)
			for range len(s) - 1 {
				batch.Targets = append(batch.Targets, -1)
			}
			batch.Targets = append(batch.Targets, 0) // any token: only the distribution is wanted
		}
		if len(open) == 0 {
			break
		}
		pass.Forward(batch)
		for row, i := range open {
			next := likeliest(pass.Probabilities().Row(row))
			sequences[i] = append(sequences[i], next)
			done[i] = int(next) == tokens.EOS() || len(sequences[i]) >= net.Weights.Config.MaxPositions
		}
	}
	out := make([]string, len(asked))
	for i, s := range sequences {
		var ids []int
		for _, t := range s[prompts[i]:] {
			ids = append(ids, int(t))
		}
		out[i] = tokens.Decode(ids)
	}
	return out
}

func likeliest(p []float32) int32 {
	top := kernel.Max(p)
	for i, v := range p {
		if v == top {
			return int32(i)
		}
	}
	return 0
}
