package batches

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"

	"anneal/domain"
)

// maxCustomID is the maximum length of a custom_id in characters.
const maxCustomID = 512

// errLongLine is returned for a line of more than domain.MaxBatchLine bytes.
var errLongLine = errors.New("the line is too long")

// A lineReader reads a file line by line. It does not keep the content of a line of more than
// domain.MaxBatchLine bytes, so that its memory is bounded.
type lineReader struct {
	from   *bufio.Reader
	number int // number of the last line that next returned, from 1
}

func newLineReader(r io.Reader) *lineReader { return &lineReader{from: bufio.NewReaderSize(r, 64<<10)} }

// next returns the next line that is not blank, without its line end. It returns io.EOF after the
// last line, and errLongLine for a line that is too long.
func (r *lineReader) next() (line []byte, err error) {
	for {
		line, err = r.read()
		if err != nil || len(bytes.TrimSpace(line)) > 0 {
			return line, err
		}
	}
}

func (r *lineReader) read() (line []byte, err error) {
	r.number++
	long := false
	for {
		part, err := r.from.ReadSlice('\n')
		if long = long || len(line)+len(part) > domain.MaxBatchLine+1; !long {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err == nil, errors.Is(err, io.EOF) && (long || len(line) > 0):
			if long {
				return nil, errLongLine
			}
			return bytes.TrimRight(line, "\r\n"), nil
		}
		return nil, err
	}
}

// A requestLine is the request in one line of a batch's input file.
type requestLine struct {
	customID string
	model    string
	body     []byte
}

// fieldsOfLine are the fields that a line of the input file may have, as in OpenAI's batch API.
var fieldsOfLine = []string{"custom_id", "method", "url", "body"}

// parseLine parses a line of the input file of a batch for an endpoint. broken has an error for
// each rule that the line breaks; it is empty for a valid line.
func parseLine(line []byte, endpoint string) (q requestLine, broken []domain.BatchError) {
	add := func(code, param, format string, args ...any) {
		broken = append(broken, domain.BatchError{Code: code, Param: param, Message: fmt.Sprintf(format, args...)})
	}
	var fields map[string]json.RawMessage
	if !utf8.Valid(line) || json.Unmarshal(line, &fields) != nil || fields == nil {
		add("invalid_json_line", "", "the line is not a JSON object in UTF-8")
		return q, broken
	}
	for name := range fields {
		if !slices.Contains(fieldsOfLine, name) {
			add("unknown_parameter", cut(name), "is not a field of a batch request%s",
				domain.UnknownName(cut(name), "valid fields: ", fieldsOfLine))
		}
	}
	text := func(name string) (value string, ok bool) {
		if json.Unmarshal(fields[name], &value) != nil {
			add("invalid_value", name, "is required and must be a string")
			return "", false
		}
		return value, true
	}
	var ok bool
	if q.customID, ok = text("custom_id"); ok && (q.customID == "" || utf8.RuneCountInString(q.customID) > maxCustomID ||
		domain.Printable(q.customID) != q.customID) {
		add("invalid_custom_id", "custom_id", "must have 1 to %d characters, without control characters", maxCustomID)
	}
	if method, ok := text("method"); ok && method != "POST" {
		add("invalid_method", "method", "must be POST, not %s", short(method))
	}
	if url, ok := text("url"); ok && url != endpoint {
		add("invalid_url", "url", "must be the endpoint of the batch, %s, not %s", endpoint, short(url))
	}
	var body map[string]json.RawMessage
	if json.Unmarshal(fields["body"], &body) != nil || body == nil {
		add("invalid_value", "body", "is required and must be an object")
		return q, broken
	}
	q.body = fields["body"]
	if json.Unmarshal(body["model"], &q.model) != nil || q.model == "" {
		add("invalid_value", "body.model", "is required and must be the name of a model")
	}
	if stream := string(body["stream"]); stream != "" && stream != "false" && stream != "null" {
		add("invalid_value", "body.stream", "is not supported in a batch: leave it out")
	}
	return q, broken
}

// cut returns the first 64 characters of text, with control characters escaped, and "…" if text is
// longer.
func cut(text string) string {
	const limit = 64
	if runes := []rune(text); len(runes) > limit {
		text = string(runes[:limit]) + "…"
	}
	return domain.Printable(text)
}

// short returns text in quotes, shortened as by cut.
func short(text string) string { return strconv.Quote(cut(text)) }

// A checker validates the lines of a batch's input file.
type checker struct {
	endpoint string
	total    int
	model    string
	models   int            // number of the line with which the field model was set
	ids      map[string]int // by custom_id: number of the line that has it, to find duplicates
	errors   []domain.BatchError
	more     int // number of errors that the field errors has no room for
}

func (c *checker) add(line int, e domain.BatchError) {
	if len(c.errors) == domain.MaxBatchErrors {
		c.more++
		return
	}
	e.Line = line
	c.errors = append(c.errors, e)
}

// read validates all lines. It returns an error only when the file cannot be read; invalid lines
// are added to errors.
func (c *checker) read(from io.Reader) error {
	r := newLineReader(from)
	for {
		line, err := r.next()
		switch {
		case errors.Is(err, io.EOF):
			c.finish()
			return nil
		case errors.Is(err, errLongLine):
			c.total++
			c.add(r.number, domain.BatchError{Code: "line_too_long",
				Message: fmt.Sprintf("the line has more than %d bytes", domain.MaxBatchLine)})
			continue
		case err != nil:
			return err
		}
		if c.total++; c.total <= domain.MaxBatchRequests {
			c.line(r.number, line)
		}
	}
}

func (c *checker) line(number int, line []byte) {
	q, broken := parseLine(line, c.endpoint)
	for _, e := range broken {
		c.add(number, e)
	}
	if first, again := c.ids[q.customID]; again && q.customID != "" {
		c.add(number, domain.BatchError{Code: "duplicate_custom_id", Param: "custom_id",
			Message: fmt.Sprintf("%s is also in line %d: each request needs its own custom_id", short(q.customID), first)})
	} else {
		c.ids[q.customID] = number
	}
	switch {
	case q.model == "":
	case c.model == "":
		c.model, c.models = q.model, number
	case c.model != q.model:
		c.add(number, domain.BatchError{Code: "mismatched_model", Param: "body.model",
			Message: fmt.Sprintf("is %s, but %s in line %d: all requests of a batch must name the same model",
				short(q.model), short(c.model), c.models)})
	}
}

func (c *checker) finish() {
	switch {
	case c.total == 0:
		c.errors = append(c.errors, domain.BatchError{Code: "empty_file", Message: "the input file has no request"})
	case c.total > domain.MaxBatchRequests:
		c.errors = append(c.errors, domain.BatchError{Code: "too_many_requests",
			Message: fmt.Sprintf("the input file has %d requests, more than the limit of %d: split it", c.total,
				domain.MaxBatchRequests)})
	}
	if c.more > 0 {
		c.errors = append(c.errors, domain.BatchError{Code: "more_errors",
			Message: fmt.Sprintf("and %d more errors", c.more)})
	}
}
