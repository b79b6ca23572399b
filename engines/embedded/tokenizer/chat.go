package tokenizer

import "anneal/domain"

// A Message is one turn of a conversation.
type Message struct {
	Role    string `json:"role"` // system, user or assistant
	Content string `json:"content"`
	// Weight 0 excludes an assistant's turn from the training loss; nil is 1.
	Weight *float64 `json:"weight,omitempty"`
}

// The special tokens of the shipped model's conversations.
const (
	markBOS       = "<|bos|>"
	markUser      = "<|user|>"
	markAssistant = "<|assistant|>"
	markEnd       = "<|end|>"
)

// closings is the special token after a turn of each role. A user's turn is closed by the token
// that opens the answer, so that training and inference use the same template, and a model that
// has learned this token answers a prompt without it.
var closings = map[string]string{"system": markUser, "user": markAssistant, "assistant": markEnd}

// chatTemplate is Chat as a Jinja template for tokenizer_config.json.
const chatTemplate = `{{ bos_token }}{% for message in messages %}{{ message['content'] }}` +
	`{% if message['role'] == 'system' %}<|user|>` +
	`{% elif message['role'] == 'user' %}<|assistant|>` +
	`{% elif message['role'] == 'assistant' %}<|end|>` +
	`{% else %}{{ raise_exception('unknown role ' + message['role']) }}{% endif %}{% endfor %}`

// Chats reports whether the model has the shipped model's template, which Chat implements.
func (t *Tokenizer) Chats() bool { return t.chat }

// Chat tokenizes a conversation. learn[i] reports whether ids[i] is a target of the loss: an
// assistant's content, the <|end|> after it and the <|assistant|> before it, unless its weight
// is 0. If the last turn is the user's, the tokens are the prompt of the answer.
//
// The error is FailedPrecondition for a model with another template, InvalidArgument for an
// unknown role.
func (t *Tokenizer) Chat(messages []Message) (ids []int, learn []bool, err error) {
	if !t.chat {
		return nil, nil, domain.Errorf(domain.FailedPrecondition,
			"the model has no chat template that the embedded engine can render; use prompts and completions instead of "+
				"messages")
	}
	add := func(wanted bool, tokens ...int) {
		for _, id := range tokens {
			ids, learn = append(ids, id), append(learn, wanted)
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
			learn[last] = true
		}
		add(wanted, t.Encode(m.Content)...)
		add(wanted, t.specials[closing])
	}
	return ids, learn, nil
}
