package domain

import (
	"fmt"
	"strings"
	"unicode"
)

// ControlCharacter reports the first character of text that no stored text may
// hold, and its place, counted in characters from 1. Refused are the control
// characters of Unicode (category Cc), line and paragraph separators, the
// characters that reorder bidirectional text, and spaces of no width: a
// terminal or a browser acts on them instead of showing them. A multiline text
// may hold tabs and newlines. Joiners (U+200C, U+200D), which scripts and emoji
// need, are text.
func ControlCharacter(text string, multiline bool) (r rune, at int, found bool) {
	for _, r := range text {
		at++
		if unshowable(r) && (!multiline || r != '\t' && r != '\n') {
			return r, at, true
		}
	}
	return 0, 0, false
}

func unshowable(r rune) bool {
	switch {
	case unicode.IsControl(r), // Cc: C0, DEL and C1
		r >= 0x202A && r <= 0x202E, r >= 0x2066 && r <= 0x2069, // embeddings, overrides and isolates
		r == 0x2028, r == 0x2029, // separators of lines and paragraphs
		r == 0x200B, r == 0x2060, r == 0xFEFF: // zero width
		return true
	}
	return false
}

// Printable is text with every character that ControlCharacter refuses in a
// multiline text written as JSON escapes it: \u001b.
func Printable(text string) string {
	if _, _, found := ControlCharacter(text, true); !found {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unshowable(r) && r != '\t' && r != '\n' {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// RequireText records a violation when the field's text has a control
// character, which it names by its number and never repeats.
func (v *Violations) RequireText(field, text string, multiline bool) {
	if r, at, found := ControlCharacter(text, multiline); found {
		also := ""
		if multiline {
			also = " other than tab and newline"
		}
		v.Add(field, "must not have control characters%s, such as U+%04X at character %d: remove it", also, r, at)
	}
}
