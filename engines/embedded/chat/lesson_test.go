package chat

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded/miniature"
	"anneal/engines/embedded/tokenizer"
)

// learnt is a lesson with what is learnt of it in brackets.
func learnt(t *testing.T, tokens *tokenizer.Tokenizer, one *Template, messages []tokenizer.Message) string {
	ids, learn, err := one.Lesson(messages)
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
	zero := 0.0
	talk := []tokenizer.Message{{Role: "user", Content: "one"}, {Role: "assistant", Content: "\nfirst <|im_end|>"}, {Role: "user", Content: "two"}, {Role: "assistant", Content: "second"}}
	quiet := append([]tokenizer.Message(nil), talk...)
	quiet[1].Weight = &zero
	for name, c := range map[string]struct {
		family   string
		messages []tokenizer.Message
		want     string
	}{
		"both turns": {"qwen2", talk, "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n[\nfirst <|im_end|><|im_end|>]\n" +
			"<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n[second<|im_end|>]\n"},
		"weight 0": {"qwen2", quiet, "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n\nfirst <|im_end|><|im_end|>\n" +
			"<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n[second<|im_end|>]\n"},
		"a prompt": {"qwen3", talk[:1], "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n"},
		"llama 3": {"llama3", talk[2:], "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\ntwo<|eot_id|>" +
			"<|start_header_id|>assistant<|end_header_id|>\n\n[second<|eot_id|>]"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, miniature.Write(dir, c.family))
			tokens, err := tokenizer.Load(dir)
			require.NoError(t, err)
			one, err := Load(dir, tokens)
			require.NoError(t, err)
			require.Equal(t, c.want, learnt(t, tokens, one, c.messages))

			ids, _, err := one.Lesson(c.messages)
			require.NoError(t, err)
			last := engines.Chat{}
			for _, m := range c.messages {
				last.Messages = append(last.Messages, engines.Message{Role: m.Role, Content: m.Content})
			}
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
	talk := []tokenizer.Message{{Role: "user", Content: "1"}, {Role: "assistant", Content: "2"}, {Role: "user", Content: "3"}, {Role: "assistant", Content: "4"}}
	require.Equal(t, "u:1;a:2;u:3;a:[<think></think>4;]", learnt(t, tokens, one, talk))

	one, err = parse(`{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}!{% endif %}`, tokens, nil)
	require.NoError(t, err)
	_, _, err = one.Lesson(talk)
	require.ErrorContains(t, err, "messages[1]: this model's chat template does not write the answer behind its own prompt")
}
