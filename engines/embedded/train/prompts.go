package train

import (
	"encoding/json"
	"errors"
	"fmt"

	"anneal/domain"
)

// A prompt is a dataset row to which the model generates responses, which an evaluator scores.
type prompt struct {
	tokens []int
	row    map[string]any // input of the evaluator, without the response
	number int            // number of the row in its dataset, from 1
}

// prompt parses a row whose last message is a user message. Other fields of the row are passed to
// the evaluator.
func (r *reader) prompt(line []byte) error {
	row, err := parse(line, domain.ShapePrompt)
	if err != nil {
		return err
	}
	p := &prompt{}
	if err := json.Unmarshal(line, &p.row); err != nil {
		return err
	}
	if _, ok := p.row["messages"].([]any); !ok {
		return errors.New("messages: must be a list")
	}
	if p.tokens, err = r.chat(row.Messages, row.Tools); err != nil {
		return err
	}
	if len(p.tokens) >= r.window {
		return fmt.Errorf("the prompt has %d tokens, which leaves no space for a response within the limit of %d: "+
			"shorten it, or raise maxContextLength up to the model's context length",
			len(p.tokens), r.window)
	}
	for _, id := range p.tokens {
		if id < 0 || id >= r.vocab {
			return errForeignToken(id, r.vocab)
		}
	}
	r.prompts = append(r.prompts, p)
	r.kept, r.count = r.kept+1, r.count+len(p.tokens)
	p.number = r.kept
	return nil
}

// withResponse returns the input of the evaluator: the row with a response as its last message.
func (p *prompt) withResponse(response string) map[string]any {
	row := make(map[string]any, len(p.row))
	for name, value := range p.row {
		row[name] = value
	}
	asked := p.row["messages"].([]any)
	row["messages"] = append(asked[:len(asked):len(asked)], map[string]any{"role": "assistant", "content": response})
	return row
}
