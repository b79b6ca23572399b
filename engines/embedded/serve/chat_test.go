package serve

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/tokenizer"
)

// openChat serves a model with the chat template source until the end of the test.
func openChat(t *testing.T, source string) engines.Model {
	dir := save(t, weights())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(source), 0o600))
	m, err := New(Options{}).Load(t.Context(), engines.ModelFiles{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m
}

var hello = &engines.Chat{
	Messages: []engines.Message{{Role: "system", Content: "be kind"}, {Role: "user", Content: "hello <|end|>"}},
}

// TestChatIsItsRenderedPrompt checks that a conversation gets the completion of the prompt that
// the chat template renders from it.
func TestChatIsItsRenderedPrompt(t *testing.T) {
	m := open(t, weights(), Options{})
	tokens, _, err := tokenizer.NewBytes().Chat([]tokenizer.Message{
		{Role: "system", Content: "be kind"}, {Role: "user", Content: "hello <|end|>"},
	})
	require.NoError(t, err)
	want := complete(t, m, engines.CompletionRequest{PromptTokens: tokens, MaxTokens: 20, IgnoreEOS: true})
	all, _, usage := completeWithEcho(t, m,
		engines.CompletionRequest{Chat: hello, MaxTokens: 20, IgnoreEOS: true, RawOutput: true})
	require.Equal(t, want.text, all.Text)
	require.Equal(t, want.tokens, all.Tokens)
	require.Equal(t, tokens, all.Prompt.Tokens)
	require.Equal(t, "<|bos|>be kind<|user|>hello <|end|><|assistant|>", all.Prompt.Text)
	require.Equal(t, len(tokens), usage.PromptTokens)
}

func TestInvalidChats(t *testing.T) {
	plain := "{% for m in messages %}{{ m.content }}{% endfor %}"
	tool := []json.RawMessage{json.RawMessage(`{"type":"function","function":{"name":"f"}}`)}
	for name, c := range map[string]struct {
		template string
		req      engines.CompletionRequest
		want     string
	}{
		"tools": {
			plain, engines.CompletionRequest{Chat: &engines.Chat{Messages: hello.Messages, Tools: tool}}, "tools: ",
		},
		"reasoning": {
			plain, engines.CompletionRequest{Chat: hello, Reasoning: &engines.Reasoning{Effort: "high"}},
			"reasoning: has no effect, because this model does not reason",
		},
		"reasoning of a prompt": {
			"<think>", engines.CompletionRequest{Prompt: "p", Reasoning: &engines.Reasoning{Effort: "high"}},
			"reasoning: has no effect on a prompt",
		},
		"reasoning budget": {
			"{{ reasoning_effort }}", engines.CompletionRequest{Chat: hello, Reasoning: &engines.Reasoning{Budget: 5}},
			"reasoning: cannot limit the reasoning tokens",
		},
		"raise_exception": {
			"{{ raise_exception('no systems') }}", engines.CompletionRequest{Chat: hello}, "messages: .*no systems",
		},
		"nothing to continue": {
			"{# nothing #}", engines.CompletionRequest{Chat: hello}, "messages: .*renders an empty prompt",
		},
		"a template that breaks": {"{% for %}", engines.CompletionRequest{Chat: hello}, "messages: .*cannot be parsed"},
		"more than the window": {
			"{% for i in range(30) %}{{ messages[1].content }}{% endfor %}", engines.CompletionRequest{Chat: hello},
			"messages: have 390 tokens, which fill .* 200",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.req.MaxTokens = 3
			_, err := openChat(t, c.template).Complete(t.Context(), c.req, func(engines.Chunk) error { return nil })
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
			require.Regexp(t, c.want, err.Error())
		})
	}
	// A template that cannot be parsed does not prevent plain prompts.
	complete(t, openChat(t, "{% for %}"), engines.CompletionRequest{Prompt: "p", MaxTokens: 2})
}
