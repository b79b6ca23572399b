package process

import (
	"bufio"
	"bytes"
)

// ScanWholeLines is a bufio.SplitFunc like bufio.ScanLines, but it drops a last line without a
// newline, because the writer has ended before the line was complete.
func ScanWholeLines(data []byte, atEOF bool) (advance int, line []byte, err error) {
	if atEOF && bytes.IndexByte(data, '\n') < 0 {
		return len(data), nil, nil
	}
	return bufio.ScanLines(data, atEOF)
}
