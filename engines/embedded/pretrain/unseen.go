package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"anneal/engines"
)

// unseenTasks are the tasks that validate the training defaults: no setting, no default and no part
// of the base model was chosen by their results.
var unseenTasks = []newTask{
	{"initials", initials},
	{"phone", phone},
	{"masked-address", maskedAddress},
	{"severity", severity},
	{"record", record},
}

// Numbers of rows of an unseen task, and of rows of base tasks that are added for comparison.
const (
	unseenRows    = 3000
	unseenOldRows = 1000
	replayWeight  = 2 // weight of the replayed responses of the base model
)

// tuneUnseen prints the results of fine-tuning on each unseen task for one epoch with the default
// settings, with and without rows of base tasks.
func tuneUnseen(ctx context.Context, base string, seed uint64) error {
	dir, err := os.MkdirTemp("", "tune")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	settings := engines.TrainSettings{Epochs: 1, LoraRank: 8} // default settings of a job
	for _, t := range unseenTasks {
		for _, how := range []struct {
			old    int
			weight float64
		}{{unseenOldRows, 0}, {0, 0}, {0, replayWeight}} {
			settings.ReplayWeight = how.weight
			got, err := tune(ctx, base, dir, t, unseenRows, how.old, settings, heldOutOfBase(100), seed)
			if err != nil {
				return err
			}
			log.Printf("%-14s %d rows of the task, %4d rows of base tasks, replayWeight %g: exact answers %2d → %2d of %d   "+
				"base tasks %d → %d of %d   retention %.2f   %s",
				t.name, unseenRows, how.old, how.weight, got.before, got.after, got.prompts, got.baseBefore,
				got.baseAfter, got.basePrompts, got.result.Values["eval/retention"],
				got.took.Round(100*time.Millisecond))
		}
	}
	return nil
}

// initials returns an example that abbreviates three names.
func initials(rng *rand.Rand) example {
	names := []string{givenName(rng), givenName(rng), givenName(rng)}
	var short []string
	for _, n := range names {
		short = append(short, n[:1]+".")
	}
	whole := strings.Join(names, " ")
	return example{answer: strings.Join(short, ""), key: whole,
		prompt: ask(rng, []string{
			"Initials of %s", "Initials: %s", "Sign as %s, in short", "What are the initials of %s?",
		}, whole)}
}

// givenName returns a given name: one from a list, or an invented one.
func givenName(rng *rand.Rand) string {
	if rng.IntN(2) == 0 {
		return pick(rng, firstNames)
	}
	n := invented(rng)
	return strings.ToUpper(n[:1]) + n[1:]
}

// phone returns an example that groups ten digits.
func phone(rng *rand.Rand) example {
	digits := fmt.Sprintf("%010d", rng.IntN(1e10))
	return example{answer: "(" + digits[:3] + ") " + digits[3:6] + "-" + digits[6:], key: digits,
		prompt: ask(rng, []string{
			"Phone %s", "Format the number %s", "Phone number: %s", "Write %s as a phone number.",
		}, digits)}
}

// maskedAddress returns an example that masks the name in an email address except for its first
// letter.
func maskedAddress(rng *rand.Rand) example {
	mailbox, host := invented(rng), pick(rng, realWords)
	host += pick(rng, []string{".org", ".com", ".net"})
	return example{answer: mailbox[:1] + "***@" + host, key: mailbox + host,
		prompt: ask(rng, []string{
			"Mask %s", "Hide the address %s", "Mask: %s", "Write %s so that nobody can mail it.",
		}, mailbox+"@"+host)}
}

// severities are log levels with example lines. In a line, %s stands for a thing and %d for a
// number.
var severities = []struct {
	name  string
	lines []string
}{
	{"debug", []string{"cache of %s has %d entries", "trying %s number %d", "parsed %s in %d ms"}},
	{"info", []string{"%s %d started", "%s took over %d jobs", "connected to %s at port %d"}},
	{"warning", []string{"%s is at %d percent of its limit", "retrying %s for the time %d", "%s answered late by %d s"}},
	{"error", []string{"cannot open %s: code %d", "%s failed after %d attempts", "lost %s with %d rows"}},
}

// severity returns an example that classifies a log line.
func severity(rng *rand.Rand) example {
	level := pick(rng, severities)
	line := fmt.Sprintf(pick(rng, level.lines), pick(rng, things), rng.IntN(1000))
	return example{answer: level.name, key: line,
		prompt: ask(rng, []string{
			"Level: %s", "Which level has this line: %s", "Classify the log line: %s", "%s Which level is that?",
		}, line)}
}

// record returns an example that converts semicolon-separated values to JSON.
func record(rng *rand.Rand) example {
	who, thing, count := givenName(rng), pick(rng, things), rng.IntN(1000)
	line := fmt.Sprintf("%s;%s;%d", who, thing, count)
	answer, err := json.Marshal(struct {
		Customer string `json:"customer"`
		Item     string `json:"item"`
		Count    int    `json:"count"`
	}{who, thing, count})
	if err != nil {
		panic(err) // unreachable: strings and a number can always be encoded
	}
	return example{answer: string(answer), key: line,
		prompt: ask(rng, []string{"Record: %s", "As a record: %s", "Turn %s into a record.", "Order line %s"}, line)}
}
