package cli

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// maxSSELine is the maximum length of a line of server-sent events, in bytes.
const maxSSELine = 16 << 20

// readStream calls visit with the data of every server-sent event until the event [DONE]. It
// returns an error if the response ends before [DONE].
func readStream(r io.Reader, visit func(data []byte) error) error {
	done := false
	err := readSSE(r, func(field string, value []byte) error {
		if field != "data" || done {
			return nil
		}
		if done = string(value) == "[DONE]"; done {
			return nil
		}
		return visit(value)
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

// A connectionError is an error of the connection while a response is read.
type connectionError struct{ error }

func (e connectionError) Unwrap() error { return e.error }

// readSSE reads server-sent events until the response ends. It calls visit with every field, and at
// the end of an event with the field "".
func readSSE(r io.Reader, visit func(field string, value []byte) error) error {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, maxSSELine)
	for scanner.Scan() && scanner.Err() == nil { // a truncated last line is ignored, and the error reported below
		name, value, _ := bytes.Cut(scanner.Bytes(), []byte(":"))
		if len(name) == 0 && len(scanner.Bytes()) > 0 {
			continue // a comment, which keeps the connection open
		}
		if err := visit(string(name), bytes.TrimSpace(value)); err != nil {
			return err
		}
	}
	if err := scanner.Err(); err != nil {
		return connectionError{err}
	}
	return nil
}
