package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/domain/rows"
)

// parse reads a row that must have one of some shapes.
func parse(line []byte, shapes ...string) (rows.Row, error) {
	row, faults := rows.Parse(line, shapes[0])
	switch {
	case len(faults) > 0:
		return row, errors.New(strings.Join(faults, "; "))
	case !slices.Contains(shapes, row.Shape):
		return row, fmt.Errorf("the row is of shape %s, and this training takes %s", row.Shape, strings.Join(shapes, " or "))
	}
	return row, nil
}

// pair reads a preference row: {input: {messages}, preferred_output,
// non_preferred_output}. The answers alone are learnt.
func (r *reader) pair(line []byte) error {
	row, err := parse(line, domain.ShapePreference)
	if err != nil {
		return err
	}
	s, err := r.answered(row.Messages, row.Preferred, row.Tools)
	if err != nil {
		return fmt.Errorf("preferred_output: %w", err)
	}
	if s.Rejected, err = r.answered(row.Messages, row.Rejected, row.Tools); err != nil {
		return fmt.Errorf("non_preferred_output: %w", err)
	}
	if slices.Equal(s.Tokens, s.Rejected.Tokens) {
		return errors.New("both answers are the same: there is nothing to prefer")
	}
	r.keep(s)
	return nil
}

// answered renders a conversation and the answer to it, which alone is learnt.
func (r *reader) answered(asked, answer []rows.Message, tools json.RawMessage) (*Sample, error) {
	prompt, err := r.chat(asked, tools)
	if err != nil {
		return nil, err
	}
	whole, err := r.chat(slices.Concat(asked, answer), tools)
	if err != nil {
		return nil, err
	}
	if len(whole) <= len(prompt) || !slices.Equal(whole[:len(prompt)], prompt) {
		return nil, errors.New("the conversation must end before the assistant's answer, with a message of the user")
	}
	return r.sequence(whole, from(len(prompt), len(whole)))
}

// from is a list of n of which those from at on are true.
func from(at, n int) []bool {
	learn := make([]bool, n)
	for i := at; i < n; i++ {
		learn[i] = true
	}
	return learn
}
