package rows_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/domain/rows"
)

const (
	user   = `{"role":"user","content":"q"}`
	answer = `{"role":"assistant","content":"a"}`
)

func chat(messages ...string) string {
	return `{"messages":[` + strings.Join(messages, ",") + `]}`
}

func calling(call string) string {
	return chat(user, `{"role":"assistant","tool_calls":[`+call+`]}`, `{"role":"tool","tool_call_id":"c1","content":"4"}`,
		answer)
}

func TestEveryRule(t *testing.T) {
	const call = `{"id":"c1","type":"function","function":{"name":"add","arguments":"{\"a\":[1,2]}"}}`
	for _, c := range []struct{ row, shape, fault string }{
		{chat(user, answer), "chat", ""},
		{chat(`{"role":"system","content":"s"}`, user, answer), "chat", ""},
		{chat(user, `{"role":"assistant","content":"a","weight":0,"name":"bob","extra":[1]}`), "chat", ""},
		{chat(user, `{"role":"assistant","content":"a","weight":null,"tool_calls":[]}`), "chat", ""},
		{calling(call), "chat", ""},
		{`{"tools":[{"type":"function","function":{"name":"add","description":"d","parameters":{}}}],"messages":[` + user +
			`,` + answer + `]}`, "chat", ""},
		{`{"messages":5}`, "chat", "messages must be a list"},
		{`{"messages":[]}`, "chat", "messages must not be empty"},
		{chat(`5`, answer), "chat", "messages[0] must be a JSON object"},
		{chat(user, user, answer, `{"role":"system","content":"s"}`, answer), "chat",
			"messages[3].role: only the first message may have the role system"},
		{chat(user, `{"role":"bot","content":"a"}`, answer), "chat",
			`messages[1].role "bot" must be system, user, assistant or tool`},
		{chat(`{"role":7,"content":"a"}`, answer), "chat", "messages[0].role must be a string"},
		{chat(`{"Role":"user","content":"a"}`, answer), "chat",
			"messages[0].role is missing; it must be system, user, assistant or tool"},
		{chat(`{"role":"user","content":["a"]}`, answer), "chat", "messages[0].content must be a string"},
		{chat(`{"role":"user","content":null}`, answer), "chat", "messages[0].content is missing; it must be a string"},
		{chat(user, `{"role":"assistant"}`), "chat", "messages[1].content is missing; it must be a string"},
		{chat(user, `{"role":"assistant","content":"a","content":"b"}`), "chat", "messages[1].content is given twice"},
		{chat(user, `{"role":"assistant","content":"a","weight":2}`), "chat", "messages[1].weight must be 0 or 1"},
		{chat(user, `{"role":"assistant","content":"a","weight":"1"}`), "chat", "messages[1].weight must be 0 or 1"},
		{chat(user, `{"role":"assistant","content":"a","name":1}`), "chat", "messages[1].name must be a string"},
		{chat(user, `{"role":"tool","content":"4"}`, answer), "chat",
			"messages[1].tool_call_id is missing: a message of role tool must have the ID of the tool call that it answers"},
		{chat(user, `{"role":"tool","content":"4","tool_call_id":3}`, answer), "chat",
			"messages[1].tool_call_id must be a string"},
		{chat(user, `{"role":"tool","tool_call_id":"c1"}`, answer), "chat",
			"messages[1].content is missing; it must be a string"},
		{chat(`{"role":"user","content":"q","tool_calls":[`+call+`]}`, answer), "chat",
			"messages[0].tool_calls are allowed only in messages of role assistant"},
		{chat(user, `{"role":"assistant","content":"a","tool_calls":{}}`), "chat", "messages[1].tool_calls must be a list"},
		{calling(`7`), "chat", "messages[1].tool_calls[0] must be a JSON object"},
		{calling(strings.Replace(call, `"id":"c1",`, ``, 1)), "chat",
			"messages[1].tool_calls[0].id is missing; it must be a string"},
		{calling(strings.Replace(call, `"c1"`, `""`, 1)), "chat", "messages[1].tool_calls[0].id must not be empty"},
		{calling(strings.Replace(call, `"type":"function"`, `"type":"tool"`, 1)), "chat",
			`messages[1].tool_calls[0].type must be "function"`},
		{calling(`{"id":"c1","type":"function"}`), "chat",
			"messages[1].tool_calls[0].function is missing; it must be an object"},
		{calling(`{"id":"c1","type":"function","function":"add"}`), "chat",
			"messages[1].tool_calls[0].function must be an object"},
		{calling(strings.Replace(call, `"name":"add",`, ``, 1)), "chat",
			"messages[1].tool_calls[0].function.name is missing; it must be a string"},
		{calling(strings.Replace(call, `"{\"a\":[1,2]}"`, `{"a":1}`, 1)), "chat",
			"messages[1].tool_calls[0].function.arguments must be a string"},
		{calling(strings.Replace(call, `[1,2]`, `[1,2`, 1)), "chat",
			"messages[1].tool_calls[0].function.arguments must be a string that holds JSON"},
		{`{"tools":{},"messages":[` + user + `,` + answer + `]}`, "chat", "tools must be a list"},
		{`{"tools":["add"],"messages":[` + user + `,` + answer + `]}`, "chat", "tools[0] must be a JSON object"},
		{`{"tools":[{"function":{"name":"add"}}],"messages":[` + user + `,` + answer + `]}`, "chat",
			"tools[0].type is missing; it must be a string"},
		{`{"tools":[{"type":"function","function":{"name":""}}],"messages":[` + user + `,` + answer + `]}`, "chat",
			"tools[0].function.name must not be empty"},
		{`{"tools":[{"type":"function","function":{"name":"f","parameters":[]}}],"messages":[` + user + `,` + answer + `]}`,
			"chat", "tools[0].function.parameters must be an object"},
		{`{"messages":[` + user + `,` + answer + `],"prompt":"x"}`, "chat",
			"prompt cannot be combined with messages: leave one of them out"},
		{`{"messages":[` + user + `],"messages":[` + user + `]}`, "prompt", "messages is given twice"},

		{chat(user), "prompt", ""},
		{`{"messages":[` + user + `],"ground_truth":{"x":[1]},"prompt":5,"input":"free","samples":true}`, "prompt", ""},

		{`{"prompt":"","completion":"b"}`, "completion", ""},
		{`{"prompt":"a","completion":"b","input":"free"}`, "completion", ""},
		{`{"completion":"b"}`, "completion", "prompt is missing; it must be a string"},
		{`{"prompt":"a"}`, "completion", "completion is missing; it must be a string"},
		{`{"prompt":"a","completion":""}`, "completion", "completion must not be empty"},
		{`{"prompt":1,"completion":"b"}`, "completion", "prompt must be a string"},
		{`{"text":"t"}`, "completion", ""},
		{`{"text":""}`, "completion", "text must not be empty"},
		{`{"text":["t"]}`, "completion", "text must be a string"},
		{`{"text":"t","completion":"b"}`, "completion",
			"completion cannot be combined with text: use prompt and completion, or text"},

		{preference(`{"messages":[`+user+`]}`, answer, answer), "preference", ""},
		{preference(`{"messages":[`+user+`],"tools":[]}`, answer, answer), "preference", ""},
		{preference(`"q"`, answer, answer), "preference", "input must be an object that holds messages"},
		{preference(`{}`, answer, answer), "preference", "input.messages must not be empty"},
		{preference(`{"messages":[{"role":"user"}]}`, answer, answer), "preference",
			"input.messages[0].content is missing; it must be a string"},
		{preference(`{"messages":[`+user+`]}`, answer+","+answer, answer), "preference",
			"preferred_output must hold one message of role assistant, not 2"},
		{preference(`{"messages":[`+user+`]}`, answer, ``), "preference", "non_preferred_output must not be empty"},
		{preference(`{"messages":[`+user+`]}`, user, answer), "preference", "preferred_output[0].role must be assistant"},
		{`{"preferred_output":[` + answer + `],"non_preferred_output":[` + answer + `]}`, "preference",
			"input is missing; it must hold messages"},
		{`{"input":{"messages":[` + user + `]},"preferred_output":[` + answer + `]}`, "preference",
			"non_preferred_output must hold one message of role assistant"},

		{`{"samples":[{"messages":[` + user + `],"score":0.5},{"score":1,"messages":[` + user + `]}]}`, "samples", ""},
		{`{"samples":[]}`, "samples", "samples must not be empty"},
		{`{"samples":{}}`, "samples", "samples must be a list"},
		{`{"samples":[1,{"messages":[` + user + `],"score":1}]}`, "samples", "samples[0] must be a JSON object"},
		{`{"samples":[{"score":1}]}`, "samples", "samples[0].messages must not be empty"},
		{`{"samples":[{"messages":[` + user + `]}]}`, "samples",
			"samples[0] has no metric: a sample must have messages and at least one number from 0 to 1"},
		{`{"samples":[{"messages":[` + user + `],"score":1.01}]}`, "samples",
			"samples[0].score must be a number from 0 to 1"},
		{`{"samples":[{"messages":[` + user + `],"score":"1"}]}`, "samples",
			"samples[0].score must be a number from 0 to 1"},
		{`{"samples":[{"messages":[` + user + `],"score":1,"score":0}]}`, "samples", "samples[0].score is given twice"},
		{`{"samples":[{"messages":[` + user + `],"score":1},{"messages":[` + user + `],"score":1,"style":1}]}`, "samples",
			"samples[1].style is not a metric of the first sample: all samples need the same metrics"},
		{`{"samples":[{"messages":[` + user + `],"score":1,"style":1},{"messages":[` + user + `],"score":1}]}`, "samples",
			"samples[1].style is missing; all samples need the metrics of the first sample"},
		{`{"samples":[{"messages":[{"role":"cat","content":""}],"score":1}]}`, "samples",
			`samples[0].messages[0].role "cat" must be system, user, assistant or tool`},

		{`{}`, "", "the row has none of the fields messages, prompt, completion, text, input and samples"},
		{`{"messages":null}`, "", "the row has none of the fields messages, prompt, completion, text, input and samples"},
		{`"x"`, "", "must be a JSON object"},
		{`{"text":"a"} {}`, "", "not valid JSON at byte 14: invalid character '{' after top-level value"},
		{`{"text":"a` + "\n" + `"}`, "", `not valid JSON at byte 11: invalid character '\n' in string literal`},
		{`{"text":01}`, "", "not valid JSON at byte 10: invalid character '1' after object key:value pair"},
		{"{\"text\":\"\xc0\"}", "", "the line is not valid UTF-8"},
	} {
		row, reasons := rows.Parse([]byte(c.row), "")
		require.Equal(t, c.fault, strings.Join(reasons, " & "), c.row)
		if c.fault == "" || row.Shape != "" {
			require.Equal(t, c.shape, row.Shape, c.row)
		}
	}
}

