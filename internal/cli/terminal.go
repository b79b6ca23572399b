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

// A terminal is the writer to which commands print. It escapes every control character except
// newline and tab, as \u001b, which means the same inside JSON. So no text of a server, a model or
// a file can control the user's terminal. NewRoot sets a terminal as each output stream of cobra.
// Commands print only to these streams; redraw replaces a line.
type terminal struct {
	out   io.Writer
	width int // width in characters, set by tests; 0 stands for the width of out, if out is a terminal

	mu      sync.Mutex
	partial []byte // bytes of an incomplete UTF-8 character at the end of the last write
}

var stdout, stderr = &terminal{out: os.Stdout}, &terminal{out: os.Stderr}

// Write implements io.Writer. It writes a carriage return before a newline unescaped.
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

// clearScreen moves the cursor of a terminal to the upper left corner, and clears its screen.
func clearScreen(w io.Writer) {
	if t, ok := w.(*terminal); ok {
		_, _ = io.WriteString(t.out, "\x1b[H\x1b[2J")
	}
}

// redraw replaces the current line by a text, which it escapes. If w is not a terminal, it only
// writes the text.
func redraw(w io.Writer, text string) {
	if t, ok := w.(*terminal); ok {
		_, _ = io.WriteString(t.out, clearLine)
	}
	_, _ = io.WriteString(w, text)
}

// widthOf returns the width of the terminal to which w writes, in characters; 0 if w writes to
// something else, whose lines have no maximum width.
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

// onTerminal reports whether w writes to a terminal, whose lines can be redrawn.
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
