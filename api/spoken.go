package api

import (
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"anneal/engines"
)

// Engines write pieces of speech in two ways: each with the blanks around it
// that its text has, or none with any. Joined, both read alike, and those of
// scripts that know no blanks between words have none.

// gap is what comes between two pieces of a text.
func gap(left, right string) string {
	last, _ := utf8.DecodeLastRuneInString(left)
	first, _ := utf8.DecodeRuneInString(right)
	if left == "" || right == "" || unicode.IsSpace(last) || unicode.IsSpace(first) || unspaced(last) && unspaced(first) {
		return ""
	}
	return " "
}

// unspaced tells whether a script writes words without blanks between them;
// its punctuation belongs to it.
func unspaced(r rune) bool {
	return r >= 0x3000 && r <= 0x303f || r >= 0xff00 && r <= 0xffef ||
		unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar, unicode.Tibetan)
}

// joinWords is the text of words.
func joinWords(words []engines.Word) string {
	var text strings.Builder
	blanks := false // that the words bring with them
	for _, w := range words {
		blanks = blanks || w.Text != strings.TrimSpace(w.Text) && strings.TrimSpace(w.Text) != ""
	}
	last := ""
	for _, w := range words {
		if strings.TrimSpace(w.Text) == "" {
			continue
		}
		if !blanks {
			text.WriteString(gap(last, w.Text))
		}
		text.WriteString(w.Text)
		last = w.Text
	}
	return oneLine(text.String())
}

// oneLine is a text with single blanks, and none at its ends.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// mostSeconds is beyond every recording.
const mostSeconds = 1e8

// tidy is a segment as it is answered, of which nothing lies before after and
// which therefore may be nothing: its text on one line, its times in
// milliseconds and in order, its words within it.
func tidy(s engines.Segment, after float64) (engines.Segment, bool) {
	if s.Text = oneLine(s.Text); s.Text == "" {
		s.Text = joinWords(s.Words)
	}
	s.Start = clamp(s.Start, after, mostSeconds)
	s.End = clamp(s.End, s.Start, mostSeconds)
	words := make([]engines.Word, 0, len(s.Words))
	last := s.Start
	for _, w := range s.Words {
		if strings.TrimSpace(w.Text) == "" {
			continue
		}
		w.Start = clamp(w.Start, last, s.End)
		w.End = clamp(w.End, w.Start, s.End)
		last, words = w.End, append(words, w)
	}
	s.Words = words
	return s, s.Text != ""
}

// clamp is a time in milliseconds between two others.
func clamp(seconds, least, most float64) float64 {
	if !(seconds > least) { // nor is it a number at all
		return least
	}
	return min(math.Round(seconds*1000)/1000, most)
}

// since is what a segment holds after a time, if anything: of a recording that
// is listened to anew some was told before. A word or, where there are none, a
// segment belongs to where its middle lies.
func since(s engines.Segment, told float64) (engines.Segment, bool) {
	if told <= 0 || s.Start >= told {
		return s, true
	}
	if (s.Start+s.End)/2 < told && len(s.Words) == 0 || s.End <= told {
		return s, false
	}
	var words []engines.Word
	for _, w := range s.Words {
		if (w.Start+w.End)/2 >= told {
			words = append(words, w)
		}
	}
	if len(words) < len(s.Words) {
		s.Words, s.Text, s.Tokens = words, joinWords(words), nil
	}
	s.Start = told
	return s, s.Text != ""
}
