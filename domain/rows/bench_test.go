package rows_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"anneal/domain/rows"
)

// write returns a text of about size bytes that resembles real rows: words, quotes, line breaks,
// code, and letters beyond ASCII.
func write(dice *rand.Rand, size int) string {
	words := []string{"the", "model", "answers", "with", "a", "list", "of", "\"names\"", "and", "1,024", "values;",
		"größer", "数据", "if (x < 3) {\n\treturn x\n}", "then", "it's", "done.\n\n", "see", "https://example.org/a/b"}
	var b strings.Builder
	for b.Len() < size {
		b.WriteString(words[dice.IntN(len(words))])
		b.WriteByte(' ')
	}
	return b.String()
}

// files returns one file for each shape of rows, with lines of about size bytes, by shape.
func files(size int) map[string][]byte {
	dice := rand.New(rand.NewPCG(1, uint64(size)))
	say := func(role string, part int) map[string]any {
		return map[string]any{"role": role, "content": write(dice, size/part)}
	}
	shapes := map[string]func() any{
		"chat": func() any {
			return map[string]any{"messages": []any{map[string]any{"role": "system", "content": "You are kind."}, say("user", 4),
				say("assistant", 4), say("user", 4), say("assistant", 4)}}
		},
		"tools": func() any {
			call := map[string]any{"id": "call_1", "type": "function",
				"function": map[string]any{"name": "find", "arguments": `{"query":"` + strings.Repeat("word ", size/20) + `"}`}}
			return map[string]any{"tools": []any{map[string]any{"type": "function",
				"function": map[string]any{"name": "find", "parameters": map[string]any{"type": "object"}}}},
				"messages": []any{say("user", 4), map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{call}},
					map[string]any{"role": "tool", "tool_call_id": "call_1", "content": write(dice, size/4)}, say("assistant", 4)}}
		},
		"completion": func() any { return map[string]any{"prompt": write(dice, size/2), "completion": write(dice, size/2)} },
		"preference": func() any {
			return map[string]any{"input": map[string]any{"messages": []any{say("user", 3)}},
				"preferred_output": []any{say("assistant", 3)}, "non_preferred_output": []any{say("assistant", 3)}}
		},
		"prompt": func() any {
			return map[string]any{"messages": []any{say("user", 2)}, "ground_truth": write(dice, size/2), "level": 3}
		},
		"samples": func() any {
			return map[string]any{"samples": []any{
				map[string]any{"messages": []any{say("user", 4), say("assistant", 4)}, "accuracy": 0.5, "style": 1},
				map[string]any{"messages": []any{say("user", 4), say("assistant", 4)}, "accuracy": 1, "style": 0.25}}}
		},
	}
	all := map[string][]byte{}
	for name, row := range shapes {
		var text bytes.Buffer
		for text.Len() < 1<<20 {
			line, err := json.Marshal(row())
			if err != nil {
				panic(err)
			}
			text.Write(line)
			text.WriteByte('\n')
		}
		all[name] = text.Bytes()
	}
	return all
}

// perCore starts a measurement of CPU time. The returned function reports the megabytes per second of
// CPU time. Other load on the machine affects CPU time less than elapsed time.
func perCore(b *testing.B, size int) func() {
	spent := func() time.Duration {
		var use syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
			b.Fatal(err)
		}
		return time.Duration(use.Utime.Nano() + use.Stime.Nano())
	}
	before := spent()
	return func() {
		b.ReportMetric(float64(size)*float64(b.N)/1e6/(spent()-before).Seconds(), "MB/core-s")
	}
}

// BenchmarkCheck measures the checker, and json.Valid on the same lines for comparison.
func BenchmarkCheck(b *testing.B) {
	for _, size := range []int{200, 1000, 4000} {
		for _, name := range []string{"chat", "tools", "completion", "preference", "prompt", "samples"} {
			text := files(size)[name]
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				defer perCore(b, len(text))()
				for b.Loop() {
					c := rows.NewChecker("")
					if err := c.Read("f", bytes.NewReader(text)); err != nil {
						b.Fatal(err)
					}
					if _, faults, _ := c.Result(); len(faults) > 0 {
						b.Fatal(faults)
					}
				}
			})
		}
		text := files(size)["chat"]
		b.Run(fmt.Sprintf("json.Valid/%d", size), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			defer perCore(b, len(text))()
			for b.Loop() {
				for line := range bytes.Lines(text) {
					if !json.Valid(line) {
						b.Fatal(string(line))
					}
				}
			}
		})
	}
}
