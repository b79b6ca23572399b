package rows

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
)

var hints = []string{"", domain.ShapeChat, domain.ShapePrompt, domain.ShapePreference, domain.ShapeSamples,
	domain.ShapeCompletion}

// requireSameResult requires that the fast reader, with and without keep, and the slow reader return the same
// result for a line.
func requireSameResult(t require.TestingT, r *reader, line []byte, hint string) {
	want := slowly(line, hint)
	row, reasons := Parse(line, hint)
	require.Equal(t, normal(want.reasons), normal(reasons), "%s", line)
	counted := r.read(line, hint)
	require.Equal(t, reasons, r.reasons, "%s", line)
	require.Equal(t, want.shape, row.Shape, "%s", line)
	require.Equal(t, row.Shape, counted.Shape, "%s", line)
	if len(reasons) > 0 {
		return
	}
	require.Equal(t, []int{want.bytes, want.turns}, []int{row.Bytes, row.Turns}, "%s", line)
	require.Equal(t, []int{want.bytes, want.turns}, []int{counted.Bytes, counted.Turns}, "%s", line)
	require.Equal(t, want.bytes, kept(row), "%s", line)
}

// kept returns the number of bytes of text in a row.
func kept(row Row) int {
	n := len(row.Prompt) + len(row.Completion)
	lists := [][]Message{row.Messages, row.Preferred, row.Rejected}
	for _, s := range row.Samples {
		lists = append(lists, s.Messages)
	}
	for _, messages := range lists {
		for _, m := range messages {
			n += len(m.Content)
			for _, call := range m.ToolCalls {
				var c struct{ Function struct{ Arguments string } }
				if json.Unmarshal(call, &c) == nil {
					n += len(c.Function.Arguments)
				}
			}
		}
	}
	return n
}

// normal returns the reasons sorted, without the names in reasons about duplicate names.
func normal(reasons []string) []string {
	if len(reasons) >= MaxErrors {
		return []string{"many"}
	}
	all := slices.Clone(reasons)
	for i, reason := range all {
		if field, twice := strings.CutSuffix(reason, " is given twice"); twice {
			all[i] = field[:strings.LastIndex("."+field, ".")] + " twice"
		}
		all[i] = strings.ReplaceAll(all[i], ". twice", " twice")
	}
	slices.Sort(all)
	return all
}

var seeds = []string{
	`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","weight":1.0}],"tools":[{"type"` +
		`:"function","function":{"name":"f","parameters":{}}}]}`,
	`{"messages":[{"role":"system","content":"s"},{"role":"user","content":"\u00e9\ud83d\ude00\ud800x\n"}],"groun` +
		`d_truth":[1,2e9,-0.5E-3]}`,
	`{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type"` +
		`:"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"1","content":` +
		`"r"},{"role":"assistant","content":"z"}]}`,
	`{"prompt":"a","completion":"b","x":null}`, `{"text":"b\u0000","text":"c"}`, ` {"te\u0078t" : "b" } `,
	`{"input":{"messages":[{"role":"user","content":"q"}]},"preferred_output":[{"role":"assistant","content":"a"}` +
		`],"non_preferred_output":[{"role":"assistant","content":"b"}]}`,
	`{"samples":[{"messages":[{"role":"user","content":"q"}],"score":1,"b":0.5e-1},{"score":0,"messages":[{"role"` +
		`:"user","content":"q"}],"b":0}]}`,
	`{"text":"x"} {}`, `{"text":"x"}x`, `[{}]`, `null`, `{"text":01}`, `{"text":"\x"}`, `{"text":tru}`, `{"text":"x",}`,
	`{"messages":[{"role":"user","content":"a",}]}`,
	`{"a":-}`, `{"a":1.}`, `{"a":1e}`, `{"a":"` + "\x01" + `"}`, `{"samples":[{"messages":null,"\ud800":2},5]}`,
	"{\"text\":\"\xff\"}",
}

func FuzzRow(f *testing.F) {
	for i, seed := range seeds {
		f.Add([]byte(seed), uint8(i))
	}
	r := &reader{}
	f.Fuzz(func(t *testing.T, line []byte, hint uint8) {
		requireSameResult(t, r, line, hints[int(hint)%len(hints)])
	})
}

