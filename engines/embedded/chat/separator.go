package chat

import (
	"strings"
	"unicode/utf8"

	"anneal/engines"
)

// A separator prevents the injection of special tokens by text of a conversation. It is a character
// that is neither in the conversation nor in the template. It is inserted into each special token
// that the text contains, and removed after the rendered text was split at special tokens.
type separator struct {
	char     string
	specials []string // texts of the tokenizer's special tokens
}

// newSeparator returns the separator for rendering the conversation c with the template t: a
// private-use character (Unicode, section 23.5) that is neither in c nor in t.
func newSeparator(t *Template, c *engines.Chat) separator {
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
	char := rune(0xF8FF)
	for used[char] && char > 0xE000 {
		char--
	}
	return separator{string(char), t.tokens.Specials()}
}

// insert returns text with the separator in each special token, and after the text if it ends with
// the beginning of a special token.
func (s separator) insert(text string) string {
	for _, special := range s.specials {
		if strings.Contains(text, special) {
			_, size := utf8.DecodeRuneInString(special)
			text = strings.ReplaceAll(text, special, special[:size]+s.char+special[size:])
		}
	}
	for _, special := range s.specials {
		for n := len(special) - 1; n > 0; n-- {
			if strings.HasSuffix(text, special[:n]) {
				return text + s.char
			}
		}
	}
	return text
}

// remove returns text without separators.
func (s separator) remove(text string) string { return strings.ReplaceAll(text, s.char, "") }
