package chat

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/miniature"
	"anneal/engines/embedded/tokenizer"
)

// every returns a function that reports false for the turns in except and true for all other
// turns.
func every(except ...int) func(int) bool {
	return func(i int) bool { return !slices.Contains(except, i) }
}

// targets renders a conversation with a template, and returns the text with brackets around the
// targets of the loss.
func targets(t *testing.T, tokens *tokenizer.Tokenizer, one *Template, c *engines.Chat, wanted func(int) bool) string {
	ids, isTarget, err := one.Targets(c, wanted)
	require.NoError(t, err)
	require.Len(t, isTarget, len(ids))
	decoder, text, on := tokens.NewRawDecoder(), "", false
	for i, id := range ids {
		if isTarget[i] != on {
			text += map[bool]string{true: "[", false: "]"}[isTarget[i]]
			on = isTarget[i]
		}
		text += decoder.Next(id)
	}
	if on {
		text += "]"
	}
	return text
}

func TestTargets(t *testing.T) {
	talk := turns("user", "one", "assistant", "\nfirst <|im_end|>", "user", "two", "assistant", "second")
	for name, c := range map[string]struct {
		family   string
		messages []engines.Message
		wanted   func(int) bool
		want     string
	}{
		"both turns": {
			"qwen2", talk, every(), "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n[\nfirst <|im_end|><|im_end|>]\n" +
				"<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n[second<|im_end|>]\n",
		},
		"weight 0": {
			"qwen2", talk, every(1), "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n\nfirst <|im_end|><|im_end|>\n" +
				"<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n[second<|im_end|>]\n",
		},
		"a prompt": {"qwen3", talk[:1], every(), "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n"},
		"llama 3": {
			"llama3", talk[2:], every(), "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\ntwo<|eot_id|>" +
				"<|start_header_id|>assistant<|end_header_id|>\n\n[second<|eot_id|>]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, miniature.Write(dir, c.family))
			tokens, err := tokenizer.Load(dir)
			require.NoError(t, err)
			one, err := Load(dir, tokens)
			require.NoError(t, err)
			last := engines.Chat{Messages: c.messages}
			require.Equal(t, c.want, targets(t, tokens, one, &last, c.wanted))

			ids, _, err := one.Targets(&last, c.wanted)
			require.NoError(t, err)
			if n := len(last.Messages); last.Messages[n-1].Role == "assistant" {
				last.Messages = last.Messages[:n-1]
			}
			prompt, _, err := one.Prompt(&last, nil)
			require.NoError(t, err)
			require.Equal(t, prompt, ids[:len(prompt)], "the tokens begin with the prompt")
		})
	}
}

// TestTargetsOfChangedTurns checks Targets for a template that renders a turn differently when
// later turns follow: only the last turn, as rendered in the end, is a target.
func TestTargetsOfChangedTurns(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, miniature.Write(dir, "qwen3"))
	tokens, err := tokenizer.Load(dir)
	require.NoError(t, err)
	one, err := parse(
		`{% for m in messages %}{{ m['role'][0] }}:{% if m['role'] == 'assistant' and loop.last %}`+
			`<think></think>{% endif %}{{ m['content'] }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}`, tokens, nil)
	require.NoError(t, err)
	talk := &engines.Chat{Messages: turns("user", "1", "assistant", "2", "user", "3", "assistant", "4")}
	require.Equal(t, "u:1;a:2;u:3;a:[<think></think>4;]", targets(t, tokens, one, talk, every()))

	one, err = parse(`{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}!{% endif %}`,
		tokens, nil)
	require.NoError(t, err)
	_, _, err = one.Targets(talk, every())
	require.ErrorContains(t, err,
		"messages[1]: this model's chat template renders the prompt of this response differently")
}

// hermes is a template that renders tools, calls and results of calls like the template of Qwen
// 2.5.
const hermes = `{% if tools %}{{ '<|im_start|>system' }}{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}` +
	`{% endfor %}{{ '<|im_end|>\n' }}{% endif %}` +
	`{% for m in messages %}{% if m.role == 'tool' %}` +
	`{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}` +
	`{% else %}{{ '<|im_start|>' + m.role }}{% if m.content %}{{ '\n' + m.content }}{% endif %}` +
	`{% for call in m.tool_calls %}` +
	`{{ '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}{{ call.function.arguments | tojson }}` +
	`{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}` +
	`{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// TestTargetsOfTools checks that Targets renders calls in the syntax of serving and marks them
// as targets.
func TestTargetsOfTools(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, miniature.Write(dir, "qwen2"))
	tokens, err := tokenizer.Load(dir)
	require.NoError(t, err)
	one, err := parse(hermes, tokens, nil)
	require.NoError(t, err)
	clock := json.RawMessage(`{"type": "function", "function": {"name": "clock"}}`)
	talk := &engines.Chat{Tools: []json.RawMessage{clock}, Messages: slices.Concat(called, turns("assistant", "Mild."))}
	require.Equal(
		t, "<|im_start|>system\n"+string(clock)+"<|im_end|>\n<|im_start|>user\nParis?<|im_end|>\n<|im_start|>assistant\n"+
			"[<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"zone\": null, \"city\": \"Paris\", \"d\": "+
			"1.5}}\n</tool_call><|im_end|>]\n"+
			"<|im_start|>user\n<tool_response>\n22 °C\n</tool_response><|im_end|>\n<|im_start|>assistant\n[Mild.<|im_end|>]\n",
		targets(t, tokens, one, talk, every()))

	simple, err := Load(dir, tokens)
	require.NoError(t, err)
	for want, c := range map[string]*engines.Chat{
		"tools: are not supported by this model's chat template": {
			Tools: talk.Tools, Messages: turns("user", "u", "assistant", "a"),
		},
		"messages: tool_calls are not supported by this model's chat template": {Messages: called},
	} {
		_, _, err := simple.Targets(c, every())
		require.ErrorContains(t, err, want)
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	}
}
