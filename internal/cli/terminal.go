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

// A terminal is what commands print to. It writes every control character but
// newline and tab as an escape (\u001b, which inside JSON stands for the same
// character), so that nothing that a server, a model or a file says can act on
// the user's terminal. Commands print through their cobra streams only, which
// newRoot makes terminals; they draw with redraw.
type terminal struct {
	out io.Writer

	mu      sync.Mutex
	partial []byte // the beginning of a character whose end has not been written yet
}

var stdout, stderr = &terminal{out: os.Stdout}, &terminal{out: os.Stderr}

// Write implements io.Writer. A carriage return before a newline stays.
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

// redraw replaces the line that the cursor is on; text is escaped. Where w is
// no terminal of ours, a test's, nothing is cleared.
func redraw(w io.Writer, text string) {
	if t, ok := w.(*terminal); ok {
		_, _ = io.WriteString(t.out, clearLine)
	}
	_, _ = io.WriteString(w, text)
}

// onTerminal tells whether a line may be drawn over again.
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
