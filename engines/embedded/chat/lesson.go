package chat

import (
	"slices"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

// Lesson is a conversation as tokenizer.Chat gives it, by the model's own
// template. learn[i] tells whether ids[i] is a token that training should make
// likelier: what the template writes of an assistant's turn behind the prompt of
// that turn, up to the token that ends it, if the turn is wanted.
//
// Each turn is rendered as the model will meet it, so a turn that the template
// writes otherwise once others follow (as those that drop earlier thoughts do)
// is part of what comes before them, and not learnt.
func (t *Template) Lesson(c *engines.Chat, wanted func(turn int) bool) (ids []int, learn []bool, err error) {
	l := lesson{template: t, mark: newMark(t, c)}
	upTo := func(n int, more bool) (string, error) {
		return t.execute(&engines.Chat{Messages: c.Messages[:n], Tools: c.Tools}, nil, l.mark, more)
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
			return nil, nil, domain.Errorf(domain.InvalidArgument, "messages[%d]: this model's chat template does not write the answer behind its own prompt: train with prompt and completion instead", i)
		}
		l.add(before, false)
		l.add(after, wanted(i))
	}
	n := len(c.Messages)
	asked := n > 0 && c.Messages[n-1].Role != "assistant"
	if asked {
		prompt, err := upTo(n, true)
		if err != nil {
			return nil, nil, err
		}
		l.add(prompt, false)
	}
	return l.ids, l.learn, t.shows(c, l.done, func(other *engines.Chat) (string, error) { return t.execute(other, nil, l.mark, asked) })
}

// A lesson is the tokens of a conversation as far as it has been read.
type lesson struct {
	template *Template
	mark     mark
	done     string // the text so far
	ids      []int
	learn    []bool
}

// add reads on to where text ends. When it does not begin with what was read,
// it is read from its beginning.
func (l *lesson) add(text string, wanted bool) {
	if !strings.HasPrefix(text, l.done) {
		l.done, l.ids, l.learn = "", nil, nil
	}
	ids := l.template.encode(text[len(l.done):], l.mark)
	last := len(ids)
	if end := slices.Index(ids, l.template.tokens.EOS()); end >= 0 {
		last = end + 1
	}
	for i := range ids {
		l.learn = append(l.learn, wanted && i < last)
	}
	l.ids, l.done = append(l.ids, ids...), text
}
