package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
)

// write writes the model and its tokenizer to a directory.
func write(dir string, tokens *tokenizer.Tokenizer, weights *llama.Weights) error {
	if err := weights.Save(dir); err != nil {
		return err
	}
	if err := tokens.Save(dir); err != nil {
		return err
	}
	generation, err := json.MarshalIndent(map[string]any{
		"bos_token_id": tokens.BOS(), "eos_token_id": tokens.EOS(), "do_sample": false,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "generation_config.json"), append(generation, '\n'), 0o644)
}

// card returns the model card: description, origin and measured accuracy.
func card(o options, weights *llama.Weights, results []result) string {
	var b strings.Builder
	c := &weights.Config
	fmt.Fprintf(&b, `---
license: apache-2.0
language: en
tags: [llama, instruction, synthetic]
---

# The base model

A Llama of %d parameters (hidden %d, %d layers, %d heads, window %d tokens) over bytes, small enough to train and serve
on one processor core in seconds. It knows ten tasks of a generated grammar and nothing else. It is no source of facts.

`, c.Parameters(), c.HiddenSize, c.Layers, c.Heads, c.MaxPositions)
	b.WriteString("## What it knows\n\n" +
		"Exact answers to prompts that were kept out of training, greedy, given as raw text:\n\n")
	b.WriteString("| task | exact | a prompt | its answer |\n|---|---|---|---|\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %d of %d | `%s` | `%s` |\n", r.task, r.right, r.asked, r.sample.prompt, r.sample.answer)
	}
	fmt.Fprintf(&b, `
One key in twelve was kept out: the two numbers of a sum or difference, the words of a length, `+
		`reversal, upper case, last
word or JSON task, the review of a sentiment task. Capitals are fifty facts that the model has all `+
		`seen; there the wording of the
whole prompt was kept out. Numbers are 0 to 99. Five words in eight are invented syllables or `+
		`noise; those to repeat may hold any
character.

## Format

The tokens are the 256 bytes and four markers. A conversation begins with the marker bos; each message is followed by a
marker: user after a system message, assistant after a user's, end after an assistant's. The last `+
		`two are learnt together with
the answer, so a raw prompt makes the model set the marker assistant itself; markers are no text `+
		`and never show. Text that
spells a marker stays text.

## Tuning it

A training file of one new task alone overwrites the old tasks. Put about a quarter of rows of the `+
		`old tasks into the file
(examples/packing-codes.jsonl shows how); nothing is mixed in silently.

## Made by

	go run ./engines/embedded/pretrain -seed %d -steps %d -batch %d -rate %g -out <directory>

at kernel level %s. The same command at the same level makes the same bits, on any number of cores.
Weights %s.
`, o.seed, o.steps, o.batch, o.rate, kernel.Level(), weights.Hash())
	return b.String()
}
