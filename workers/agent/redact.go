package agent

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// minRedaction is the minimum length in bytes of a secret that is replaced. A shorter one would
// match unrelated text.
const minRedaction = 4

// A redactor replaces secrets in texts by [redacted], and removes paths of this machine.
type redactor struct {
	secrets [][]byte
	paths   [][]byte
	longest int // length of the longest secret or path in bytes
}

// newRedactor returns a redactor for the values of env, each line of these values, and paths.
func newRedactor(env map[string]string, paths ...string) *redactor {
	r := &redactor{}
	for _, value := range env {
		r.addSecret(value)
		for line := range strings.Lines(value) {
			r.addSecret(strings.TrimSpace(line))
		}
	}
	for _, path := range paths {
		r.paths, r.longest = append(r.paths, []byte(path)), max(r.longest, len(path))
	}
	return r
}

func (r *redactor) addSecret(secret string) {
	if len(secret) >= minRedaction {
		r.secrets, r.longest = append(r.secrets, []byte(secret)), max(r.longest, len(secret))
	}
}

// A span is a range of bytes of a text to replace. It has a secret, a path, or several that
// overlap.
type span struct {
	start, end int
	secret     bool
}

// spans returns the ranges of text with secrets or paths, in ascending order. Overlapping ranges
// are merged, because the end of one secret can be the beginning of another, and all of both must
// be replaced.
func (r *redactor) spans(text []byte) []span {
	var all []span
	find := func(part []byte, secret bool) {
		for from := 0; ; {
			at := bytes.Index(text[from:], part)
			if at < 0 {
				return
			}
			start := from + at
			all, from = append(all, span{start, start + len(part), secret}), start+1
		}
	}
	for _, secret := range r.secrets {
		find(secret, true)
	}
	for _, path := range r.paths {
		find(path, false)
	}
	return joined(all)
}

// joined sorts spans by their starts and merges those that overlap.
func joined(all []span) []span {
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	var out []span
	for _, one := range all {
		if last := len(out) - 1; last >= 0 && one.start < out[last].end {
			out[last].end = max(out[last].end, one.end)
			out[last].secret = out[last].secret || one.secret
		} else {
			out = append(out, one)
		}
	}
	return out
}

// replace returns text with each span replaced.
func replace(text []byte, spans []span) string {
	var out strings.Builder
	at := 0
	for _, one := range spans {
		out.Write(text[at:one.start])
		if one.secret {
			out.WriteString("[redacted]")
		}
		at = one.end
	}
	out.Write(text[at:])
	return out.String()
}

// redact returns text with secrets and paths replaced.
func (r *redactor) redact(text string) string {
	return replace([]byte(text), r.spans([]byte(text)))
}

// A lineRedactor splits a text that arrives in parts into lines, and replaces secrets and paths in
// them. It splits a line that is longer than maxLogLine, and also finds a secret at the place of
// the split.
type lineRedactor struct {
	*redactor
	partial []byte // bytes of the last line, which is not complete
	hidden  span   // range at the beginning of partial that belongs to a secret or path which began before it
}

// write receives the next part of the text, and calls add for each line that it completes.
func (l *lineRedactor) write(p []byte, add func(line string)) {
	for end := bytes.IndexByte(p, '\n'); end >= 0; end = bytes.IndexByte(p, '\n') {
		add(l.line(append(l.partial, p[:end]...)))
		l.partial, p = l.partial[:0], p[end+1:]
	}
	l.partial = append(l.partial, p...)
	for len(l.partial) > maxLogLine+l.longest {
		add(l.divide())
	}
}

// end calls add for the last line, which may have no line end.
func (l *lineRedactor) end(add func(line string)) {
	if len(l.partial) > 0 {
		add(l.line(l.partial))
		l.partial = nil
	}
}

// line returns text, the last part of a line, with secrets and paths replaced.
func (l *lineRedactor) line(text []byte) string {
	spans := l.allSpans(text)
	l.hidden = span{}
	return replace(text, spans)
}

func (l *lineRedactor) allSpans(text []byte) []span {
	return joined(append([]span{l.hidden}, l.spans(text)...))
}

// divide removes the beginning of partial and returns it with secrets and paths replaced. In
// partial it leaves at least as many bytes as the longest secret or path has, because one that
// begins there may be incomplete. A secret that extends into these bytes also stays.
func (l *lineRedactor) divide() string {
	end, spans, hidden := len(l.partial)-l.longest, l.allSpans(l.partial), span{}
	if i := slices.IndexFunc(spans, func(s span) bool { return s.end > end }); i >= 0 {
		across := spans[i]
		spans = spans[:i]
		switch {
		case across.start >= end:
		case across.start > 0:
			end = across.start
		default: // secrets cover all bytes up to end and beyond: replace those up to end, and hide the rest later
			spans, hidden = []span{{0, end, across.secret}}, span{0, across.end - end, across.secret}
		}
	}
	text := replace(l.partial[:end], spans)
	l.partial, l.hidden = bytes.Clone(l.partial[end:]), hidden
	return text
}
