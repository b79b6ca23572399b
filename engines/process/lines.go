package process

import (
	"bufio"
	"bytes"
)

// WholeLines splits into lines like bufio.ScanLines, but leaves out a last one
// without an end: its writer died or was cut off within it, and what is there
// of it says nothing.
func WholeLines(data []byte, atEOF bool) (advance int, line []byte, err error) {
	if atEOF && bytes.IndexByte(data, '\n') < 0 {
		return len(data), nil, nil
	}
	return bufio.ScanLines(data, atEOF)
}
