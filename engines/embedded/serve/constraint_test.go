package serve

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

// tooled is a template like those of Hermes and Qwen: it lists tools and delimits tool calls.
const tooled = `{{ bos_token }}{% if tools %}{% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif %}` +
	`{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for call in m.tool_calls %}` +
	"\n<tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}" +
	"}\n</tool_call>" +
	`{% endfor %}{% endfor %}[assistant]`

// begun is a template that opens the reasoning of the answer.
const begun = `{% for m in messages %}{{ m.content }}{% endfor %}<think>`

var yesOrNo = &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: `root ::= "yes" | "no"`}

// entire returns a complete response with reasoning and tool calls.
func entire(t *testing.T, m engines.Model, req engines.CompletionRequest) (all engines.Chunk, usage engines.Usage) {
	usage, err := m.Complete(t.Context(), req, func(c engines.Chunk) error {
		all.Text, all.Reasoning, all.ToolCalls = all.Text+c.Text, all.Reasoning+c.Reasoning, append(all.ToolCalls,
			c.ToolCalls...)
		all.Tokens, all.Logprobs, all.Finish = append(all.Tokens, c.Tokens...), append(all.Logprobs, c.Logprobs...), c.Finish
		return nil
	})
	require.NoError(t, err)
	return all, usage
}

// wild is a request whose unconstrained completion is nearly uniform noise.
func wild(seed uint64, maxTokens int, f *engines.ResponseFormat) engines.CompletionRequest {
	return engines.CompletionRequest{
		PromptTokens: ids(9, int(seed)), MaxTokens: maxTokens, Temperature: 2, Seed: &seed, Format: f,
	}
}

func TestCompletionsConform(t *testing.T) {
	m := open(t, weights(), Options{})
	for seed := range uint64(60) {
		a := ask(t, m, wild(seed, 150, &engines.ResponseFormat{Type: engines.FormatJSON}))
		require.True(t, a.finish == engines.FinishLength || json.Valid([]byte(a.text)), "%q", a.text)
		require.True(t, strings.HasPrefix(a.text, "{"), "%q", a.text)
		require.Len(t, a.tokens, a.usage.CompletionTokens)

		a = ask(t, m, wild(seed, 150, &engines.ResponseFormat{Type: engines.FormatSchema,
			Schema: json.RawMessage(`{"type":"object","properties":{"b":{"type":"integer","minimum":3,"maximum":40},` +
				`"a":{"enum":["x","y"]}},"required":["b","a"]}`)}))
		require.Equal(t, engines.FinishStop, a.finish)
		require.Regexp(t, `^\{\s*"b":\s*([3-9]|[1-3]\d|40),\s*"a":\s*"[xy]"\s*\}$`, a.text)

		// Other parameters do not affect conformity.
		req := wild(seed, 150, yesOrNo)
		req.LogitBias = map[int]float64{'q': 100, 'y': -100, 259: 100}
		req.RepetitionPenalty, req.FrequencyPenalty, req.PresencePenalty, req.TopK = 0.001, 2, -2, 3
		require.Contains(t, []string{"yes", "no"}, ask(t, m, req).text)
		req = wild(seed, 150, yesOrNo)
		req.MirostatTarget, req.IgnoreEOS = 1, true
		a = ask(t, m, req)
		require.Contains(t, []string{"yes", "no"}, a.text)
		require.Equal(t, engines.FinishStop, a.finish, "no further token is allowed")
		req = wild(seed, 150, yesOrNo)
		req.Temperature, req.Stop = 0, []string{"s"}
		require.Contains(t, []string{"ye", "no"}, ask(t, m, req).text)
	}
}

// TestConstraintEnd checks that a completion ends with a stop token or at the limit.
func TestConstraintEnd(t *testing.T) {
	m := open(t, weights(), Options{})
	as := &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: `root ::= "aaa" "a"*`}
	req := wild(1, 100, as)
	req.LogitBias = map[int]float64{259: 100}
	a := ask(t, m, req)
	require.Equal(t, "aaa", a.text)
	require.Equal(t, engines.FinishStop, a.finish)
	require.Equal(t, 259, a.tokens[len(a.tokens)-1])
	req.IgnoreEOS = true
	a = ask(t, m, req)
	require.Equal(t, strings.Repeat("a", 100), a.text)
	require.Equal(t, engines.FinishLength, a.finish)
	a = ask(t, m, wild(1, 2, as))
	require.Equal(t, "aa", a.text)
	require.Equal(t, engines.FinishLength, a.finish)
}

