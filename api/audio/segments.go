package audio

import (
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"anneal/engines"
)

// Some engines return words that include the spaces around them, others return words without
// spaces. The functions below turn both into the same text. In scripts that do not separate words,
// such as Chinese, the text has no spaces.

// separator returns the text to insert between two parts of a text: a space, or "" between two
// characters of a script that does not separate words.
func separator(left, right string) string {
	last, _ := utf8.DecodeLastRuneInString(left)
	first, _ := utf8.DecodeRuneInString(right)
	if left == "" || right == "" || unicode.IsSpace(last) || unicode.IsSpace(first) ||
		isUnspaced(last) && isUnspaced(first) {
		return ""
	}
	return " "
}

// isUnspaced reports whether a character belongs to a script that does not separate words with
// spaces, or to the punctuation of such a script.
func isUnspaced(r rune) bool {
	return r >= 0x3000 && r <= 0x303f || r >= 0xff00 && r <= 0xffef ||
		unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer,
			unicode.Myanmar, unicode.Tibetan)
}

// joinWords returns the text that the words form, with spaces where the script separates words.
func joinWords(words []engines.Word) string {
	var text strings.Builder
	spaced := false // whether the engine's words include the spaces around them
	for _, w := range words {
		spaced = spaced || w.Text != strings.TrimSpace(w.Text) && strings.TrimSpace(w.Text) != ""
	}
	last := ""
	for _, w := range words {
		if strings.TrimSpace(w.Text) == "" {
			continue
		}
		if !spaced {
			text.WriteString(separator(last, w.Text))
		}
		text.WriteString(w.Text)
		last = w.Text
	}
	return collapseSpace(text.String())
}

// collapseSpace replaces each run of white space by one space, and trims white space at both ends.
func collapseSpace(text string) string { return strings.Join(strings.Fields(text), " ") }

// maxSeconds is the maximum time in a transcript, about three years: longer than any recording.
const maxSeconds = 1e8

// normalize returns a copy of segment s whose text is on one line and whose times are whole
// milliseconds, ascending, and not before minStart (in seconds). The times of its words are within
// the segment. ok is false if the segment has no text.
func normalize(s engines.Segment, minStart float64) (normal engines.Segment, ok bool) {
	if s.Text = collapseSpace(s.Text); s.Text == "" {
		s.Text = joinWords(s.Words)
	}
	s.Start = clamp(s.Start, minStart, maxSeconds)
	s.End = clamp(s.End, s.Start, maxSeconds)
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

// clamp returns a time rounded to milliseconds and limited to the range from low to high; low for
// NaN.
func clamp(seconds, low, high float64) float64 {
	if !(seconds > low) { // also true if seconds is NaN
		return low
	}
	return min(math.Round(seconds*1000)/1000, high)
}

// trimBefore returns the part of a segment after the time cutoff, in seconds. It is used when
// another replica transcribes the recording again from its start, to leave out what the stream has
// already sent. A word, or a segment without words, is after cutoff if its middle is. ok is false
// if nothing remains.
func trimBefore(s engines.Segment, cutoff float64) (rest engines.Segment, ok bool) {
	if cutoff <= 0 || s.Start >= cutoff {
		return s, true
	}
	if (s.Start+s.End)/2 < cutoff && len(s.Words) == 0 || s.End <= cutoff {
		return s, false
	}
	var words []engines.Word
	for _, w := range s.Words {
		if (w.Start+w.End)/2 >= cutoff {
			words = append(words, w)
		}
	}
	if len(words) < len(s.Words) {
		s.Words, s.Text, s.Tokens = words, joinWords(words), nil
	}
	s.Start = cutoff
	return s, s.Text != ""
}
