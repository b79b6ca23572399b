// Package rows reads and checks the rows of datasets: JSON objects, one a
// line, in the shapes of spec/gaps.md section 8. It is pure; files are opened
// by who calls it.
package rows

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

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
	format string // that the caller asked for, or ""
	shape  string // of the first row
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
	return &Checker{format: format}
}

// Read checks every line of a file. Its error is that of reading; what is
// wrong with the rows is told by Result.
func (c *Checker) Read(file string, r io.Reader) error {
	reader := bufio.NewReaderSize(r, 64<<10)
	for line := 1; ; line++ {
		text, err := readLine(reader)
		switch {
		case errors.Is(err, errTooLong):
			c.fault(file, line, fmt.Sprintf("the line is longer than %d MiB", MaxLine>>20))
		case err != nil && err != io.EOF:
			return err
		default:
			if line == 1 {
				text = strings.TrimPrefix(text, "\ufeff")
			}
			c.row(file, line, text)
		}
		if err == io.EOF {
			return nil
		}
	}
}

func (c *Checker) row(file string, line int, text string) {
	if strings.TrimSpace(text) == "" {
		return
	}
	c.facts.ExampleCount++
	if c.facts.ExampleCount > MaxRows {
		if c.facts.ExampleCount == MaxRows+1 {
			c.fault(file, line, fmt.Sprintf("the dataset has more than %d rows", MaxRows))
		}
		return
	}
	if !utf8.ValidString(text) {
		c.fault(file, line, "the line is not valid UTF-8")
		return
	}
	row, reasons := Parse([]byte(text), c.hint())
	for _, reason := range reasons {
		c.fault(file, line, reason)
	}
	if row.Shape == "" {
		return
	}
	if c.shape == "" {
		c.shape = row.Shape
		if format := FormatOf(row.Shape); c.format != "" && c.format != format {
			c.fault(file, line, fmt.Sprintf("the row is %s data, but the dataset's format is %s", format, c.format))
		}
	} else if row.Shape != c.shape && len(reasons) == 0 {
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
	if c.facts.ExampleCount < MinRows {
		c.faults = append(c.faults, Fault{File: "dataset", Reason: fmt.Sprintf("has %d rows; at least %d are needed", c.facts.ExampleCount, MinRows)})
	}
	if len(c.faults) > 0 {
		return domain.DatasetFacts{}, c.faults, c.more
	}
	c.facts.Shape, c.facts.Format = c.shape, FormatOf(c.shape)
	c.facts.EstimatedTokenCount = domain.Count((c.bytes + 3) / 4)
	c.facts.AverageTurnCount = int((c.turns + int64(c.facts.ExampleCount)/2) / int64(c.facts.ExampleCount))
	return c.facts, nil, 0
}

// FormatOf is the dataset format that a shape belongs to.
func FormatOf(shape string) string {
	switch shape {
	case domain.ShapeChat, domain.ShapePreference:
		return domain.FormatChat
	case domain.ShapeCompletion:
		return domain.FormatCompletion
	}
	return domain.FormatRL
}

// Refusal is the verdict on rows with faults: each is a violation whose field
// is FILE:LINE.
func Refusal(faults []Fault, more int) *domain.Fault {
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
	return &domain.Fault{Code: domain.InvalidArgument, Reason: "INVALID_ROWS", Violations: violations,
		Message: text + ": mend the file and upload it again"}
}

var errTooLong = errors.New("line too long")

// readLine answers a line without its end; io.EOF comes with the last one. A
// line beyond MaxLine is read to its end and answered with errTooLong.
func readLine(r *bufio.Reader) (string, error) {
	var line []byte
	tooLong := false
	for {
		part, err := r.ReadSlice('\n')
		if !tooLong {
			line = append(line, part...)
			tooLong = len(line) > MaxLine
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if tooLong && err == nil {
			return "", errTooLong
		}
		return strings.TrimRight(string(line), "\r\n"), err
	}
}