// TestConstraintRenormalizes checks that the probabilities of the allowed tokens keep their ratios,
// and that the reported logprobs are right.
func TestConstraintRenormalizes(t *testing.T) {
	m := open(t, weights(), Options{})
	prompt := ids(9, 4)
	f := &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: `root ::= [b-e]`}
	free := map[int]float64{}
	const n = 2000
	counts, sampling := map[int]int{}, map[int]float64{}
	for seed := range uint64(n) {
		all, _ := entire(t, m, engines.CompletionRequest{
			PromptTokens: prompt, MaxTokens: 1, Temperature: 1, Seed: &seed, Format: f, Logprobs: true,
		})
		require.Len(t, all.Logprobs, 1)
		counts[all.Logprobs[0].Token]++
		free[all.Logprobs[0].Token], sampling[all.Logprobs[0].Token] = all.Logprobs[0].Logprob, all.Logprobs[0].Sampling
	}
	mass := 0.0
	for _, p := range free {
		mass += math.Exp(p)
	}
	require.Less(t, mass, 0.9, "the model's own distribution has more")
	chi := 0.0
	for token, p := range free {
		want := math.Exp(p) / mass
		require.InDelta(t, want, math.Exp(sampling[token]), 1e-4)
		chi += math.Pow(float64(counts[token])-n*want, 2) / (n * want)
	}
	require.Len(t, free, 4)
	require.Less(t, chi, 16.27, "p = 0.001 of 3 degrees of freedom")
}

// TestDraftsAreConstrained checks that speculative decoding does not bypass constraints.
func TestDraftsAreConstrained(t *testing.T) {
	m := open(t, weights(), Options{})
	for seed := range uint64(20) {
		req := wild(seed, 60, &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: `root ::= ("ab" | "cd" [0-9])+`})
		want := ask(t, m, req)
		for _, draft := range []string{want.text, "abababab no form at all", want.text[:len(want.text)/2] + "?"} {
			req.Prediction = draft
			got := ask(t, m, req)
			require.Equal(t, want.text, got.text)
			require.Equal(t, want.finish, got.finish)
		}
	}
}

func TestConstraintAppliesAfterReasoning(t *testing.T) {
	m := openChat(t, begun)
	for seed := range uint64(8) {
		req := wild(seed, 120, yesOrNo)
		req.PromptTokens, req.Chat = nil, hello
		req.Reasoning = &engines.Reasoning{Budget: 10}
		all, usage := entire(t, m, req)
		require.Contains(t, []string{"yes", "no"}, all.Text)
		require.NotEmpty(t, all.Reasoning)
		require.Equal(t, engines.FinishStop, all.Finish)
		require.LessOrEqual(t, usage.ReasoningTokens, 10+len("</think>"))

		// With a budget only, the answer is unconstrained.
		req.Format, req.IgnoreEOS = nil, true
		all, _ = entire(t, m, req)
		require.NotContains(t, []string{"", "yes", "no"}, all.Text)
		require.Equal(t, engines.FinishLength, all.Finish)

		// Without a budget this model never ends its reasoning.
		req.Format, req.IgnoreEOS, req.Reasoning = yesOrNo, false, nil
		all, _ = entire(t, m, req)
		require.Empty(t, all.Text)
		require.Equal(t, engines.FinishLength, all.Finish)
	}
}

func TestUnreachedBudgetChangesNothing(t *testing.T) {
	m := openChat(t, begun)
	seed := uint64(3)
	req := engines.CompletionRequest{Chat: hello, MaxTokens: 50, Temperature: 1, Seed: &seed, IgnoreEOS: true}
	want, _ := entire(t, m, req)
	req.Reasoning = &engines.Reasoning{Budget: 60}
	got, _ := entire(t, m, req)
	require.Equal(t, want, got)
}

