package audio

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"anneal/engines"
)

// Limits of one subtitle cue, as broadcasters use them.
const (
	// maximum columns of a line; a wide character, such as a Chinese one, takes two columns
	maxLineWidth   = 42
	maxCueLines    = 2               // maximum number of lines of a cue
	maxCueDuration = 7 * time.Second // maximum duration of a cue with more than one word
	maxCuePause    = 2 * time.Second // maximum pause between two words of a cue
)

// A cue is a subtitle: a text and the time during which it is shown.
type cue struct {
	start, end time.Duration
	lines      []string
}

// subtitles formats the segments of a transcript as SubRip or WebVTT cues, in the order of time and
// without overlap.
type subtitles struct {
	vtt   bool
	count int
	end   time.Duration // end of the last cue
}

// header returns the first lines of the file: "WEBVTT" and an empty line for WebVTT, and "" for
// SubRip.
func (s *subtitles) header() string {
	if s.vtt {
		return "WEBVTT\n\n"
	}
	return ""
}

// add returns the cues of the next segment as text.
func (s *subtitles) add(segment engines.Segment) string {
	var out strings.Builder
	for _, c := range cuesOf(segment) {
		c.start = max(c.start, s.end)
		c.end = max(c.end, c.start+time.Millisecond)
		s.end = c.end
		s.count++
		out.WriteString(s.format(c))
	}
	return out.String()
}

func (s *subtitles) format(c cue) string {
	text := strings.Join(c.lines, "\n")
	if s.vtt {
		return fmt.Sprintf("%s --> %s\n%s\n\n", timestamp(c.start, '.'), timestamp(c.end, '.'), escapeVTT.Replace(text))
	}
	return fmt.Sprintf("%d\n%s --> %s\n%s\n\n", s.count, timestamp(c.start, ','), timestamp(c.end, ','),
		escapeSRT.Replace(text))
}

// Replacers of characters that a player would not show as text. WebVTT has character references
// such as &amp;. SubRip has none, and its players read a line that contains --> as the times of a
// cue.
var (
	escapeVTT = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
	escapeSRT = strings.NewReplacer("-->", "→")
)

// timestamp formats a time as hours, minutes, seconds and milliseconds. decimal is the character
// before the milliseconds: a comma in SubRip, a point in WebVTT.
func timestamp(d time.Duration, decimal rune) string {
	ms := d.Milliseconds()
	return fmt.Sprintf("%02d:%02d:%02d%c%03d", ms/3_600_000, ms/60_000%60, ms/1000%60, decimal, ms%1000)
}

// cuesOf splits a segment into cues.
func cuesOf(segment engines.Segment) (cues []cue) {
	var current cue
	for _, w := range splitWords(segment) {
		start, end := duration(w.Start), duration(w.End)
		lines, fits := appendText(current.lines, w.Text)
		if !fits || len(current.lines) > 0 && (end-current.start > maxCueDuration || start-current.end > maxCuePause) {
			cues = append(cues, current)
			current.lines, lines = nil, []string{strings.TrimSpace(w.Text)}
		}
		if len(current.lines) == 0 {
			current.start = start
		}
		current.end, current.lines = end, lines
	}
	if len(current.lines) > 0 {
		cues = append(cues, current)
	}
	return cues
}

// appendText returns the lines of a cue with text appended, or false if the text does not fit into
// the cue.
func appendText(lines []string, text string) ([]string, bool) {
	if len(lines) == 0 {
		return []string{strings.TrimSpace(text)}, true
	}
	last := lines[len(lines)-1]
	if longer := last + separator(last, text) + text; cells(longer) <= maxLineWidth {
		return append(append([]string(nil), lines[:len(lines)-1]...), longer), true
	}
	if len(lines) == maxCueLines {
		return nil, false
	}
	return append(append([]string(nil), lines...), strings.TrimSpace(text)), true
}

// splitWords splits the text of a segment where a new line may begin. It returns the words; for a
// word that is wider than a line, it returns parts of the word. Where the engine reports no times,
// splitWords interpolates them in proportion to the width of the parts.
func splitWords(segment engines.Segment) (all []engines.Word) {
	words := segment.Words
	fields := strings.Fields(segment.Text)
	// use the words of the text, which may have punctuation that the engine's words lack
	if len(fields) == len(words) {
		words = append([]engines.Word(nil), words...)
		for i := range words {
			words[i].Text = fields[i]
		}
	} else if joinWords(words) != segment.Text {
		words = interpolate(segment.Text, fields, segment.Start, segment.End)
	}
	for _, w := range words {
		if cells(w.Text) <= maxLineWidth {
			all = append(all, w)
			continue
		}
		all = append(all, interpolate(w.Text, nil, w.Start, w.End)...)
	}
	return all
}

// interpolate divides the time from start to end among the parts of a text, in proportion to their
// width. It splits parts that are wider than a line. If parts is empty, it divides the text itself
// into words.
func interpolate(text string, parts []string, start, end float64) []engines.Word {
	var split []string
	for _, part := range parts {
		if cells(part) <= maxLineWidth {
			split = append(split, part)
			continue
		}
		split = append(split, splitWide(part)...)
	}
	if len(parts) == 0 {
		split = splitWide(text)
	}
	total := 0
	for _, part := range split {
		total += cells(part)
	}
	words, before := make([]engines.Word, len(split)), 0
	at := func(n int) float64 { return start + (end-start)*float64(n)/float64(max(total, 1)) }
	for i, part := range split {
		words[i] = engines.Word{Text: part, Start: at(before), End: at(before + cells(part))}
		before += cells(part)
	}
	return words
}

// splitWide splits a text into parts that each fit into a line.
func splitWide(text string) (parts []string) {
	part := ""
	for _, r := range text {
		if cells(part)+width(r) > maxLineWidth {
			parts, part = append(parts, part), ""
		}
		part += string(r)
	}
	return append(parts, part)
}

// cells returns the display width of a text in columns; a wide character takes two.
func cells(text string) (n int) {
	for _, r := range strings.TrimSpace(text) {
		n += width(r)
	}
	return n
}

func width(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case r >= 0x3000 && r <= 0x303f, r >= 0xff00 && r <= 0xff60,
		unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul):
		return 2
	}
	return 1
}

func duration(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
}
