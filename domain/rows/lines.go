package rows

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// Lines calls visit with each line of a file, without its line end and without a byte order mark,
// in constant memory. Lines are numbered from 1. For a line longer than MaxLine, text is nil and
// tooLong is true. The text is valid until visit returns. Lines stops at the first error of visit
// and returns it.
func Lines(r io.Reader, visit func(line int, text []byte, tooLong bool) error) error {
	lines := lineReader{source: bufio.NewReaderSize(r, 64<<10)}
	for line := 1; ; line++ {
		text, err := lines.next()
		tooLong := errors.Is(err, errTooLong)
		if err != nil && err != io.EOF && !tooLong {
			return err
		}
		if line == 1 {
			text = bytes.TrimPrefix(text, []byte("\ufeff"))
		}
		if stop := visit(line, text, tooLong); stop != nil {
			return stop
		}
		if err == io.EOF {
			return nil
		}
	}
}

var errTooLong = errors.New("line too long")

type lineReader struct {
	source *bufio.Reader
	long   []byte // buffer for lines longer than the buffer of source
}

// next returns the next line without its line end, and io.EOF together with the last line. It skips
// a line longer than MaxLine and returns errTooLong.
func (l *lineReader) next() ([]byte, error) {
	line, err := l.source.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return bytes.TrimRight(line, "\r\n"), err
	}
	l.long = l.long[:0]
	tooLong := false
	for {
		if !tooLong {
			l.long = append(l.long, line...)
			tooLong = len(l.long) > MaxLine
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			break
		}
		line, err = l.source.ReadSlice('\n')
	}
	if tooLong && (err == nil || err == io.EOF) {
		return nil, errTooLong
	}
	return bytes.TrimRight(l.long, "\r\n"), err
}