func tool(name, parameters string, strict bool) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"type":"function","function":{"name":%q,"parameters":%s,"strict":%v}}`, name,
		parameters, strict))
}

func TestRequiredCalls(t *testing.T) {
	m := openChat(t, tooled)
	tools := []json.RawMessage{
		tool("rain",
			`{"type":"object","properties":{"city":{"enum":["Rome","Oslo"]},`+
				`"days":{"type":"integer","minimum":1,"maximum":9}},"required":["city","days"]}`, true),
		tool("now", `{"type":"object","properties":{}}`, false),
	}
	for seed := range uint64(20) {
		req := wild(seed, 150, nil)
		req.PromptTokens, req.Chat = nil, &engines.Chat{
			Messages: hello.Messages[1:], Tools: tools, ToolChoice: &engines.ToolChoice{Name: "rain", Single: true},
		}
		all, _ := entire(t, m, req)
		require.Empty(t, all.Text)
		require.Equal(t, engines.FinishToolCalls, all.Finish)
		require.Len(t, all.ToolCalls, 1)
		require.Equal(t, "rain", all.ToolCalls[0].Name)
		require.Regexp(t, `^\{"city":"(Rome|Oslo)","days":[1-9]\}$`, all.ToolCalls[0].Arguments)

		req.Chat.ToolChoice = &engines.ToolChoice{}
		all, _ = entire(t, m, req)
		require.True(t, len(all.ToolCalls) > 0 || all.Finish == engines.FinishLength)
	}
}

// TestOfferedCallsAreStrict checks that optional calls of strict functions constrain the
// arguments, but neither the text nor the decision to call.
func TestOfferedCallsAreStrict(t *testing.T) {
	m := openChat(t, tooled).(*model)
	strict := tool("rain", `{"type":"object","properties":{"city":{"enum":["Rome","Oslo"]}},"required":["city"]}`, true)
	loose := tool("rain", `{"type":"object","properties":{"city":{"enum":["Rome","Oslo"]}},"required":["city"]}`, false)
	ask := func(tools ...json.RawMessage) *engines.CompletionRequest {
		return &engines.CompletionRequest{Chat: &engines.Chat{Messages: hello.Messages[1:], Tools: tools}}
	}
	c, err := m.newConstraint(ask(strict, tool("now", `{}`, false)), m.chat.template, "")
	require.NoError(t, err)
	may := func() (tokens string, end bool) {
		logits, err := c.apply(make([]float32, m.vocab))
		require.NoError(t, err)
		for token := range 256 {
			if logits[token] == 0 {
				tokens += string(rune(token))
			}
		}
		return tokens, logits[259] == 0
	}
	write := func(text string) {
		for i := range len(text) {
			_, err := c.apply(make([]float32, m.vocab))
			require.NoError(t, err)
			require.NoError(t, c.accept(int(text[i])), "%q", text[:i+1])
		}
	}
	for _, one := range []struct {
		text, next string // "" is anything
		ends       bool
	}{{"", "", true}, {"Well. <tool_call", "", true}, {">", "\n", false}, {"\n{\"name\": \"", "nr", false},
		{"rain\", \"arguments\": {\"city\": \"", "OR", false},
		{"Rome\"}}\n</tool_call", ">", false}, {">", "", true}, {" Done.", "", true}} {
		write(one.text)
		next, ends := may()
		if one.next == "" {
			require.Len(t, []rune(next), 256)
		} else {
			require.Equal(t, one.next, next, "after %q", one.text)
		}
		require.Equal(t, one.ends, ends, "after %q", one.text)
		require.False(t, c.complete())
	}

	for name, req := range map[string]*engines.CompletionRequest{
		"no strict function": ask(loose), "no tools": ask(),
		"a requested format": {Chat: ask(strict).Chat, Format: yesOrNo},
	} {
		c, err := m.newConstraint(req, m.chat.template, "")
		require.NoError(t, err)
		if req.Format != nil {
			require.NotNil(t, c, name)
			continue
		}
		require.Nil(t, c, name)
	}
	unmarked := openChat(t,
		strings.ReplaceAll(strings.ReplaceAll(tooled, "\n<tool_call>\n", ""), "\n</tool_call>", "")).(*model)
	c, err = unmarked.newConstraint(ask(strict), unmarked.chat.template, "")
	require.NoError(t, err)
	require.Nil(t, c, "a JSON answer is not necessarily a call")
	_, err = m.newConstraint(ask(tool("rain", `{"type":"object","minProperties":1}`, true)), m.chat.template, "")
	require.ErrorContains(t, err, "tools[0].function.parameters: #/minProperties cannot")
}

func TestUnsupportedConstraints(t *testing.T) {
	rain := []json.RawMessage{tool("rain", `{"type":"object","minProperties":1}`, true)}
	for name, c := range map[string]struct {
		template string
		chat     engines.Chat
		format   *engines.ResponseFormat
		want     string
	}{
		"an unknown syntax of calls": {
			strings.ReplaceAll(tooled, "{\"name\": ", "<call name="), engines.Chat{ToolChoice: &engines.ToolChoice{}}, nil,
			"toolChoice: required calls are not supported",
		},
		"inside something": {
			strings.ReplaceAll(tooled, "\n<tool_call>\n{", "{\"function\": {"), engines.Chat{ToolChoice: &engines.ToolChoice{}}, nil,
			"toolChoice: required calls are not supported",
		},
		"an unknown function": {
			tooled, engines.Chat{ToolChoice: &engines.ToolChoice{Name: "snow"}}, nil, "toolChoice: names a function",
		},
		"strict parameters": {
			tooled, engines.Chat{ToolChoice: &engines.ToolChoice{}}, nil, "tools[0].function.parameters: #/minProperties cannot",
		},
		"a format and calls": {tooled, engines.Chat{ToolChoice: &engines.ToolChoice{}}, yesOrNo, "format: cannot be combined"},
		"a schema": {
			tooled, engines.Chat{},
			&engines.ResponseFormat{Type: engines.FormatSchema, Schema: json.RawMessage(`{"not":{"type":"string"}}`)},
			"format: #/not cannot",
		},
		"an unsatisfiable schema": {
			tooled, engines.Chat{}, &engines.ResponseFormat{Type: engines.FormatSchema, Schema: json.RawMessage(`{"not":{}}`)},
			"format: no finite text conforms to it",
		},
		"a grammar": {
			tooled, engines.Chat{}, &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: `root ::= x`},
			"format: line 1, column 10",
		},
		"an ambiguous grammar": {
			tooled, engines.Chat{}, &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: `root ::= ("a"?){0,1000000}`},
			"format: it is too ambiguous",
		},
		"an unknown format": {tooled, engines.Chat{}, &engines.ResponseFormat{Type: "xml"}, "format: must be of type"},
	} {
		t.Run(name, func(t *testing.T) {
			c.chat.Messages, c.chat.Tools = hello.Messages[1:], rain
			_, err := openChat(t, c.template).Complete(t.Context(),
				engines.CompletionRequest{Chat: &c.chat, Format: c.format, MaxTokens: 3}, func(engines.Chunk) error { return nil })
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestGrammarCache checks that equal specs share a grammar and the oldest is evicted.
func TestGrammarCache(t *testing.T) {
	m := open(t, weights(), Options{}).(*model)
	first, err := m.newConstraint(&engines.CompletionRequest{Format: yesOrNo}, nil, "")
	require.NoError(t, err)
	again, err := m.newConstraint(&engines.CompletionRequest{
		Format: &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: yesOrNo.Grammar},
	}, nil, "")
	require.NoError(t, err)
	require.Same(t, first.grammar, again.grammar)
	for i := range maxGrammars {
		_, err := m.newConstraint(&engines.CompletionRequest{
			Format: &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: fmt.Sprintf("root ::= \"%d\"", i)},
		}, nil, "")
		require.NoError(t, err)
	}
	require.Len(t, m.grammars.compiled, maxGrammars)
	again, err = m.newConstraint(&engines.CompletionRequest{Format: yesOrNo}, nil, "")
	require.NoError(t, err)
	require.NotSame(t, first.grammar, again.grammar)
}
