package api

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"anneal/engines"
)

// Limits of one cue of subtitles, as broadcasters have them.
const (
	cueLine  = 42              // cells of a line; a wide character takes two
	cueLines = 2               //
	cueTime  = 7 * time.Second // unless it is a single word
	cuePause = 2 * time.Second // after which another cue begins
)

// A cue is what is shown at one time.
type cue struct {
	start, end time.Duration
	lines      []string
}

// subtitles make cues of segments, in the order of time and without overlap.
type subtitles struct {
	vtt   bool
	count int
	end   time.Duration // of the last cue
}

// opening is how the file begins.
func (s *subtitles) opening() string {
	if s.vtt {
		return "WEBVTT\n\n"
	}
	return ""
}

// of writes the cues of a segment.
func (s *subtitles) of(segment engines.Segment) string {
	var out strings.Builder
	for _, c := range cuesOf(segment) {
		c.start = max(c.start, s.end)
		c.end = max(c.end, c.start+time.Millisecond)
		s.end = c.end
		s.count++
		out.WriteString(s.write(c))
	}
	return out.String()
}

func (s *subtitles) write(c cue) string {
	text := strings.Join(c.lines, "\n")
	if s.vtt {
		return fmt.Sprintf("%s --> %s\n%s\n\n", cueClock(c.start, '.'), cueClock(c.end, '.'), escapeVTT.Replace(text))
	}
	return fmt.Sprintf("%d\n%s --> %s\n%s\n\n", s.count, cueClock(c.start, ','), cueClock(c.end, ','), escapeSRT.Replace(text))
}

// WebVTT has character references; SubRip has none, and its readers take an
// arrow for a line of times.
var (
	escapeVTT = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
	escapeSRT = strings.NewReplacer("-->", "→")
)

// cueClock is a time as subtitles write it.
func cueClock(d time.Duration, point rune) string {
	ms := d.Milliseconds()
	return fmt.Sprintf("%02d:%02d:%02d%c%03d", ms/3_600_000, ms/60_000%60, ms/1000%60, point, ms%1000)
}

// cuesOf packs a segment's text into cues.
func cuesOf(segment engines.Segment) (cues []cue) {
	var now cue
	for _, a := range atoms(segment) {
		start, end := duration(a.Start), duration(a.End)
		lines, fit := laid(now.lines, a.Text)
		if !fit || len(now.lines) > 0 && (end-now.start > cueTime || start-now.end > cuePause) {
			cues = append(cues, now)
			now.lines, lines = nil, []string{strings.TrimSpace(a.Text)}
		}
		if len(now.lines) == 0 {
			now.start = start
		}
		now.end, now.lines = end, lines
	}
	if len(now.lines) > 0 {
		cues = append(cues, now)
	}
	return cues
}

// laid puts a text behind lines; false when there is no room.
func laid(lines []string, text string) ([]string, bool) {
	if len(lines) == 0 {
		return []string{strings.TrimSpace(text)}, true
	}
	last := lines[len(lines)-1]
	if longer := last + gap(last, text) + text; cells(longer) <= cueLine {
		return append(append([]string(nil), lines[:len(lines)-1]...), longer), true
	}
	if len(lines) == cueLines {
		return nil, false
	}
	return append(append([]string(nil), lines...), strings.TrimSpace(text)), true
}

// atoms are the parts of a segment's text that no line is broken within: its
// words, none wider than a line. Times that the engine does not tell are
// shared out by length.
func atoms(segment engines.Segment) (all []engines.Word) {
	words := segment.Words
	if fields := strings.Fields(segment.Text); len(fields) == len(words) { // with the punctuation of the text
		words = append([]engines.Word(nil), words...)
		for i := range words {
			words[i].Text = fields[i]
		}
	} else if joinWords(words) != segment.Text {
		words = shared(segment.Text, fields, segment.Start, segment.End)
	}
	for _, w := range words {
		if cells(w.Text) <= cueLine {
			all = append(all, w)
			continue
		}
		all = append(all, shared(w.Text, nil, w.Start, w.End)...)
	}
	return all
}

// shared gives each part of a text a share of its time. A part that is wider
// than a line, and a text that has none, is taken character by character.
func shared(text string, parts []string, start, end float64) []engines.Word {
	var pieces []string
	for _, part := range parts {
		if cells(part) <= cueLine {
			pieces = append(pieces, part)
			continue
		}
		pieces = append(pieces, chopped(part)...)
	}
	if len(parts) == 0 {
		pieces = chopped(text)
	}
	total := 0
	for _, piece := range pieces {
		total += cells(piece)
	}
	words, before := make([]engines.Word, len(pieces)), 0
	at := func(n int) float64 { return start + (end-start)*float64(n)/float64(max(total, 1)) }
	for i, piece := range pieces {
		words[i] = engines.Word{Text: piece, Start: at(before), End: at(before + cells(piece))}
		before += cells(piece)
	}
	return words
}

// chopped is a text in pieces that fit on a line.
func chopped(text string) (pieces []string) {
	piece := ""
	for _, r := range text {
		if cells(piece)+width(r) > cueLine {
			pieces, piece = append(pieces, piece), ""
		}
		piece += string(r)
	}
	return append(pieces, piece)
}

// cells is how wide a text is shown.
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
	case r >= 0x3000 && r <= 0x303f, r >= 0xff00 && r <= 0xff60, unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul):
		return 2
	}
	return 1
}

func duration(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
}