func preference(input, preferred, rejected string) string {
	return `{"input":` + input + `,"preferred_output":[` + preferred + `],"non_preferred_output":[` + rejected + `]}`
}

func TestHintsDecideBetweenChatAndPrompts(t *testing.T) {
	for _, c := range []struct{ row, hint, shape, fault string }{
		{chat(user), domain.ShapeChat, domain.ShapeChat,
			"messages: the last message of a chat row must be of role assistant"},
		{chat(user, answer), domain.ShapePrompt, domain.ShapePrompt,
			"messages: the last message of a prompt row must be of role user"},
		{chat(user), domain.ShapePreference, domain.ShapePrompt, ""},
		{chat(user, answer), domain.ShapeCompletion, domain.ShapeChat, ""},
	} {
		row, reasons := rows.Parse([]byte(c.row), c.hint)
		require.Equal(t, c.shape, row.Shape)
		require.Equal(t, c.fault, strings.Join(reasons, " & "))
	}
}

func TestParseKeepsWhatTrainersNeed(t *testing.T) {
	row, reasons := rows.Parse(
		[]byte(`{"tools":[{"type":"function","function":{"name":"f"}}],"messages":[`+user+`,
		{"role":"assistant","content":null,"weight":0,
		"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"1","name":"f","content":"\u00e9\n"},`+answer+`]}`), "")
	require.Empty(t, reasons)
	require.JSONEq(t, `[{"type":"function","function":{"name":"f"}}]`, string(row.Tools))
	require.Len(t, row.Messages, 4)
	require.Zero(t, *row.Messages[1].Weight)
	require.Len(t, row.Messages[1].ToolCalls, 1)
	require.Equal(t, rows.Message{Role: "tool", ToolCallID: "1", Name: "f", Content: "é\n"}, row.Messages[2])
	require.Equal(t, 3, row.Turns)
	require.Equal(t, len("q")+len("{}")+len("é\n")+len("a"), row.Bytes)

	row, reasons = rows.Parse([]byte(`{"samples":[{"messages":[`+user+`,`+answer+`],"score":0.5,"style":1}]}`), "")
	require.Empty(t, reasons)
	require.Equal(t, []rows.Sample{
		{Messages: []rows.Message{{Role: "user", Content: "q"}, {Role: "assistant", Content: "a"}},
			Metrics: map[string]float64{"score": 0.5, "style": 1}}}, row.Samples)
}

