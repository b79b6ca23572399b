package chat

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// TestReader passes each response to a Reader three times, as one chunk, in chunks of 7 bytes and in
// chunks of 1 byte, and checks the reasoning, the calls and the text that the Reader returns.
func TestReader(t *testing.T) {
	call := func(i int, name, arguments string) engines.ToolCall {
		return engines.ToolCall{Index: i, Name: name, Arguments: arguments}
	}
	const thinking = "{{ messages[0].content }}{{ '<think>' if enable_thinking }}"
	for name, c := range map[string]struct {
		source, prompt, answer string
		tools                  bool
		text, reasoning        string
		calls                  []engines.ToolCall
	}{
		"plain":   {"", "", "Hello <there>.", true, "Hello <there>.", "", nil},
		"nothing": {"", "", "", true, "", "", nil},
		"one call": {
			"", "", "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>", true, "", "",
			[]engines.ToolCall{call(0, "weather", `{"city":"Paris"}`)},
		},
		"text and two": {
			"", "",
			"Sure.<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"b\"," +
				"\"arguments\":{\"x\":1}}</tool_call>\n",
			true, "Sure.", "", []engines.ToolCall{call(0, "a", "{}"), call(1, "b", `{"x":1}`)},
		},
		"arguments in a text": {
			"", "", `<tool_call>{"name":"a","arguments":"{\"x\": 1}"}</tool_call>`, true, "", "",
			[]engines.ToolCall{call(0, "a", `{"x": 1}`)},
		},
		"not closed": {
			"", "", `<tool_call>{"name":"a","arguments":{}}`, true, "", "", []engines.ToolCall{call(0, "a", "{}")},
		},
		"broken": {
			"", "", `<tool_call>{"name":</tool_call> so`, true, `<tool_call>{"name":</tool_call> so`, "", nil,
		},
		"cut off": {"", "", `<tool_call>{"name":"a","arg`, true, `<tool_call>{"name":"a","arg`, "", nil},
		"nearly":  {"", "", "a <tool_cat> b <tool", true, "a <tool_cat> b <tool", "", nil},
		"no tools": {
			"", "", `<tool_call>{"name":"a","arguments":{}}</tool_call>`, false,
			`<tool_call>{"name":"a","arguments":{}}</tool_call>`, "", nil,
		},
		"as JSON": {
			"", "", ` {"name": "weather", "parameters": {"city": "Paris"}}`, true, "", "",
			[]engines.ToolCall{call(0, "weather", `{"city":"Paris"}`)},
		},
		"several as JSON": {
			"", "", `{"name": "weather", "parameters": {}}; {"name": "weather", "parameters": {"x":2}}`, true, "", "",
			[]engines.ToolCall{call(0, "weather", "{}"), call(1, "weather", `{"x":2}`)},
		},
		"as a list": {
			"", "", `[{"name": "weather", "arguments": {}}]`, true, "", "", []engines.ToolCall{call(0, "weather", "{}")},
		},
		"JSON that is no call": {"", "", `{"name": "Bob", "age": 5}`, true, `{"name": "Bob", "age": 5}`, "", nil},
		"JSON and no tools": {
			"", "", `{"name": "weather", "parameters": {}}`, false, `{"name": "weather", "parameters": {}}`, "", nil,
		},
		"reasoning": {
			thinking, "p", "<think>\nHm, 1 < 2.\n</think>\n\nYes.", false, "Yes.", "Hm, 1 < 2.\n", nil,
		},
		"reasoning started":     {thinking, "p<think>\n", "Hm.</think>Yes.", false, "Yes.", "Hm.", nil},
		"reasoning without end": {thinking, "p<think>", "Hm.</thin", false, "", "Hm.</thin", nil},
		"reasoning and a call": {
			thinking, "p", "<think>Hm.</think>\n<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>", true, "", "Hm.",
			[]engines.ToolCall{call(0, "a", "{}")},
		},
		"no reasoning":        {thinking, "p", "Yes <think>", false, "Yes <think>", "", nil},
		"a model without it":  {"", "p", "<think>Hm.</think>Yes", false, "<think>Hm.</think>Yes", "", nil},
		"reasoning of blanks": {thinking, "p", "  ", false, "  ", "", nil},
		"reasoning, then as one": {
			thinking, "p", `<think>Hm.</think>{"name": "weather", "parameters": {}}`, true, "", "Hm.",
			[]engines.ToolCall{call(0, "weather", "{}")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			source := c.source
			if source == "" {
				source = "{{ messages[0].content }}"
			}
			one, chat := template(t, source), engines.Chat{Messages: turns("user", "u")}
			if c.tools {
				chat.Tools = []json.RawMessage{weather}
			}
			for _, size := range []int{1000, 7, 1} {
				r, all := one.NewReader(&chat, c.prompt), engines.Chunk{}
				take := func(chunk engines.Chunk) {
					got := r.Take(chunk)
					all.Text, all.Reasoning, all.ToolCalls, all.Finish = all.Text+got.Text, all.Reasoning+got.Reasoning, append(
						all.ToolCalls, got.ToolCalls...), got.Finish
				}
				for rest := c.answer; rest != ""; {
					n := min(size, len(rest))
					take(engines.Chunk{Text: rest[:n]})
					rest = rest[n:]
				}
				take(engines.Chunk{Finish: engines.FinishStop})
				require.Equal(t, c.text, all.Text, "in chunks of %d", size)
				require.Equal(t, c.reasoning, all.Reasoning, "in chunks of %d", size)
				require.Equal(t, c.calls, all.ToolCalls, "in chunks of %d", size)
				want := engines.FinishStop
				if len(c.calls) > 0 {
					want = engines.FinishToolCalls
				}
				require.Equal(t, want, all.Finish)
			}
		})
	}
}
