package rows

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// Lines visits the lines of a file in constant memory, without their ends and
// without the mark that some editors put at the beginning. Lines count from 1;
// one beyond MaxLine is tooLong and its text left out. The text is good until
// visit returns. Lines ends with the first error of visit.
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
	long   []byte // room for lines that the source's buffer does not hold
}

// next answers a line without its end; io.EOF comes with the last one. A line
// beyond MaxLine is read to its end and answered with errTooLong.
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