func TestReasonsOfOneRowAreBound(t *testing.T) {
	_, reasons := rows.Parse([]byte(chat(strings.Repeat("1,", 5000)+"1")), "")
	require.Len(t, reasons, rows.MaxErrors)
}

func TestTokensAreEstimatedFromASample(t *testing.T) {
	text := strings.Repeat("x", 1000)
	asked := 0
	c := rows.NewChecker("")
	c.Count = func(text string) int { asked++; return len(text) / 5 }
	require.NoError(t, c.Read("f", strings.NewReader(strings.Repeat(`{"text":"`+text+`"}`+"\n", 10_000))))
	facts, faults, _ := c.Result()
	require.Empty(t, faults)
	require.EqualValues(t, 10_000*200, facts.EstimatedTokenCount)
	// The first MiB is in 1,049 rows, which are all tokenized. Of the other 8,951 rows, one in 64 is.
	require.Equal(t, 1049+(10_000/64-1049/64), asked)

	c = rows.NewChecker("")
	require.NoError(t, c.Read("f", strings.NewReader(strings.Repeat(`{"text":"`+text+`"}`+"\n", 3))))
	facts, _, _ = c.Result()
	require.EqualValues(t, 750, facts.EstimatedTokenCount, "without a tokenizer a token is four bytes")
}

func TestLinesOfEveryLength(t *testing.T) {
	long := strings.Repeat("y", 100_000)
	huge := strings.Repeat("z", rows.MaxLine+1)
	for text, want := range map[string][]string{
		"":                             {""},
		"a":                            {"a"},
		"\ufeffa\r\nb\n":               {"a", "b", ""},
		long + "\n" + long:             {long, long},
		"a\n" + huge + "\nb":           {"a", "too long", "b"},
		"a\n" + huge:                   {"a", "too long", ""},
		long[:65536] + "\n" + long[:9]: {long[:65536], long[:9]},
	} {
		var got []string
		require.NoError(t, rows.Lines(strings.NewReader(text), func(line int, text []byte, tooLong bool) error {
			if tooLong {
				text = []byte("too long")
			}
			got = append(got, string(text))
			require.Len(t, got, line)
			return nil
		}))
		require.Equal(t, want, got)
	}
}
