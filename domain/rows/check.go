// Package rows reads and checks the rows of datasets: JSON objects, one a
// line, in the shapes of spec/gaps.md section 8. It is pure; files are opened
// by who calls it.
package rows

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"anneal/domain"
)

// Limits on a dataset.
const (
	MinRows   = 3
	MaxRows   = 3_000_000
	MaxLine   = 8 << 20 // bytes in one row
	MaxFaults = 100     // rows at fault that are named
)

// A Fault is what is wrong with one line of one file. Line counts from 1 and
// is 0 for what is wrong with the file as a whole.
type Fault struct {
	File   string
	Line   int
	Reason string
}

func (f Fault) String() string { return f.where() + ": " + f.Reason }

func (f Fault) where() string {
	if f.Line == 0 {
		return f.File
	}
	return fmt.Sprintf("%s:%d", f.File, f.Line)
}

// A Checker reads the files of one dataset in constant memory.
type Checker struct {
	Least  domain.Count          // rows that there must be; MinRows unless it is changed
	Count  func(text string) int // tokens of a text; nil takes one for every four bytes
	format string                // that the caller asked for, or ""
	shape  string                // of the first row without a fault
	reader reader
	tokens estimate
	facts  domain.DatasetFacts
	bytes  int64
	turns  int64
	faults []Fault
	more   int // faults beyond MaxFaults
}

// NewChecker checks against a dataset format, or, for "" and
// FORMAT_UNSPECIFIED, takes it from the first row.
func NewChecker(format string) *Checker {
	if format == "FORMAT_UNSPECIFIED" {
		format = ""
	}
	return &Checker{Least: MinRows, format: format}
}

// Read checks every line of a file. Its error is that of reading; what is
// wrong with the rows is told by Result.
func (c *Checker) Read(file string, r io.Reader) error {
	return Lines(r, func(line int, text []byte, tooLong bool) error {
		if tooLong {
			c.fault(file, line, fmt.Sprintf("the line is longer than %d MiB", MaxLine>>20))
		} else {
			c.Row(file, line, text)
		}
		return nil
	})
}

// Row checks one line of a file; a blank one is no row.
func (c *Checker) Row(file string, line int, text []byte) {
	if len(bytes.TrimSpace(text)) == 0 {
		return
	}
	c.facts.ExampleCount++
	if c.facts.ExampleCount > MaxRows {
		if c.facts.ExampleCount == MaxRows+1 {
			c.fault(file, line, fmt.Sprintf("the dataset has more than %d rows", MaxRows))
		}
		return
	}
	c.reader.hear = c.tokens.ear(c.Count, c.facts.ExampleCount)
	row := c.reader.read(text, c.hint())
	for _, reason := range c.reader.reasons {
		c.fault(file, line, reason)
	}
	if len(c.reader.reasons) > 0 {
		return
	}
	if c.shape == "" {
		c.shape = row.Shape
		if format := domain.FormatOf(row.Shape); c.format != "" && c.format != format {
			c.fault(file, line, fmt.Sprintf("the row is %s data, but the dataset's format is %s", format, c.format))
		}
	} else if row.Shape != c.shape {
		c.fault(file, line, fmt.Sprintf("the row is a %s row, but the rows before are %s rows: one shape a dataset", row.Shape, c.shape))
	}
	c.bytes += int64(row.Bytes)
	c.turns += int64(row.Turns)
}

// hint is the shape that a row with messages is measured by.
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

func (c *Checker) fault(file string, line int, reason string) {
	if len(c.faults) < MaxFaults {
		c.faults = append(c.faults, Fault{file, line, reason})
	} else {
		c.more++
	}
}

// Result is what the rows say, or the faults that make them unusable; more
// counts those beyond MaxFaults.
func (c *Checker) Result() (facts domain.DatasetFacts, faults []Fault, more int) {
	if c.facts.ExampleCount < c.Least {
		c.faults = append(c.faults, Fault{File: "dataset", Reason: fmt.Sprintf("has %s; at least %d are needed", c.facts.ExampleCount.Of("row"), c.Least)})
	}
	if len(c.faults) > 0 {
		return domain.DatasetFacts{}, c.faults, c.more
	}
	c.facts.Shape, c.facts.Format = c.shape, domain.FormatOf(c.shape)
	c.facts.EstimatedTokenCount = domain.Count(c.tokens.of(c.bytes))
	c.facts.AverageTurnCount = int((c.turns + int64(c.facts.ExampleCount)/2) / int64(c.facts.ExampleCount))
	return c.facts, nil, 0
}

// Refusal is the verdict on rows with faults: each is a violation whose field
// is FILE:LINE.
func Refusal(faults []Fault, more int) *domain.Error {
	lines := make([]string, len(faults))
	violations := make([]domain.Violation, len(faults))
	for i, f := range faults {
		lines[i] = f.String()
		violations[i] = domain.Violation{Field: f.where(), Description: f.Reason}
	}
	text := strings.Join(lines, "; ")
	if more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return &domain.Error{Code: domain.InvalidArgument, Reason: "INVALID_ROWS", Violations: violations,
		Message: text + ": mend the file and upload it again"}
}
