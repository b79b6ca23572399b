package chat

import (
	"slices"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

// Targets tokenizes a conversation for training, with the model's own template. wanted selects the
// assistant's turns to train on. isTarget[i] reports whether the loss includes the token ids[i]: a
// token of a selected turn, after the turn's prompt and up to its end token.
//
// Each turn is rendered as in inference. If the template renders a turn differently once later
// turns follow, for example without its reasoning, the turn is then context and not a target.
func (t *Template) Targets(c *engines.Chat, wanted func(turn int) bool) (ids []int, isTarget []bool, err error) {
	l := targetBuilder{template: t, sep: newSeparator(t, c)}
	upTo := func(n int, prompt bool) (string, error) {
		return t.execute(&engines.Chat{Messages: c.Messages[:n], Tools: c.Tools}, nil, l.sep, prompt)
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
				"messages[%d]: this model's chat template renders the prompt of this response differently if the "+
					"response follows: train with prompt and completion instead", i)
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
	return l.ids, l.isTarget, t.checkRendered(c, l.text,
		func(other *engines.Chat) (string, error) { return t.execute(other, nil, l.sep, prompted) })
}

// A targetBuilder collects the tokens of a conversation and whether they are targets.
type targetBuilder struct {
	template *Template
	sep      separator
	text     string // rendered text whose tokens were added
	ids      []int
	isTarget []bool
}

// add appends the tokens of rendered that follow l.text. If wanted is true, these tokens are
// targets up to the first EOS token. If rendered does not begin with l.text, add first discards all
// tokens.
func (l *targetBuilder) add(rendered string, wanted bool) {
	if !strings.HasPrefix(rendered, l.text) {
		l.text, l.ids, l.isTarget = "", nil, nil
	}
	ids := l.template.encode(rendered[len(l.text):], l.sep)
	last := len(ids)
	if end := slices.Index(ids, l.template.tokens.EOS()); end >= 0 {
		last = end + 1
	}
	for i := range ids {
		l.isTarget = append(l.isTarget, wanted && i < last)
	}
	l.ids, l.text = append(l.ids, ids...), rendered
}
