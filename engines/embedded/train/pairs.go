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

// parse parses a dataset row that must have one of the given shapes.
func parse(line []byte, shapes ...string) (rows.Row, error) {
	row, faults := rows.Parse(line, shapes[0])
	switch {
	case len(faults) > 0:
		return row, errors.New(strings.Join(faults, "; "))
	case !slices.Contains(shapes, row.Shape):
		return row, fmt.Errorf("the row has shape %s, but this job needs %s", row.Shape, strings.Join(shapes, " or "))
	}
	return row, nil
}

// pair parses a preference row: {input: {messages}, preferred_output, non_preferred_output}. Only
// the tokens of the two outputs are targets of the loss.
func (r *reader) pair(line []byte) error {
	row, err := parse(line, domain.ShapePreference)
	if err != nil {
		return err
	}
	s, err := r.withTarget(row.Messages, row.Preferred, row.Tools)
	if err != nil {
		return fmt.Errorf("preferred_output: %w", err)
	}
	if s.Rejected, err = r.withTarget(row.Messages, row.Rejected, row.Tools); err != nil {
		return fmt.Errorf("non_preferred_output: %w", err)
	}
	if slices.Equal(s.Tokens, s.Rejected.Tokens) {
		return errors.New("preferred_output and non_preferred_output are identical: give two different responses")
	}
	r.keep(s)
	return nil
}

// withTarget tokenizes a conversation and a response to it. The tokens of the response are the
// targets of the loss.
func (r *reader) withTarget(asked, response []rows.Message, tools json.RawMessage) (*Sample, error) {
	prompt, err := r.chat(asked, tools)
	if err != nil {
		return nil, err
	}
	whole, err := r.chat(slices.Concat(asked, response), tools)
	if err != nil {
		return nil, err
	}
	if len(whole) <= len(prompt) || !slices.Equal(whole[:len(prompt)], prompt) {
		return nil, errors.New("the chat template renders the prompt differently when the response follows: " +
			"end the conversation before the response with a user message, or use another model or chat template")
	}
	return r.sequence(whole, from(len(prompt), len(whole)))
}

// from returns n values that are false before the index start, and true from there on.
func from(start, n int) []bool {
	isTarget := make([]bool, n)
	for i := start; i < n; i++ {
		isTarget[i] = true
	}
	return isTarget
}
