package chat

import (
	"slices"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

// Targets tokenizes a conversation for training, like tokenizer.Chat but with the model's own
// template. learn[i] reports whether ids[i] is a target of the loss: the tokens of a wanted
// assistant turn after the prompt of that turn, up to its end token.
//
// Each turn is rendered as in inference. A turn that the template renders differently once others
// follow (for example without its reasoning) is context there, and not a target.
func (t *Template) Targets(c *engines.Chat, wanted func(turn int) bool) (ids []int, learn []bool, err error) {
	l := targetBuilder{template: t, mark: newMark(t, c)}
	upTo := func(n int, prompt bool) (string, error) {
		return t.execute(&engines.Chat{Messages: c.Messages[:n], Tools: c.Tools}, nil, l.mark, prompt)
	}
	for i, m := range c.Messages {
		if m.Role != "assistant" {
			continue
		}
		before, err := upTo(i, true)
		if err != nil {
			return nil, nil, err
		}
		after, err := upTo(i+1, false)
		if err != nil {
			return nil, nil, err
		}
		if !strings.HasPrefix(after, before) {
			return nil, nil, domain.Errorf(domain.InvalidArgument,
				"messages[%d]: this model's chat template does not render the answer after its own prompt: train with prompt and "+
					"completion instead", i)
		}
		l.add(before, false)
		l.add(after, wanted(i))
	}
	n := len(c.Messages)
	prompted := n > 0 && c.Messages[n-1].Role != "assistant"
	if prompted {
		prompt, err := upTo(n, true)
		if err != nil {
			return nil, nil, err
		}
		l.add(prompt, false)
	}
	return l.ids, l.learn, t.checkRendered(c, l.text,
		func(other *engines.Chat) (string, error) { return t.execute(other, nil, l.mark, prompted) })
}

// A targetBuilder accumulates the tokens of a conversation.
type targetBuilder struct {
	template *Template
	mark     mark
	text     string // so far
	ids      []int
	learn    []bool
}

// add extends the tokens to the end of rendered. If rendered does not begin with the text so far,
// it starts over.
func (l *targetBuilder) add(rendered string, wanted bool) {
	if !strings.HasPrefix(rendered, l.text) {
		l.text, l.ids, l.learn = "", nil, nil
	}
	ids := l.template.encode(rendered[len(l.text):], l.mark)
	last := len(ids)
	if end := slices.Index(ids, l.template.tokens.EOS()); end >= 0 {
		last = end + 1
	}
	for i := range ids {
		l.learn = append(l.learn, wanted && i < last)
	}
	l.ids, l.text = append(l.ids, ids...), rendered
}
