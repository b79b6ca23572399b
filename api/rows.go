package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"anneal/domain"
)

// Limits of a dataset's rows.
const (
	MinRows      = 3
	MaxRows      = 3_000_000
	MaxRowBytes  = 8 << 20
	maxRowFaults = 100 // how many are told
)

// A rowCheck reads the files of an upload line by line as they arrive, and
// collects what is wrong with them: file, 1-based line, reason.
type rowCheck struct {
	format string // that the dataset asks for, or ""
	shape  string // of the first row; every other must have it too

	file    string
	line    int
	blank   int // the line of a blank one that only the end of the file may follow, or 0
	partial []byte
	tooLong bool

	rows, turns int
	text        int // bytes of what is learnt from
	faults      domain.Violations
	more        int // faults beyond maxRowFaults
}

// newRowCheck checks for a dataset that asks for a format, or for none.
func newRowCheck(format string) *rowCheck { return &rowCheck{format: specified(format)} }

func (k *rowCheck) begin(file string) { k.file, k.line, k.blank = file, 0, 0 }

// Write implements io.Writer over the bytes of the current file.
func (k *rowCheck) Write(data []byte) (int, error) {
	n := len(data)
	for {
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			k.keep(data)
			return n, nil
		}
		if len(k.partial) == 0 && !k.tooLong && i <= MaxRowBytes {
			k.row(data[:i])
		} else {
			k.keep(data[:i])
			k.row(k.partial)
		}
		k.partial, k.tooLong = k.partial[:0], false
		data = data[i+1:]
	}
}

func (k *rowCheck) keep(data []byte) {
	if k.tooLong = k.tooLong || len(k.partial)+len(data) > MaxRowBytes; !k.tooLong {
		k.partial = append(k.partial, data...)
	}
}

// end tells that the current file is complete.
func (k *rowCheck) end() {
	if len(k.partial) > 0 || k.tooLong {
		k.row(k.partial)
		k.partial, k.tooLong = k.partial[:0], false
	}
}

func (k *rowCheck) fault(line int, format string, args ...any) {
	if len(k.faults) == maxRowFaults {
		k.more++
		return
	}
	k.faults.Add(k.file+" line "+strconv.Itoa(line), format, args...)
}

func (k *rowCheck) row(line []byte) {
	k.line++
	switch {
	case k.tooLong:
		k.fault(k.line, "the row is longer than %d bytes: split it", MaxRowBytes)
		return
	case len(bytes.TrimSpace(line)) == 0:
		if k.blank == 0 {
			k.blank = k.line
		}
		return
	case k.blank > 0:
		k.fault(k.blank, "the line is empty: remove it")
		k.blank = 0
	}
	if k.rows++; k.rows > MaxRows {
		return // told once, by verdict
	}
	if err := k.judge(line); err != nil {
		k.fault(k.line, "%v", err)
	}
}

// judge finds the row's shape and checks it.
func (k *rowCheck) judge(line []byte) error {
	if !utf8.Valid(line) {
		return errors.New("the row is not valid UTF-8: encode the file anew")
	}
	if line = bytes.TrimSpace(line); line[0] != '{' {
		return errors.New("the row must be one JSON object")
	}
	var r row
	if err := json.Unmarshal(line, &r); err != nil {
		return explainRow(err)
	}
	shape := r.shape(k.format)
	if k.shape == "" {
		if format := formats[shape]; k.format != "" && shape != "" && format != k.format {
			return fmt.Errorf("the row is of format %s, but the dataset asks for %s", format, k.format)
		}
		k.shape = shape
	}
	if k.shape == domain.ShapeChat || k.shape == domain.ShapePrompt {
		shape = r.shape(formats[k.shape]) // who has the last word is for the shape's own rules to say
	}
	switch {
	case shape == "":
		return errors.New(`the row has neither messages, nor prompt and completion, nor text, nor input with preferred_output, nor samples`)
	case shape != k.shape:
		return fmt.Errorf("the row is a %s row, but the first one is a %s row: one shape a dataset", shape, k.shape)
	}
	return k.checkShape(&r)
}

func (k *rowCheck) checkShape(r *row) error {
	switch k.shape {
	case domain.ShapeChat:
		return k.conversation("messages", r.Messages, "assistant")
	case domain.ShapePrompt:
		return k.conversation("messages", r.Messages, "user")
	case domain.ShapePreference:
		return k.preference(r)
	case domain.ShapeSamples:
		return k.samples(r)
	}
	switch {
	case r.Text != nil && (r.Prompt != nil || r.Completion != nil):
		return errors.New("give either text, or prompt and completion")
	case r.Text != nil && *r.Text == "":
		return errors.New("text must not be empty")
	case r.Text != nil:
		k.learn(1, *r.Text)
		return nil
	case r.Prompt == nil || r.Completion == nil:
		return errors.New("prompt and completion must both be given")
	case *r.Completion == "":
		return errors.New("completion must not be empty")
	}
	k.learn(1, *r.Prompt, *r.Completion)
	return nil
}

// learn counts what a row brings.
func (k *rowCheck) learn(turns int, texts ...string) {
	k.turns += turns
	for _, t := range texts {
		k.text += len(t)
	}
}

// bytesPerToken is the usual estimate for text and common vocabularies.
const bytesPerToken = 4

// verdict is what all rows say together, or all that is wrong with them.
func (k *rowCheck) verdict() (domain.DatasetFacts, error) {
	k.file = "all files"
	v := k.faults
	if k.rows < MinRows || k.rows > MaxRows {
		v.Add("rows", "there are %d rows: a dataset has %d to %d", k.rows, MinRows, MaxRows)
	}
	if k.more > 0 {
		v.Add("rows", "%d more rows are wrong: mend these first", k.more)
	}
	facts := domain.DatasetFacts{Format: formats[k.shape], Shape: k.shape, ExampleCount: domain.Count(k.rows),
		EstimatedTokenCount: domain.Count((k.text + bytesPerToken - 1) / bytesPerToken)}
	if k.rows > 0 {
		facts.AverageTurnCount = (k.turns + k.rows/2) / k.rows
	}
	return facts, v.Err()
}
