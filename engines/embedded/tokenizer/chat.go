package tokenizer

import "anneal/domain"

// A Message is one turn of a conversation.
type Message struct {
	Role    string `json:"role"` // system, user or assistant
	Content string `json:"content"`
	// Weight 0 excludes an assistant's turn from the training loss; nil means 1.
	Weight *float64 `json:"weight,omitempty"`
}

// The constants are the special tokens of the shipped model's conversations.
const (
	markBOS       = "<|bos|>"
	markUser      = "<|user|>"
	markAssistant = "<|assistant|>"
	markEnd       = "<|end|>"
)

// closings maps each role to the special token after its turns. The token after a user's turn opens
// the answer. Training and inference thus use one template, and a model that has learned to
// generate this token also answers a prompt that does not end with it.
var closings = map[string]string{"system": markUser, "user": markAssistant, "assistant": markEnd}

// chatTemplate is a Jinja template for tokenizer_config.json that renders conversations as Chat
// does.
const chatTemplate = `{{ bos_token }}{% for message in messages %}{{ message['content'] }}` +
	`{% if message['role'] == 'system' %}<|user|>` +
	`{% elif message['role'] == 'user' %}<|assistant|>` +
	`{% elif message['role'] == 'assistant' %}<|end|>` +
	`{% else %}{{ raise_exception('unknown role ' + message['role']) }}{% endif %}{% endfor %}`

// Chats reports whether the model has the shipped model's template, which Chat implements.
func (t *Tokenizer) Chats() bool { return t.chat }

// Chat tokenizes a conversation. isTarget[i] reports whether ids[i] is a target of the loss: an
// assistant's content, the <|end|> after it and the <|assistant|> before it, unless the turn's
// weight is 0. If the last turn is the user's, the tokens are the prompt of the answer.
//
// Chat returns a FailedPrecondition error if the model has another template, and InvalidArgument
// for an unknown role.
func (t *Tokenizer) Chat(messages []Message) (ids []int, isTarget []bool, err error) {
	if !t.chat {
		return nil, nil, domain.Errorf(domain.FailedPrecondition,
			"the model has no chat template that the embedded engine can render; use prompts and completions instead of "+
				"messages")
	}
	add := func(wanted bool, tokens ...int) {
		for _, id := range tokens {
			ids, isTarget = append(ids, id), append(isTarget, wanted)
		}
	}
	add(false, t.bos)
	for i, m := range messages {
		closing, ok := closings[m.Role]
		if !ok {
			return nil, nil, domain.Errorf(domain.InvalidArgument,
				"messages[%d].role: %q is unknown to this model; use system, user or assistant", i, m.Role)
		}
		wanted := m.Role == "assistant" && (m.Weight == nil || *m.Weight != 0)
		if last := len(ids) - 1; wanted && ids[last] == t.specials[markAssistant] {
			isTarget[last] = true
		}
		add(wanted, t.Encode(m.Content)...)
		add(wanted, t.specials[closing])
	}
	return ids, isTarget, nil
}
