// Package rows parses and validates the rows of datasets: JSON objects, one per line, each in one
// of the shapes of Row. The package is pure: callers open the files.
package rows

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"anneal/domain"
)

// Limits of the rows of a dataset, and of the errors that a Checker reports.
const (
	MinRows   = 3
	MaxRows   = 3_000_000
	MaxLine   = 8 << 20 // maximum length of one row in bytes
	MaxErrors = 100     // maximum number of LineErrors in a result
)

// A LineError is an error in one line of one file, or, if Line is 0, in the whole file. Lines are
// numbered from 1.
type LineError struct {
	File   string
	Line   int
	Reason string
}

func (f LineError) String() string { return f.where() + ": " + f.Reason }

func (f LineError) where() string {
	if f.Line == 0 {
		return f.File
	}
	return fmt.Sprintf("%s:%d", f.File, f.Line)
}

// A Checker validates the files of one dataset in constant memory.
type Checker struct {
	MinRows domain.Count          // minimum number of rows; the constant MinRows by default
	Count   func(text string) int // counts the tokens of a text; nil assumes one token per four bytes
	format  string                // dataset format that the rows must have; "" allows any
	shape   string                // shape of the first valid row, which all rows must have; "" before it
	reader  reader
	tokens  estimate
	stats   domain.DatasetStats
	bytes   int64
	turns   int64
	errors  []LineError
	more    int // number of errors beyond the MaxErrors that are kept
}

// NewChecker returns a checker for a dataset format; with "" or FORMAT_UNSPECIFIED, the first row
// determines the format.
func NewChecker(format string) *Checker {
	if format == "FORMAT_UNSPECIFIED" {
		format = ""
	}
	return &Checker{MinRows: MinRows, format: format}
}

// Read validates every line of a file. It returns an error only when the file cannot be read;
// Result returns the errors in the rows.
func (c *Checker) Read(file string, r io.Reader) error {
	return Lines(r, func(line int, text []byte, tooLong bool) error {
		if tooLong {
			c.reject(file, line, fmt.Sprintf("the line is longer than %d MiB", MaxLine>>20))
		} else {
			c.Row(file, line, text)
		}
		return nil
	})
}

// Row validates one line of a file, and ignores a blank line.
func (c *Checker) Row(file string, line int, text []byte) {
	if len(bytes.TrimSpace(text)) == 0 {
		return
	}
	c.stats.ExampleCount++
	if c.stats.ExampleCount > MaxRows {
		if c.stats.ExampleCount == MaxRows+1 {
			c.reject(file, line, fmt.Sprintf("the dataset has more than %d rows: split it into several datasets", MaxRows))
		}
		return
	}
	c.reader.onText = c.tokens.counter(c.Count, c.stats.ExampleCount)
	row := c.reader.read(text, c.hint())
	for _, reason := range c.reader.reasons {
		c.reject(file, line, reason)
	}
	if len(c.reader.reasons) > 0 {
		return
	}
	if c.shape == "" {
		c.shape = row.Shape
		if format := domain.FormatOf(row.Shape); c.format != "" && c.format != format {
			c.reject(file, line, fmt.Sprintf("the row has format %s, but the dataset has format %s: correct the row, or "+
				"create another dataset", format, c.format))
		}
	} else if row.Shape != c.shape {
		c.reject(file, line, fmt.Sprintf("the row is a %s row, but the previous rows are %s rows: use one shape per dataset",
			row.Shape, c.shape))
	}
	c.bytes += int64(row.Bytes)
	c.turns += int64(row.Turns)
}

// hint returns the shape that Parse should assume for the next row with messages; "" if it can have
// any shape.
func (c *Checker) hint() string {
	switch {
	case c.shape != "":
		return c.shape
	case c.format == domain.FormatRL:
		return domain.ShapePrompt
	case c.format == domain.FormatChat:
		return domain.ShapeChat
	}
	return ""
}

func (c *Checker) reject(file string, line int, reason string) {
	if len(c.errors) < MaxErrors {
		c.errors = append(c.errors, LineError{file, line, reason})
	} else {
		c.more++
	}
}

// Result returns the statistics of the rows, or the errors in them: at most MaxErrors errors in
// errs, and the number of further errors in more.
func (c *Checker) Result() (stats domain.DatasetStats, errs []LineError, more int) {
	if c.stats.ExampleCount < c.MinRows {
		c.errors = append(c.errors,
			LineError{File: "dataset", Reason: fmt.Sprintf("has %s, but must have at least %d", c.stats.ExampleCount.Of("row"),
				c.MinRows)})
	}
	if len(c.errors) > 0 {
		return domain.DatasetStats{}, c.errors, c.more
	}
	c.stats.Shape, c.stats.Format = c.shape, domain.FormatOf(c.shape)
	c.stats.EstimatedTokenCount = domain.Count(c.tokens.tokensIn(c.bytes))
	c.stats.AverageTurnCount = int((c.turns + int64(c.stats.ExampleCount)/2) / int64(c.stats.ExampleCount))
	return c.stats, nil, 0
}

// InvalidRows returns an error that lists each LineError as a violation of the field FILE:LINE. Its
// message states each reason once, with all lines to which it applies. more is the number of
// further errors, which errs does not contain.
func InvalidRows(errs []LineError, more int) *domain.Error {
	violations := make([]domain.Violation, len(errs))
	for i, f := range errs {
		violations[i] = domain.Violation{Field: f.where(), Description: f.Reason}
	}
	groups := Groups(errs)
	lines := make([]string, len(groups))
	for i, g := range groups {
		lines[i] = g.String()
	}
	text := strings.Join(lines, "; ")
	if more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return &domain.Error{Code: domain.InvalidArgument, Reason: "INVALID_ROWS", Violations: violations,
		Message: text + ": correct the file and upload it again"}
}
