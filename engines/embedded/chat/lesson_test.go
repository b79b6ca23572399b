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

// every wants all turns learnt, but those named.
func every(but ...int) func(int) bool { return func(i int) bool { return !slices.Contains(but, i) } }

// learnt is a lesson with what is learnt of it in brackets.
func learnt(t *testing.T, tokens *tokenizer.Tokenizer, one *Template, c *engines.Chat, wanted func(int) bool) string {
	ids, learn, err := one.Lesson(c, wanted)
	require.NoError(t, err)
	require.Len(t, learn, len(ids))
	speller, text, on := tokens.NewSpeller(), "", false
	for i, id := range ids {
		if learn[i] != on {
			text += map[bool]string{true: "[", false: "]"}[learn[i]]
			on = learn[i]
		}
		text += speller.Next(id)
	}
	if on {
		text += "]"
	}
	return text
}

func TestLessons(t *testing.T) {
	talk := turns("user", "one", "assistant", "\nfirst <|im_end|>", "user", "two", "assistant", "second")
	for name, c := range map[string]struct {
		family   string
		messages []engines.Message
		wanted   func(int) bool
		want     string
	}{
		"both turns": {"qwen2", talk, every(), "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n[\nfirst <|im_end|><|im_end|>]\n" +
			"<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n[second<|im_end|>]\n"},
		"weight 0": {"qwen2", talk, every(1), "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n\nfirst <|im_end|><|im_end|>\n" +
			"<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n[second<|im_end|>]\n"},
		"a prompt": {"qwen3", talk[:1], every(), "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n"},
		"llama 3": {"llama3", talk[2:], every(), "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\ntwo<|eot_id|>" +
			"<|start_header_id|>assistant<|end_header_id|>\n\n[second<|eot_id|>]"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, miniature.Write(dir, c.family))
			tokens, err := tokenizer.Load(dir)
			require.NoError(t, err)
			one, err := Load(dir, tokens)
			require.NoError(t, err)
			last := engines.Chat{Messages: c.messages}
			require.Equal(t, c.want, learnt(t, tokens, one, &last, c.wanted))

			ids, _, err := one.Lesson(&last, c.wanted)
			require.NoError(t, err)
			if n := len(last.Messages); last.Messages[n-1].Role == "assistant" {
				last.Messages = last.Messages[:n-1]
			}
			prompt, _, err := one.Prompt(&last, nil)
			require.NoError(t, err)
			require.Equal(t, prompt, ids[:len(prompt)], "what is trained begins with what is asked")
		})
	}
}

// TestLessonsOfTemplatesThatForget: earlier answers are read as the template
// writes them by then, and only what is rendered as it will be met is learnt.
func TestLessonsOfTemplatesThatForget(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, miniature.Write(dir, "qwen3"))
	tokens, err := tokenizer.Load(dir)
	require.NoError(t, err)
	one, err := parse(`{% for m in messages %}{{ m['role'][0] }}:{% if m['role'] == 'assistant' and loop.last %}<think></think>{% endif %}{{ m['content'] }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}`, tokens, nil)
	require.NoError(t, err)
	talk := &engines.Chat{Messages: turns("user", "1", "assistant", "2", "user", "3", "assistant", "4")}
	require.Equal(t, "u:1;a:2;u:3;a:[<think></think>4;]", learnt(t, tokens, one, talk, every()))

	one, err = parse(`{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}!{% endif %}`, tokens, nil)
	require.NoError(t, err)
	_, _, err = one.Lesson(talk, every())
	require.ErrorContains(t, err, "messages[1]: this model's chat template does not write the answer behind its own prompt")
}

// hermes shows tools, calls and their answers as Qwen 2.5's template does.
const hermes = `{% if tools %}{{ '<|im_start|>system' }}{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}` +
	`{% for m in messages %}{% if m.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}` +
	`{% else %}{{ '<|im_start|>' + m.role }}{% if m.content %}{{ '\n' + m.content }}{% endif %}{% for call in m.tool_calls %}` +
	`{{ '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}` +
	`{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// TestLessonsOfTools: a call is learnt in the form in which the model is asked
// for it, of the tools that the row offers.
func TestLessonsOfTools(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, miniature.Write(dir, "qwen2"))
	tokens, err := tokenizer.Load(dir)
	require.NoError(t, err)
	one, err := parse(hermes, tokens, nil)
	require.NoError(t, err)
	clock := json.RawMessage(`{"type": "function", "function": {"name": "clock"}}`)
	talk := &engines.Chat{Tools: []json.RawMessage{clock}, Messages: slices.Concat(called, turns("assistant", "Mild."))}
	require.Equal(t, "<|im_start|>system\n"+string(clock)+"<|im_end|>\n<|im_start|>user\nParis?<|im_end|>\n<|im_start|>assistant\n"+
		"[<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"zone\": null, \"city\": \"Paris\", \"d\": 1.5}}\n</tool_call><|im_end|>]\n"+
		"<|im_start|>user\n<tool_response>\n22 °C\n</tool_response><|im_end|>\n<|im_start|>assistant\n[Mild.<|im_end|>]\n", learnt(t, tokens, one, talk, every()))

	simple, err := Load(dir, tokens)
	require.NoError(t, err)
	for says, c := range map[string]*engines.Chat{
		"tools: this model's chat template has no place for tools":         {Tools: talk.Tools, Messages: turns("user", "u", "assistant", "a")},
		"messages: this model's chat template has no place for tool_calls": {Messages: called},
	} {
		_, _, err := simple.Lesson(c, every())
		require.ErrorContains(t, err, says)
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	}
}
