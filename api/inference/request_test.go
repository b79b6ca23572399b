package inference

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/wire"
)

// TestFieldNamesAreCaseSensitive checks that field names are case-sensitive: TOOLS is unknown, and
// does not replace the validated tools.
func TestFieldNamesAreCaseSensitive(t *testing.T) {
	body := []byte(`{"model": "m", "messages": [{"role": "user", "content": "x"}],
		"tools": [{"type": "function", "function": {"name": "f"}}], "TOOLS": [{"bad": 1}]}`)
	value, err := wire.Parse(body)
	require.NoError(t, err)
	q, err := readChat(value, body, false)
	require.NoError(t, err)
	require.Equal(t, []string{"TOOLS"}, q.unknown)
	require.Equal(t, []json.RawMessage{json.RawMessage(`{"type": "function", "function": {"name": "f"}}`)},
		q.prompts[0].chat.Tools)
}

// TestCompletionRanges checks that the values of each field are accepted at the bounds of the field
// and rejected beyond the bounds.
func TestCompletionRanges(t *testing.T) {
	for _, c := range []struct {
		field   string
		valid   []string
		invalid []string
	}{
		{"n", []string{"1", "128"}, []string{"0", "129", "1.5"}},
		{"temperature", []string{"0", "2"}, []string{"-0.1", "2.1"}},
		{"top_k", []string{"0", "100"}, []string{"-1", "101"}},
		{"top_p", []string{"0", "1"}, []string{"-0.1", "1.1"}},
		{"min_p", []string{"0", "0.5", "1"}, []string{"-0.1", "1.1"}},
		{"typical_p", []string{"0", "1"}, []string{"-0.1", "1.1"}},
		{"frequency_penalty", []string{"-2", "2"}, []string{"-2.1", "2.1"}},
		{"presence_penalty", []string{"-2", "2"}, []string{"-2.1", "2.1"}},
		{"repetition_penalty", []string{"0", "2"}, []string{"-0.1", "2.1"}},
		{"mirostat_target", []string{"1", "5.5", "1000000", "null"}, []string{"0", "0.9", "1000001", `"5"`}},
		{"mirostat_lr", []string{"0", "1"}, []string{"-0.1", "1.1"}},
		{"max_tokens", []string{"0", "1048576"}, []string{"-1", "1048577"}},
		{"max_completion_tokens", []string{"0", "1048576"}, []string{"-1", "1048577"}},
		{"seed", []string{"-9223372036854775808", "0", "9223372036854775807"}, []string{"1.5", `"1"`, "9223372036854775808"}},
		{"logprobs", []string{"false", "true", "null", "0", "5"}, []string{"-1", "6", "1.5", `"x"`, "[]"}},
		{"top_logprobs", []string{"null", "0"}, []string{"-1", "6", "3"}},
		{"echo", []string{"true", "false"}, []string{"1"}},
		{"echo_last", []string{"0", "1048576"}, []string{"-1", "1048577"}},
		{"ignore_eos", []string{"true"}, []string{`"yes"`}},
		{"return_token_ids", []string{"true"}, []string{"1"}},
		{"raw_output", []string{"true"}, []string{"1"}},
		{"perf_metrics_in_response", []string{"true"}, []string{"1"}},
		{"stream", []string{"true"}, []string{"1"}},
		{"stream_options", []string{`{}`, `{"include_usage":true}`, `{"chunk":1}`}, []string{"5"}},
		{"stop", []string{`"a"`, `["a","b","c","d"]`, `[]`, "null"}, []string{`["a","b","c","d","e"]`, `""`, `[5]`, `5`}},
		{"logit_bias", []string{`{}`, `{"5": 100, "6": -100}`},
			[]string{`{"5": 101}`, `{"5": -100.5}`, `{"a": 1}`, `{"-1": 1}`, `{"5": "1"}`, `5`}},
		{"response_format", []string{`{"type":"text"}`, `{"type":"json_object"}`,
			`{"type":"json_schema","schema":{"type":"object"}}`,
			`{"type":"json_schema","json_schema":"{}"}`,
			`{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}}`,
			`{"type":"grammar","grammar":"root ::= \"a\""}`}, []string{`5`}},
		{"response_format.type", nil, []string{`{"type":"xml"}`, `{}`}},
		{"response_format.json_schema", nil, []string{`{"type":"json_schema"}`, `{"type":"json_schema","json_schema":5}`,
			`{"type":"json_schema","json_schema":"{"}`}},
		{"response_format.grammar", nil,
			[]string{`{"type":"grammar"}`, `{"type":"grammar","grammar":5}`,
				`{"type":"json_object","grammar":"root ::= \"a\""}`}},
		{"response_format.schema", nil,
			[]string{`{"type":"json_schema","schema":{},"json_schema":{}}`, `{"type":"text","schema":{}}`,
				`{"type":"grammar","grammar":"root ::= \"a\"","json_schema":{}}`}},
		{"thinking", []string{`{"type":"disabled"}`, `{"type":"enabled","budget_tokens":1024}`}, []string{`5`}},
		{"thinking.type", nil, []string{`{}`, `{"type":"maybe"}`}},
		{"thinking.budget_tokens", nil, []string{`{"type":"enabled","budget_tokens":1023}`}},
		{"reasoning_effort", []string{`"none"`, `"low"`, `"medium"`, `"high"`, `false`, `true`, `5`},
			[]string{`0`, `-1`, `1.5`, `"much"`, `{}`}},
		{"reasoning_history", []string{`"disabled"`, `"interleaved"`, `"preserved"`}, []string{`"other"`, `5`}},
		{"prediction", []string{`"text"`, `{"type":"content","content":"text"}`}, []string{`5`}},
		{"prediction.type", nil, []string{`{"type":"other","content":"x"}`}},
		{"speculation", []string{`"ngram"`}, []string{`5`}},
		{"context_length_exceeded_behavior", []string{`"truncate"`, `"error"`}, []string{`"ignore"`, `""`}},
		{"images", []string{`[]`}, []string{`["x"]`, `5`}},
		{"metadata", []string{`{}`, `{"run": "a", "try": 3, "dry": true}`, `{"` + strings.Repeat("ü", 64) + `": "` +
			strings.Repeat("ü", 512) + `"}`}, []string{`5`, `{"": "a"}`, `{"` + strings.Repeat("a", 65) + `": "a"}`,
			`{"1":1,"2":1,"3":1,"4":1,"5":1,"6":1,"7":1,"8":1,"9":1,"10":1,"11":1,"12":1,"13":1,"14":1,"15":1,"16":1,"17":1}`}},
		{"metadata.a", nil, []string{`{"a": []}`, `{"a": {}}`, `{"a": null}`, `{"a": "` + strings.Repeat("a", 513) + `"}`,
			`{"a": ` + strings.Repeat("1", 513) + `}`}},
		{"user", []string{`"` + strings.Repeat("u", 512) + `"`}, []string{`"` + strings.Repeat("u", 513) + `"`}},
		{"prompt", []string{`""`, `[]`, `[0]`, `["a"]`, `[[1]]`},
			[]string{`{}`, `[-1]`, `[1.5]`, `["a", 1]`, `[["a"]]`, `[1, [2]]`, `null`, `5`}},
	} {
		read := func(value string) error {
			field, _, _ := strings.Cut(c.field, ".")
			fields := `{"model": "accounts/acme/models/m", "prompt": "p", "` + field + `": ` + value + `}`
			if c.field == "prompt" {
				fields = `{"model": "accounts/acme/models/m", "prompt": ` + value + `}`
			}
			tree, err := parseLast(fields)
			require.NoError(t, err)
			_, err = readCompletion(tree, nil, false)
			return err
		}
		for _, value := range c.valid {
			require.NoError(t, read(value), "%s %s", c.field, value)
		}
		for _, value := range c.invalid {
			require.ErrorContains(t, read(value), c.field+": ", "%s %s", c.field, value)
		}
	}
}

// parseLast parses JSON in which keys may be repeated, and returns the last value of each key.
func parseLast(text string) (any, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var tree any
	err := dec.Decode(&tree)
	return tree, err
}

func FuzzReadCompletion(f *testing.F) {
	f.Add([]byte(`{"model": "accounts/acme/models/m", "prompt": ["a", "b"], "stop": "x", "n": 2}`))
	f.Add([]byte(`{"a": [1, 2, {"b": null}], "a": "\ud800"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tree, err := wire.Parse(data)
		if err == nil {
			_, _ = readCompletion(tree, nil, true)
		}
	})
}
