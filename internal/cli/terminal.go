package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"unicode/utf8"

	"anneal/domain"
)

// terminal is the writer that commands print to. It escapes every control character except newline
// and tab (as \u001b, which is the same character inside JSON), so that no text of a server, a
// model or a file can control the user's terminal. Commands print only through their cobra streams,
// which NewRoot makes terminals; they redraw lines with redraw.
type terminal struct {
	out   io.Writer
	width int // width in characters, for tests; 0 is the width of out if that is a terminal

	mu      sync.Mutex
	partial []byte // incomplete character at the end of the last write
}

var stdout, stderr = &terminal{out: os.Stdout}, &terminal{out: os.Stderr}

// Write implements io.Writer. It does not escape a carriage return before a newline.
func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := append(t.partial, p...)
	t.partial = nil
	var shown bytes.Buffer
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case !utf8.FullRune(text):
			t.partial = bytes.Clone(text)
			size = len(text)
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&shown, `\x%02x`, text[0])
		case r == '\r' && len(text) > 1 && text[1] == '\n':
			shown.WriteByte('\r')
		default:
			shown.WriteString(domain.Printable(string(r)))
		}
		text = text[size:]
	}
	if _, err := t.out.Write(shown.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

const clearLine = "\r\x1b[2K"

// redraw replaces the current line with an escaped text. If w is not a terminal, as in tests, it
// writes only the text.
func redraw(w io.Writer, text string) {
	if t, ok := w.(*terminal); ok {
		_, _ = io.WriteString(t.out, clearLine)
	}
	_, _ = io.WriteString(w, text)
}

// widthOf returns the width in characters of the terminal that w prints to; 0 if w prints to
// something else, whose lines have no limit.
func widthOf(w io.Writer) int {
	t, ok := w.(*terminal)
	if !ok {
		return 0
	}
	if t.width > 0 {
		return t.width
	}
	if f, ok := t.out.(*os.File); ok && onTerminal(t) {
		return columnsOf(f)
	}
	return 0
}

// onTerminal reports whether lines can be redrawn.
func onTerminal(w io.Writer) bool {
	if t, ok := w.(*terminal); ok {
		w = t.out
	}
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}