// TestFastReadingAgreesWithSlow compares the fast reader with the slow one on random rows, valid and
// invalid, composed of known field names and values. A fuzzer seldom generates such rows.
func TestFastReadingAgreesWithSlow(t *testing.T) {
	r := &reader{}
	rapid.Check(t, func(t *rapid.T) {
		line := aValue(0).Draw(t, "line")
		if !strings.HasPrefix(line, "{") {
			line = `{"messages":` + line + `}`
		}
		requireSameResult(t, r, []byte(line), rapid.SampledFrom(hints).Draw(t, "hint"))
	})
}

// aValue draws JSON composed of known field names and values. depth is the nesting level of the value.
func aValue(depth int) *rapid.Generator[string] {
	scalar := rapid.SampledFrom([]string{`"user"`, `"assistant"`, `"assistant"`, `"tool"`, `"system"`, `"function"`, `""`,
		`"f"`, `"{}"`, `"{"`, `"\u0061ssistant"`,
		`"a\n\u00e9\ud834\udd1e\udc00\/"`, "\"größer 数\"", `0`, `1`, `1.0`, `0.5`, `1e400`, `-0`, `-1`, `10e-1`, `true`,
		`false`, `null`, `{}`, `[]`})
	if depth > 6 {
		return scalar
	}
	return rapid.Custom(func(t *rapid.T) string {
		kind := rapid.IntRange(0, 9).Draw(t, "kind")
		switch {
		case kind < 3 && depth > 0:
			return scalar.Draw(t, "scalar")
		case kind < 5 && depth > 0:
			return "[" + strings.Join(rapid.SliceOfN(aValue(depth+1), 0, 3).Draw(t, "elements"), ", ") + "]"
		case kind < 7:
			return aRow(t)
		}
		var members []string
		for range rapid.IntRange(0, 4).Draw(t, "members") {
			name := rapid.SampledFrom(slices.Concat(rowNames, messageNames, callNames, functionNames,
				[]string{"score", "m\\u0065ssages"})).Draw(t, "name")
			members = append(members, fmt.Sprintf("%q:%s", name, aValue(depth+1).Draw(t, "value")))
		}
		return "{" + strings.ReplaceAll(strings.Join(members, ","), `\\u`, `\u`) + "}"
	})
}

// aRow draws a row, or a part of one, that is valid or nearly valid.
func aRow(t *rapid.T) string {
	row := rapid.SampledFrom(seeds[:8]).Draw(t, "row")
	for range rapid.IntRange(0, 2).Draw(t, "changes") {
		old := rapid.SampledFrom([]string{`"user"`, `"assistant"`, `"role"`, `"content"`, `"a"`, `"q"`, `1`, `"function"`,
			`"messages"`, `"f"`, `,`, `"id"`}).Draw(t, "old")
		row = strings.Replace(row, old,
			rapid.SampledFrom([]string{`"user"`, `"assistant"`, `"system"`, `"tool"`, `"weight"`, `"x"`, `null`, `7`, `[]`, `{}`,
				`""`, `,"name":5,`}).Draw(t, "new"), 1)
	}
	return row
}

func TestDepthIsBoundAsInEncodingJSON(t *testing.T) {
	r := &reader{}
	for _, depth := range []int{9_998, 9_999, 10_000, 10_001} {
		for _, name := range []string{"x", "messages", "samples", "tools"} {
			line := fmt.Sprintf(`{"text":"a",%q:%s%s}`, name, strings.Repeat("[", depth), strings.Repeat("]", depth))
			requireSameResult(t, r, []byte(line), "")
		}
	}
}

func TestCountingAllocatesNothing(t *testing.T) {
	r := &reader{}
	for _, seed := range seeds[:8] {
		if seed == seeds[4] {
			continue // an invalid row: its reasons are allocated
		}
		line := []byte(strings.ReplaceAll(seed, `\ud800`, "")) // an unpaired surrogate makes the decoder allocate an error
		require.Zero(t, testing.AllocsPerRun(100, func() { r.read(line, "") }), seed)
	}
}

func TestRowsBeyondTheLimitAreRefusedOnce(t *testing.T) {
	c := NewChecker("")
	c.stats.ExampleCount = MaxRows - 1
	require.NoError(t, c.Read("f", strings.NewReader(strings.Repeat(`{"text":"x"}`+"\n", 4))))
	_, faults, more := c.Result()
	require.Equal(t, []LineError{{"f", 2, "the dataset has more than 3000000 rows: split it into several datasets"}},
		faults)
	require.Zero(t, more)
}
