package main

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"strings"
)

// An example is a prompt with its only correct answer.
type example struct {
	task, prompt, answer string
	// key decides whether the example is held out, so that no training example has the key of a
	// held-out one. It is the numbers, the word or, for tasks with few different prompts, the whole
	// prompt.
	key string
}

// A task generates examples. Its weights are relative to the sums over all tasks.
type task struct {
	name   string
	first  int // weight in the first fifth of the training
	share  int // weight in the rest of the training
	sample func(rng *rand.Rand) example
}

// tasks are the tasks of the base model. In the first fifth of the training, copying has the
// largest weight, because the model learns no other task without it. Then arithmetic has the
// largest weight, because it is the hardest.
var tasks = []task{
	{"repeat", 30, 4, repeat},
	{"last", 12, 4, lastWord},
	{"upper", 12, 4, upper},
	{"json", 14, 6, object},
	{"reverse", 14, 13, reverse},
	{"length", 4, 9, length},
	{"capital", 4, 7, capital},
	{"sentiment", 2, 3, sentiment},
	{"sum", 4, 26, sum},
	{"difference", 4, 28, difference},
}

// heldOut reports whether an example is not used for training: one key in twelve is held out.
func heldOut(e example) bool {
	h := fnv.New32a()
	h.Write([]byte(e.task + "\x00" + e.key))
	return h.Sum32()%12 == 0
}

// draw generates an example of a random task: a held-out one if held is true, otherwise one for
// training. first selects the task weights of the first fifth of the training.
func draw(rng *rand.Rand, held, first bool) example {
	share := func(t *task) int {
		if first {
			return t.first
		}
		return t.share
	}
	total := 0
	for i := range tasks {
		total += share(&tasks[i])
	}
	n := rng.IntN(total)
	for i := range tasks {
		if n < share(&tasks[i]) {
			return drawOf(tasks[i], rng, held)
		}
		n -= share(&tasks[i])
	}
	panic("unreachable: n is less than the sum of the weights")
}

// drawOf generates an example of task t: a held-out one if held is true, otherwise one for
// training.
func drawOf(t task, rng *rand.Rand, held bool) example {
	for {
		e := t.sample(rng)
		e.task = t.name
		e.prompt = politely(rng, e.prompt)
		if e.key == "" {
			e.key = e.prompt
		}
		if heldOut(e) == held {
			return e
		}
	}
}

func pick[T any](rng *rand.Rand, from []T) T { return from[rng.IntN(len(from))] }

// ask returns one of several wordings of a prompt, formatted with args.
func ask(rng *rand.Rand, wordings []string, args ...any) string {
	return fmt.Sprintf(pick(rng, wordings), args...)
}

// politely varies the wording of a prompt without changing its meaning.
func politely(rng *rand.Rand, prompt string) string {
	switch rng.IntN(12) {
	case 0:
		return "Please answer: " + prompt
	case 1:
		return "Hi! " + prompt
	case 2:
		return prompt + " Thanks!"
	case 3:
		return "Question: " + prompt
	case 4:
		return "Task: " + prompt
	case 5:
		return strings.ToLower(prompt[:1]) + prompt[1:]
	}
	return prompt
}

// invented returns a word of one to three syllables that no lexicon contains.
func invented(rng *rand.Rand) string {
	var b strings.Builder
	for range 1 + rng.IntN(3) {
		b.WriteString(pick(rng, onsets) + pick(rng, vowels) + pick(rng, codas))
	}
	word := b.String()
	return word[:min(len(word), 9)]
}

// noise returns random letters and digits, so that the model also learns to copy strings that are
// no words.
func noise(rng *rand.Rand) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	b := make([]byte, 3+rng.IntN(5))
	for i := range b {
		b[i] = letters[rng.IntN(len(letters))]
	}
	return string(b)
}

// symbols returns random characters: printable ASCII, or letters and symbols of two to four bytes.
// It trains the bytes that other tasks do not use, because an adapter, which does not change the
// embeddings, could never learn to write these.
func symbols(rng *rand.Rand) string {
	scripts := [][2]rune{
		{'!', '~'}, {'!', '~'}, {'!', '~'}, {'¡', 'ſ'}, {'Α', 'ω'}, {'А', 'я'}, {'\u0590', '\u07ff'},
		{'一', '龥'}, {'ぁ', 'ヿ'}, {'🌀', '🙏'},
	}
	script := pick(rng, scripts)
	b := make([]rune, 1+rng.IntN(6))
	for i := range b {
		b[i] = script[0] + rng.Int32N(script[1]-script[0]+1)
	}
	return string(b)
}

// anything returns a word or, one time in four, the result of symbols.
func anything(rng *rand.Rand) string {
	if rng.IntN(4) == 0 {
		return symbols(rng)
	}
	return word(rng)
}

func word(rng *rand.Rand) string {
	switch rng.IntN(8) {
	case 0, 1, 2:
		return pick(rng, realWords)
	case 3:
		return noise(rng)
	}
	return invented(rng)
}

func name(rng *rand.Rand) string {
	if rng.IntN(2) == 0 {
		return pick(rng, firstNames)
	}
	w := invented(rng)
	return strings.ToUpper(w[:1]) + w[1:]
}

func capital(rng *rand.Rand) example {
	c := pick(rng, capitals)
	return example{answer: c[1], prompt: ask(rng, []string{
		"What is the capital of %s?", "Name the capital of %s.", "Which city is the capital of %s?", "Capital of %s?",
		"Tell me the capital city of %s.", "The capital of %s is", "%s: what is its capital?",
	}, c[0])}
}

