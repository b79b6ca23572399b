package main

import (
	"math/rand/v2"
	"path/filepath"
	"strings"

	"anneal/engines/embedded/tokenizer"
)

// Numbers of rows in the files of two tasks whose rows contain no answer to imitate: "shout" is
// trained with the scores of an evaluator, and "loudly" with preference pairs. Both tasks need only
// an ability that the base model has, in a new wording.
const (
	shoutRows     = 160
	loudlyRows    = 160
	unlabelledOut = 48 // number of held-out rows of each task
)

// writeRewarded writes the files with the training rows and the held-out rows of the tasks "shout"
// and "loudly".
func writeRewarded(dir string, seed uint64) error {
	for _, task := range []struct {
		name string
		rows int
		row  func(word string) string
	}{{"shout", shoutRows, shoutRow}, {"loudly", loudlyRows, loudlyRow}} {
		words := distinctWords(rand.New(rand.NewPCG(seed, uint64(task.rows)+uint64(len(task.name)))), task.rows+unlabelledOut)
		var lines []string
		for _, w := range words {
			lines = append(lines, task.row(w))
		}
		if err := writeLines(filepath.Join(dir, task.name+".jsonl"), lines[:task.rows]); err != nil {
			return err
		}
		if err := writeLines(filepath.Join(dir, task.name+"-heldout.jsonl"), lines[task.rows:]); err != nil {
			return err
		}
	}
	return nil
}

func distinctWords(rng *rand.Rand, n int) (words []string) {
	used := map[string]bool{}
	for len(words) < n {
		w := invented(rng)
		if rng.IntN(5) == 0 {
			w = pick(rng, realWords)
		}
		if len(w) >= 3 && !used[w] {
			used[w] = true
			words = append(words, w)
		}
	}
	return words
}

// shoutRow returns a row for reinforcement learning. Its field besides messages is passed to the
// evaluator.
func shoutRow(word string) string {
	return jsonLine(struct {
		Messages    []tokenizer.Message `json:"messages"`
		GroundTruth string              `json:"ground_truth"`
	}{[]tokenizer.Message{{Role: "user", Content: "Shout: " + word}}, strings.ToUpper(word)})
}

// loudlyRow returns a preference pair: the base model would answer "word loudly", and the preferred
// answer is WORD LOUDLY.
func loudlyRow(word string) string {
	answer := func(text string) []tokenizer.Message { return []tokenizer.Message{{Role: "assistant", Content: text}} }
	return jsonLine(struct {
		Input        any                 `json:"input"`
		Preferred    []tokenizer.Message `json:"preferred_output"`
		NonPreferred []tokenizer.Message `json:"non_preferred_output"`
	}{map[string]any{"messages": []tokenizer.Message{{Role: "user", Content: "Say " + word + " loudly"}}},
		answer(strings.ToUpper(word + " loudly")), answer(word + " loudly")})
}
