package cli

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// maxSSELine is the maximum length of a line of server-sent events, in bytes.
const maxSSELine = 16 << 20

// readStream calls the function each with the data of every server-sent event up to [DONE]. It
// returns an error if the response ends without [DONE].
func readStream(r io.Reader, each func(data []byte) error) error {
	done := false
	err := readSSE(r, func(field string, value []byte) error {
		if field != "data" || done {
			return nil
		}
		if done = string(value) == "[DONE]"; done {
			return nil
		}
		return each(value)
	})
	var connection connectionError
	switch {
	case errors.As(err, &connection):
		return errTruncated(connection.error)
	case err == nil && !done:
		return errTruncated(io.ErrUnexpectedEOF)
	}
	return err
}

// connectionError is an error of the connection on which a response arrives.
type connectionError struct{ error }

func (e connectionError) Unwrap() error { return e.error }

// readSSE calls the function each with the fields of server-sent events until the stream ends. At
// the end of an event, it calls the function with the empty field name.
func readSSE(r io.Reader, each func(field string, value []byte) error) error {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, maxSSELine)
	for scanner.Scan() && scanner.Err() == nil { // a truncated last line is ignored
		name, value, _ := bytes.Cut(scanner.Bytes(), []byte(":"))
		if len(name) == 0 && len(scanner.Bytes()) > 0 {
			continue // a comment
		}
		if err := each(string(name), bytes.TrimSpace(value)); err != nil {
			return err
		}
	}
	if err := scanner.Err(); err != nil {
		return connectionError{err}
	}
	return nil
}
