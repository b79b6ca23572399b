package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"anneal/engines/embedded/tokenizer"
)

// A newTask is a task that the base model cannot perform, but can learn with an adapter.
type newTask struct {
	name   string
	sample func(rng *rand.Rand) example
}

// newTasks are the tasks for which the training defaults are measured. The first one is the task of
// the demonstration in examples/.
var newTasks = []newTask{
	{"packing-codes", packingCode},
	{"vowel-cipher", vowelCipher},
	{"routing", routing},
	{"dates", isoDate},
}

// Numbers of rows of a file for fine-tuning. A quarter of its rows are of base tasks, because the
// model would otherwise forget these.
const (
	newRows  = 300
	oldRows  = 100
	heldRows = 64

	demoEpochs = 8 // number of epochs of the demonstration
)

// writeExamples writes the files of the directory examples/.
func writeExamples(dir string, seed uint64) error {
	var base []string
	for _, e := range heldOutOfBase(200) {
		base = append(base, pairRow(e))
	}
	if err := writeLines(filepath.Join(dir, "base-tasks.jsonl"), base); err != nil {
		return err
	}
	tune, held := tuningRows(newTasks[0], newRows, oldRows, seed)
	if err := writeLines(filepath.Join(dir, newTasks[0].name+".jsonl"), tune); err != nil {
		return err
	}
	var lines []string
	for _, e := range held {
		lines = append(lines, pairRow(e))
	}
	if err := writeLines(filepath.Join(dir, newTasks[0].name+"-heldout.jsonl"), lines); err != nil {
		return err
	}
	return writeRewarded(dir, seed)
}

// heldOutOfBase returns n examples of base tasks that the base model was not trained on.
func heldOutOfBase(n int) []example {
	rng := rand.New(rand.NewPCG(0x62617365, 1))
	var out []example
	for range n {
		out = append(out, draw(rng, true, false))
	}
	return out
}

// tuningRows returns rows for fine-tuning in the dataset format CHAT, and held-out examples of the
// new task t. The rows are fresh rows of the new task, shuffled with old rows of base tasks. No row
// has the key of a held-out example.
func tuningRows(t newTask, fresh, old int, seed uint64) (rows []string, held []example) {
	rng := rand.New(rand.NewPCG(seed, 0x74756e65))
	used := map[string]bool{}
	for len(rows) < fresh {
		e := t.sample(rng)
		used[e.key] = true
		rows = append(rows, chatRow(e))
	}
	for len(held) < heldRows {
		if e := t.sample(rng); !used[e.key] {
			used[e.key] = true
			held = append(held, e)
		}
	}
	for range old {
		rows = append(rows, chatRow(draw(rng, false, false)))
	}
	rng.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	return rows, held
}

func chatRow(e example) string {
	return jsonLine(map[string]any{
		"messages": []tokenizer.Message{{Role: "user", Content: e.prompt}, {Role: "assistant", Content: e.answer}},
	})
}

func pairRow(e example) string {
	return jsonLine(struct {
		Prompt     string `json:"prompt"`
		Completion string `json:"completion"`
	}{e.prompt, e.answer})
}

// jsonLine formats a value as JSON on one line, without escapes for <, > and &.
func jsonLine(value any) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err) // unreachable: strings and maps of strings can always be encoded
	}
	return strings.TrimSpace(b.String())
}

func writeLines(path string, lines []string) error {
	return os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}

// packingCode returns an example of an invented rule. The answer is the first three letters of the
// customer, the number, and the initials of the color and the thing, in upper case.
func packingCode(rng *rand.Rand) example {
	count, color, thing, who := 2+rng.IntN(48), pick(rng, colors), pick(rng, things), pick(rng, firstNames)
	if rng.IntN(2) == 0 {
		w := invented(rng)
		for len(w) < 3 {
			w = invented(rng)
		}
		who = strings.ToUpper(w[:1]) + w[1:]
	}
	code := fmt.Sprintf("%s-%d-%s", strings.ToUpper(who[:min(3, len(who))]), count, strings.ToUpper(color[:1]+thing[:1]))
	order := fmt.Sprintf("%d %s %ss", count, color, thing)
	return example{answer: code, key: order + who, prompt: fmt.Sprintf(pick(rng, []string{
		"Packing code: %s for %s", "Packing code for %s, customer %s", "Pack %s for %s.",
		"What is the packing code of %s for %s?",
	}), order, who)}
}

// vowelCipher returns an example that replaces vowels by digits: a1 e2 i3 o4 u5.
func vowelCipher(rng *rand.Rand) example {
	w := word(rng)
	return example{answer: strings.NewReplacer("a", "1", "e", "2", "i", "3", "o", "4", "u", "5").Replace(w), key: w,
		prompt: fmt.Sprintf(pick(rng, []string{
			"Cipher %s", "Encrypt the word %s.", "Cipher: %s", "What is %s in our cipher?",
		}), w)}
}

// routing returns an example whose answer is the department that handles a customer's sentence.
func routing(rng *rand.Rand) example {
	department := pick(rng, departments)
	text := fmt.Sprintf(pick(rng, department.sentences), pick(rng, subjects))
	return example{answer: department.name, key: text + fmt.Sprint(rng.IntN(1<<30)),
		prompt: fmt.Sprintf(pick(rng, []string{
			"Route: %s", "Which desk? %s", "Who handles this: %s", "%s Which desk is that?",
		}), text)}
}

// isoDate returns an example that converts a written date to year-month-day.
func isoDate(rng *rand.Rand) example {
	m, day, year := rng.IntN(12), 1+rng.IntN(28), 1950+rng.IntN(100)
	text := fmt.Sprintf("%s %d, %d", months[m], day, year)
	if rng.IntN(2) == 0 {
		text = fmt.Sprintf("%d %s %d", day, months[m], year)
	}
	return example{answer: fmt.Sprintf("%d-%02d-%02d", year, m+1, day), key: fmt.Sprint(year, m, day),
		prompt: fmt.Sprintf(pick(rng, []string{
			"ISO date: %s", "Write %s as an ISO date.", "Normalise the date %s", "Date: %s",
		}), text)}
}
