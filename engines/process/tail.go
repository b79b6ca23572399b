package process

import (
	"bytes"
	"strings"
	"sync"
)

const (
	keptBytes  = 16 << 10 // number of bytes at the end of a program's output that are kept
	errorBytes = 1500     // number of bytes of the output in an error
)

// A tail is a writer that keeps the end of the written text, at least keptBytes bytes.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p[max(0, len(p)-keptBytes):]...)
	if len(t.kept) > 2*keptBytes {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-keptBytes:]...)
	}
	return len(p), nil
}

// String returns the last errorBytes bytes as valid UTF-8. If there are more, it leaves out the
// incomplete first line, unless there is only one line.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := bytes.TrimSpace(t.kept)
	if cut := len(end) - errorBytes; cut > 0 {
		end = end[cut:]
		if line := bytes.IndexByte(end, '\n'); line >= 0 && line < len(end)-1 {
			end = end[line+1:]
		}
	}
	return strings.ToValidUTF8(string(end), "\uFFFD")
}
