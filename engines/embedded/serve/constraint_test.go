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

// toolTemplate is a template like those of Hermes and Qwen: it lists tools and delimits tool calls.
const toolTemplate = `{{ bos_token }}{% if tools %}{% for tool in tools %}{{ tool.function.name }} {% endfor %}` +
	`{% endif %}` +
	`{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for call in m.tool_calls %}` +
	"\n<tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}" +
	"}\n</tool_call>" +
	`{% endfor %}{% endfor %}[assistant]`

// thinkingTemplate is a template that opens the reasoning of the answer.
const thinkingTemplate = `{% for m in messages %}{{ m.content }}{% endfor %}<think>`

var yesOrNo = &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: `root ::= "yes" | "no"`}

// parsedResponse runs a request and returns its chunks joined to one, with reasoning and tool
// calls parsed, and its usage.
func parsedResponse(t *testing.T, m engines.Model, req engines.CompletionRequest) (all engines.Chunk,
	usage engines.Usage) {
	usage, err := m.Complete(t.Context(), req, func(c engines.Chunk) error {
		all.Text, all.Reasoning, all.ToolCalls = all.Text+c.Text, all.Reasoning+c.Reasoning, append(all.ToolCalls,
			c.ToolCalls...)
		all.Tokens, all.Logprobs, all.Finish = append(all.Tokens, c.Tokens...), append(all.Logprobs, c.Logprobs...), c.Finish
		return nil
	})
	require.NoError(t, err)
	return all, usage
}

// noiseRequest returns a request in format f. Without the format, the completion would be nearly
// uniform noise.
func noiseRequest(seed uint64, maxTokens int, f *engines.ResponseFormat) engines.CompletionRequest {
	return engines.CompletionRequest{
		PromptTokens: ids(9, int(seed)), MaxTokens: maxTokens, Temperature: 2, Seed: &seed, Format: f,
	}
}

func TestCompletionsConform(t *testing.T) {
	m := open(t, weights(), Options{})
	for seed := range uint64(60) {
		a := complete(t, m, noiseRequest(seed, 150, &engines.ResponseFormat{Type: engines.FormatJSON}))
		require.True(t, a.finish == engines.FinishLength || json.Valid([]byte(a.text)), "%q", a.text)
		require.True(t, strings.HasPrefix(a.text, "{"), "%q", a.text)
		require.Len(t, a.tokens, a.usage.CompletionTokens)

		a = complete(t, m, noiseRequest(seed, 150, &engines.ResponseFormat{Type: engines.FormatSchema,
			Schema: json.RawMessage(`{"type":"object","properties":{"b":{"type":"integer","minimum":3,"maximum":40},` +
				`"a":{"enum":["x","y"]}},"required":["b","a"]}`)}))
		require.Equal(t, engines.FinishStop, a.finish)
		require.Regexp(t, `^\{\s*"b":\s*([3-9]|[1-3]\d|40),\s*"a":\s*"[xy]"\s*\}$`, a.text)

		// The bias must not affect whether the completion conforms.
		req := noiseRequest(seed, 150, yesOrNo)
		req.LogitBias = map[int]float64{'q': 100, 'y': -100, 259: 100}
		req.RepetitionPenalty, req.FrequencyPenalty, req.PresencePenalty, req.TopK = 0.001, 2, -2, 3
		require.Contains(t, []string{"yes", "no"}, complete(t, m, req).text)
		req = noiseRequest(seed, 150, yesOrNo)
		req.MirostatTarget, req.IgnoreEOS = 1, true
		a = complete(t, m, req)
		require.Contains(t, []string{"yes", "no"}, a.text)
		require.Equal(t, engines.FinishStop, a.finish, "no further token is allowed")
		req = noiseRequest(seed, 150, yesOrNo)
		req.Temperature, req.Stop = 0, []string{"s"}
		require.Contains(t, []string{"ye", "no"}, complete(t, m, req).text)
	}
}

// TestConstraintEnd checks that a constrained completion ends with a stop token or at its token
// limit.
func TestConstraintEnd(t *testing.T) {
	m := open(t, weights(), Options{})
	as := &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: `root ::= "aaa" "a"*`}
	req := noiseRequest(1, 100, as)
	req.LogitBias = map[int]float64{259: 100}
	a := complete(t, m, req)
	require.Equal(t, "aaa", a.text)
	require.Equal(t, engines.FinishStop, a.finish)
	require.Equal(t, 259, a.tokens[len(a.tokens)-1])
	req.IgnoreEOS = true
	a = complete(t, m, req)
	require.Equal(t, strings.Repeat("a", 100), a.text)
	require.Equal(t, engines.FinishLength, a.finish)
	a = complete(t, m, noiseRequest(1, 2, as))
	require.Equal(t, "aa", a.text)
	require.Equal(t, engines.FinishLength, a.finish)
}

