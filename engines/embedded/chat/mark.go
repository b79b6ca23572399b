package chat

import (
	"strings"
	"unicode/utf8"

	"anneal/engines"
)

// A mark prevents special token injection: it is inserted into text of the conversation that
// spells a special token, or that ends with the beginning of one. It is a character that occurs
// in neither the conversation nor the template, and is removed after the rendered text was split
// at special tokens.
type mark struct {
	sign     string
	specials []string
}

// newMark returns the mark for rendering the chat c with the template t: a private-use character
// (Unicode, section 23.5) that occurs neither in c nor in t.
func newMark(t *Template, c *engines.Chat) mark {
	used := map[rune]bool{}
	note := func(text string) {
		for _, r := range text {
			if r >= 0xE000 && r <= 0xF8FF {
				used[r] = true
			}
		}
	}
	note(t.source)
	for _, m := range c.Messages {
		for _, text := range []string{m.Content, m.Name, m.Reasoning, m.ToolCallID} {
			note(text)
		}
		for _, call := range m.ToolCalls {
			note(call.ID + call.Name)
			note(unescaped(call.Arguments))
		}
	}
	for _, tool := range c.Tools {
		note(unescaped(string(tool)))
	}
	sign := rune(0xF8FF)
	for used[sign] && sign > 0xE000 {
		sign--
	}
	return mark{string(sign), t.tokens.Specials()}
}

// put inserts the mark into each special token in text, and after text if its end is the
// beginning of a special token.
func (m mark) put(text string) string {
	for _, special := range m.specials {
		if strings.Contains(text, special) {
			_, size := utf8.DecodeRuneInString(special)
			text = strings.ReplaceAll(text, special, special[:size]+m.sign+special[size:])
		}
	}
	for _, special := range m.specials {
		for n := len(special) - 1; n > 0; n-- {
			if strings.HasSuffix(text, special[:n]) {
				return text + m.sign
			}
		}
	}
	return text
}

// remove removes the mark from text.
func (m mark) remove(text string) string { return strings.ReplaceAll(text, m.sign, "") }
