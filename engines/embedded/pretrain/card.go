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

// write writes a model, its tokenizer and its generation settings to dir.
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

// card returns the model card: the description of the model, its origin, and its accuracy on each
// task.
func card(o options, weights *llama.Weights, results []result) string {
	var b strings.Builder
	c := &weights.Config
	fmt.Fprintf(&b, `---
license: apache-2.0
language: en
tags: [llama, instruction, synthetic]
---

# The base model

A Llama of %d parameters (hidden %d, %d layers, %d heads, window %d tokens) over bytes, small enough to
train and serve on one processor core in seconds. It performs ten tasks of a generated grammar only. Do
not rely on it for facts.

`, c.Parameters(), c.HiddenSize, c.Layers, c.Heads, c.MaxPositions)
	b.WriteString("## Accuracy\n\n" +
		"The table has the number of exact answers to held-out prompts, which are raw text and are decoded greedily.\n\n")
	b.WriteString("| task | exact answers | example prompt | answer |\n|---|---|---|---|\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %d of %d | `%s` | `%s` |\n", r.task, r.right, r.asked, r.sample.prompt, r.sample.answer)
	}
	fmt.Fprintf(&b, `
One key in twelve was held out. The key of an example is the two numbers of a sum or difference, the words of a
length, reversal, upper case, last word or JSON task, or the review of a sentiment task. The capitals are fifty facts,
all of which the model was trained on; their key is the whole prompt. Numbers are 0 to 99. Five words in eight are
invented syllables or noise, and words to repeat may contain any character.

## Format

The tokens are the 256 bytes and four special tokens. A conversation begins with the token bos. A token follows each
message: user after a system message, assistant after a user message, end after an assistant message. The model is
trained to generate the last two with the answer, so it generates the token assistant itself after a raw prompt.
Special tokens do not appear in decoded text, and text that spells a special token is encoded as bytes.

## Fine-tuning

Fine-tuning on a new task alone overwrites the other tasks. To keep them, make about a quarter of the training rows
examples of these tasks, as examples/packing-codes.jsonl does. The engine does not add such rows.

## Reproducing the model

	go run ./engines/embedded/pretrain -seed %d -steps %d -batch %d -rate %g -out <directory>

at kernel level %s. The command gives the same bits at the same kernel level, on any number of cores.
Weights %s.
`, o.seed, o.steps, o.batch, o.rate, kernel.Level(), weights.Hash())
	return b.String()
}