// TestConstraintRenormalizes checks that a constraint keeps the ratios of the allowed tokens'
// probabilities, and that the reported logprobs match the probabilities.
func TestConstraintRenormalizes(t *testing.T) {
	m := open(t, weights(), Options{})
	prompt := ids(9, 4)
	f := &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: `root ::= [b-e]`}
	free := map[int]float64{}
	const n = 2000
	counts, sampling := map[int]int{}, map[int]float64{}
	for seed := range uint64(n) {
		all, _ := parsedResponse(t, m, engines.CompletionRequest{
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

// TestDraftsAreConstrained checks that completions with draft tokens conform to their grammar.
func TestDraftsAreConstrained(t *testing.T) {
	m := open(t, weights(), Options{})
	for seed := range uint64(20) {
		req := noiseRequest(seed, 60,
			&engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: `root ::= ("ab" | "cd" [0-9])+`})
		want := complete(t, m, req)
		for _, draft := range []string{want.text, "abababab no form at all", want.text[:len(want.text)/2] + "?"} {
			req.Prediction = draft
			got := complete(t, m, req)
			require.Equal(t, want.text, got.text)
			require.Equal(t, want.finish, got.finish)
		}
	}
}

func TestConstraintAppliesAfterReasoning(t *testing.T) {
	m := openChat(t, thinkingTemplate)
	for seed := range uint64(8) {
		req := noiseRequest(seed, 120, yesOrNo)
		req.PromptTokens, req.Chat = nil, hello
		req.Reasoning = &engines.Reasoning{Budget: 10}
		all, usage := parsedResponse(t, m, req)
		require.Contains(t, []string{"yes", "no"}, all.Text)
		require.NotEmpty(t, all.Reasoning)
		require.Equal(t, engines.FinishStop, all.Finish)
		require.LessOrEqual(t, usage.ReasoningTokens, 10+len("</think>"))

		// With a reasoning budget but no format, the answer is unconstrained.
		req.Format, req.IgnoreEOS = nil, true
		all, _ = parsedResponse(t, m, req)
		require.NotContains(t, []string{"", "yes", "no"}, all.Text)
		require.Equal(t, engines.FinishLength, all.Finish)

		// Without a reasoning budget, this model never ends its reasoning.
		req.Format, req.IgnoreEOS, req.Reasoning = yesOrNo, false, nil
		all, _ = parsedResponse(t, m, req)
		require.Empty(t, all.Text)
		require.Equal(t, engines.FinishLength, all.Finish)
	}
}

func TestUnreachedBudgetChangesNothing(t *testing.T) {
	m := openChat(t, thinkingTemplate)
	seed := uint64(3)
	req := engines.CompletionRequest{Chat: hello, MaxTokens: 50, Temperature: 1, Seed: &seed, IgnoreEOS: true}
	want, _ := parsedResponse(t, m, req)
	req.Reasoning = &engines.Reasoning{Budget: 60}
	got, _ := parsedResponse(t, m, req)
	require.Equal(t, want, got)
}

func tool(name, parameters string, strict bool) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"type":"function","function":{"name":%q,"parameters":%s,"strict":%v}}`, name,
		parameters, strict))
}

func TestRequiredCalls(t *testing.T) {
	m := openChat(t, toolTemplate)
	tools := []json.RawMessage{
		tool("rain",
			`{"type":"object","properties":{"city":{"enum":["Rome","Oslo"]},`+
				`"days":{"type":"integer","minimum":1,"maximum":9}},"required":["city","days"]}`, true),
		tool("now", `{"type":"object","properties":{}}`, false),
	}
	for seed := range uint64(20) {
		req := noiseRequest(seed, 150, nil)
		req.PromptTokens, req.Chat = nil, &engines.Chat{
			Messages: hello.Messages[1:], Tools: tools, ToolChoice: &engines.ToolChoice{Name: "rain", Single: true},
		}
		all, _ := parsedResponse(t, m, req)
		require.Empty(t, all.Text)
		require.Equal(t, engines.FinishToolCalls, all.Finish)
		require.Len(t, all.ToolCalls, 1)
		require.Equal(t, "rain", all.ToolCalls[0].Name)
		require.Regexp(t, `^\{"city":"(Rome|Oslo)","days":[1-9]\}$`, all.ToolCalls[0].Arguments)

		req.Chat.ToolChoice = &engines.ToolChoice{}
		all, _ = parsedResponse(t, m, req)
		require.True(t, len(all.ToolCalls) > 0 || all.Finish == engines.FinishLength)
	}
}

// TestOfferedCallsAreStrict checks that the arguments of optional calls of strict functions are
// constrained, but neither the text nor the decision to call a function.
func TestOfferedCallsAreStrict(t *testing.T) {
	m := openChat(t, toolTemplate).(*model)
	strict := tool("rain", `{"type":"object","properties":{"city":{"enum":["Rome","Oslo"]}},"required":["city"]}`, true)
	loose := tool("rain", `{"type":"object","properties":{"city":{"enum":["Rome","Oslo"]}},"required":["city"]}`, false)
	request := func(tools ...json.RawMessage) *engines.CompletionRequest {
		return &engines.CompletionRequest{Chat: &engines.Chat{Messages: hello.Messages[1:], Tools: tools}}
	}
	c, err := m.newConstraint(request(strict, tool("now", `{}`, false)), m.chat.template, "")
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
		text, next string // "" matches anything
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
		"no strict function": request(loose), "no tools": request(),
		"a requested format": {Chat: request(strict).Chat, Format: yesOrNo},
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
		strings.ReplaceAll(strings.ReplaceAll(toolTemplate, "\n<tool_call>\n", ""), "\n</tool_call>", "")).(*model)
	c, err = unmarked.newConstraint(request(strict), unmarked.chat.template, "")
	require.NoError(t, err)
	require.Nil(t, c, "a JSON answer is not necessarily a call")
	_, err = m.newConstraint(request(tool("rain", `{"type":"object","minProperties":1}`, true)), m.chat.template, "")
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
		"an unknown tool-call syntax": {
			strings.ReplaceAll(toolTemplate, "{\"name\": ", "<call name="), engines.Chat{ToolChoice: &engines.ToolChoice{}}, nil,
			"toolChoice: required calls are not supported",
		},
		"inside something": {
			strings.ReplaceAll(toolTemplate, "\n<tool_call>\n{", "{\"function\": {"),
			engines.Chat{ToolChoice: &engines.ToolChoice{}},
			nil,
			"toolChoice: required calls are not supported",
		},
		"an unknown function": {
			toolTemplate, engines.Chat{ToolChoice: &engines.ToolChoice{Name: "snow"}}, nil,
			`toolChoice: tools has no function "snow"`,
		},
		"strict parameters": {
			toolTemplate, engines.Chat{ToolChoice: &engines.ToolChoice{}}, nil,
			"tools[0].function.parameters: #/minProperties cannot",
		},
		"a format and calls": {toolTemplate, engines.Chat{ToolChoice: &engines.ToolChoice{}}, yesOrNo,
			"format: cannot be combined"},
		"a schema": {
			toolTemplate, engines.Chat{},
			&engines.ResponseFormat{Type: engines.FormatSchema, Schema: json.RawMessage(`{"not":{"type":"string"}}`)},
			"format: #/not cannot",
		},
		"an unsatisfiable schema": {
			toolTemplate, engines.Chat{},
			&engines.ResponseFormat{Type: engines.FormatSchema, Schema: json.RawMessage(`{"not":{}}`)},
			"format: no finite text conforms to the grammar",
		},
		"a grammar": {
			toolTemplate, engines.Chat{}, &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: `root ::= x`},
			"format: line 1, column 10",
		},
		"an ambiguous grammar": {
			toolTemplate, engines.Chat{},
			&engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: `root ::= ("a"?){0,1000000}`},
			"format: the grammar is too ambiguous",
		},
		"an unknown format": {toolTemplate, engines.Chat{}, &engines.ResponseFormat{Type: "xml"}, "format: must be of type"},
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

// TestGrammarCache checks that equal specs share a grammar, and that the least recently used
// grammar is evicted.
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

// TestRawOutputHasTheGrammar checks that the raw output of a completion that follows a JSON schema
// has a grammar in GBNF. The grammar must accept the completion. Sent as the format of a request,
// it must constrain the completion like the schema.
func TestRawOutputHasTheGrammar(t *testing.T) {
	m := open(t, weights(), Options{})
	schema := &engines.ResponseFormat{Type: engines.FormatSchema, Schema: []byte(
		`{"type":"object","properties":{"n":{"type":"integer","minimum":1,"maximum":3}},"required":["n"],` +
			`"additionalProperties":false}`)}
	grammarOf := func(f *engines.ResponseFormat, raw bool) (source, text string) {
		req := noiseRequest(5, 60, f)
		req.RawOutput = raw
		_, err := m.Complete(t.Context(), req, func(c engines.Chunk) error {
			text += c.Text
			if c.Prompt != nil {
				source += c.Prompt.Grammar
			}
			return nil
		})
		require.NoError(t, err)
		return source, text
	}
	source, text := grammarOf(schema, true)
	require.Contains(t, source, "root ::= ")
	again, same := grammarOf(&engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: source}, true)
	require.NotEmpty(t, again)
	require.Equal(t, text, same)
	for _, f := range []*engines.ResponseFormat{nil, schema} {
		source, _ = grammarOf(f, false)
		require.Empty(t, source)
	}
	source, _ = grammarOf(nil, true)
	require.Empty(t, source)
}
