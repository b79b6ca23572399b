package domain

import (
	"fmt"
	"strings"
	"unicode"
)

// ControlCharacter returns the first forbidden character in text, and its position, counted in
// characters from 1; found is false when there is none. Stored text must not contain characters
// that a terminal or a browser interprets instead of showing: the control characters of Unicode
// (category Cc), line and paragraph separators, bidirectional formatting characters and zero-width
// spaces. Multiline text may contain tabs and newlines. Joiners (U+200C, U+200D), which scripts and
// emoji need, are allowed.
func ControlCharacter(text string, multiline bool) (r rune, at int, found bool) {
	for _, r := range text {
		at++
		if isControl(r) && (!multiline || r != '\t' && r != '\n') {
			return r, at, true
		}
	}
	return 0, 0, false
}

func isControl(r rune) bool {
	switch {
	case unicode.IsControl(r), // Cc: C0, DEL and C1
		r >= 0x202A && r <= 0x202E, r >= 0x2066 && r <= 0x2069, // bidirectional embeddings, overrides and isolates
		r == 0x2028, r == 0x2029, // separators of lines and paragraphs
		r == 0x200B, r == 0x2060, r == 0xFEFF: // zero-width characters
		return true
	}
	return false
}

// Printable returns text with every character that is forbidden in multiline text (see
// ControlCharacter) escaped as in JSON: \u001b.
func Printable(text string) string {
	if _, _, found := ControlCharacter(text, true); !found {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if isControl(r) && r != '\t' && r != '\n' {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// RequireText records a violation of field when its text has a forbidden character (see
// ControlCharacter). The message states the code point of the character, never the character
// itself.
func (v *Violations) RequireText(field, text string, multiline bool) {
	if r, at, found := ControlCharacter(text, multiline); found {
		also := ""
		if multiline {
			also = " other than tab and newline"
		}
		v.Add(field, "must not have control characters%s, such as U+%04X at character %d: remove it", also, r, at)
	}
}