func repeat(rng *rand.Rand) example {
	words := make([]string, 1+rng.IntN(5))
	for i := range words {
		words[i] = anything(rng)
	}
	text := strings.Join(words, " ")
	return example{answer: text, key: text, prompt: ask(rng, []string{
		"Repeat: %s", "Say %s", "Repeat after me: %s", "Copy this text: %s", "Echo %s", "Write exactly this: %s",
	}, text)}
}

func object(rng *rand.Rand) example {
	var parts, fields, values []string
	for _, i := range rng.Perm(len(fieldNames) + len(numberFields))[:1+rng.IntN(3)] {
		if i < len(fieldNames) {
			field, value := fieldNames[i], word(rng)
			if field == "name" || rng.IntN(3) == 0 {
				value = name(rng)
			}
			parts = append(parts, field+" "+value)
			fields, values = append(fields, fmt.Sprintf("%q:%q", field, value)), append(values, value)
			continue
		}
		field, value := numberFields[i-len(fieldNames)], strconv.Itoa(rng.IntN(1000))
		parts = append(parts, field+" "+value)
		fields, values = append(fields, fmt.Sprintf("%q:%s", field, value)), append(values, value)
	}
	list := strings.Join(parts, pick(rng, []string{" and ", ", ", "; "}))
	return example{
		answer: "{" + strings.Join(fields, ",") + "}", key: strings.Join(values, " "), prompt: ask(rng, []string{
			"Write JSON with %s.", "Make a JSON object: %s", "Turn this into JSON: %s", "Give me %s as JSON.",
			"JSON for %s, please.",
			"Encode as JSON: %s",
		}, list),
	}
}

func length(rng *rand.Rand) example {
	w := word(rng)
	return example{answer: strconv.Itoa(len(w)), key: w, prompt: ask(rng, []string{
		"How many letters are in %s?", "Count the letters of %s.", "How long is the word %s?", "What is the length of %s?",
		"Number of characters in %s?", "Tell me how many characters %s has.",
	}, quoted(rng, w))}
}

func reverse(rng *rand.Rand) example {
	w := word(rng)
	b := []byte(w)
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return example{answer: string(b), key: w, prompt: ask(rng, []string{
		"Reverse the word %s.", "Write %s backwards.", "Spell %s from the end to the start.", "Reverse: %s",
		"What is %s spelled backwards?", "Turn %s around.",
	}, quoted(rng, w))}
}

func upper(rng *rand.Rand) example {
	w := word(rng)
	if rng.IntN(3) == 0 {
		w += " " + word(rng)
	}
	return example{answer: strings.ToUpper(w), key: w, prompt: ask(rng, []string{
		"Write %s in capital letters.", "Make %s upper case.", "Upper case: %s", "Convert %s to uppercase.", "Shout %s!",
		"Put %s in capitals.",
	}, quoted(rng, w))}
}

func lastWord(rng *rand.Rand) example {
	words := make([]string, 2+rng.IntN(4))
	for i := range words {
		words[i] = anything(rng)
	}
	return example{answer: words[len(words)-1], key: strings.Join(words, " "), prompt: ask(rng, []string{
		"What is the last word of: %s", "Give only the final word of this: %s", "Last word? %s",
		"Repeat the word at the end: %s",
		"Which word comes last in %s",
	}, strings.Join(words, " "))}
}

// quoted sometimes puts a word in quotation marks.
func quoted(rng *rand.Rand, w string) string {
	switch rng.IntN(5) {
	case 0:
		return `"` + w + `"`
	case 1:
		return "'" + w + "'"
	}
	return w
}

func sentiment(rng *rand.Rand) example {
	phrase, answer := pick(rng, goodPhrases), "positive"
	if rng.IntN(2) == 0 {
		phrase, answer = pick(rng, badPhrases), "negative"
	}
	review := fmt.Sprintf(
		pick(rng, []string{"The %s was %s.", "This %s is %s.", "I think the %s was %s.", "Our %s: %s!", "What a %s, %s."}),
		pick(rng, subjects), phrase)
	return example{answer: answer, key: review, prompt: ask(rng, []string{
		"Positive or negative? %s", "What is the sentiment of: %s", "Is this review positive or negative? %s",
		"Sentiment: %s",
		"Classify the review: %s", "Did they like it? Say positive or negative. %s",
	}, review)}
}

func sum(rng *rand.Rand) example {
	a, b := number(rng), number(rng)
	return example{answer: strconv.Itoa(a + b), key: fmt.Sprint(min(a, b), max(a, b)), prompt: ask(rng, []string{
		"What is %d plus %d?", "%d + %d =", "Add %d and %d.", "Compute %d + %d.", "What is the sum of %d and %d?",
		"How much is %d+%d?",
		"I have %d and get %d more. How many do I have?",
	}, a, b)}
}

func difference(rng *rand.Rand) example {
	a, b := number(rng), number(rng)
	if a < b {
		a, b = b, a
	}
	return example{answer: strconv.Itoa(a - b), key: fmt.Sprint(a, b), prompt: ask(rng, []string{
		"What is %d minus %d?", "%d - %d =", "Subtract from %d the number %d.", "Compute %d - %d.",
		"What is the difference of %d and %d?",
		"How much is %d-%d?", "I have %d and lose %d. How many are left?",
	}, a, b)}
}

func number(rng *rand.Rand) int {
	if rng.IntN(4) == 0 {
		return rng.IntN(10)
	}
	return rng.IntN(100)
}
