package tokenizer

import "anneal/domain"

// A Message is a turn of a conversation.
type Message struct {
	Role    string `json:"role"` // system, user or assistant
	Content string `json:"content"`
	// Weight is 0 if the training loss excludes an assistant's turn; nil stands for 1.
	Weight *float64 `json:"weight,omitempty"`
}

// Special tokens of the base model's conversations.
const (
	markBOS       = "<|bos|>"
	markUser      = "<|user|>"
	markAssistant = "<|assistant|>"
	markEnd       = "<|end|>"
)

// closings are the special tokens that follow a turn, by its role. The <|assistant|> after a user's
// turn begins the assistant's turn, so that the same template renders conversations for training
// and prompts for inference. Because training also targets <|assistant|>, a model can generate it,
// and so can respond to a prompt that ends with the user's text.
var closings = map[string]string{"system": markUser, "user": markAssistant, "assistant": markEnd}

// chatTemplate is a Jinja template for tokenizer_config.json, which renders conversations as Chat
// tokenizes them.
const chatTemplate = `{{ bos_token }}{% for message in messages %}{{ message['content'] }}` +
	`{% if message['role'] == 'system' %}<|user|>` +
	`{% elif message['role'] == 'user' %}<|assistant|>` +
	`{% elif message['role'] == 'assistant' %}<|end|>` +
	`{% else %}{{ raise_exception('unknown role ' + message['role']) }}{% endif %}{% endfor %}`

// Chats reports whether the model has the base model's chat template, which Chat implements.
func (t *Tokenizer) Chats() bool { return t.chat }

// Chat tokenizes a conversation. isTarget[i] reports whether the training loss includes the token
// ids[i]: those of an assistant's turn, of the <|end|> after it and of the <|assistant|> before it,
// unless the weight of the turn is 0. If the last turn is a user's, the tokens are the prompt of
// the assistant's next turn.
//
// Chat returns FailedPrecondition if the model has another template, and InvalidArgument for an
// unknown role.
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
