package simulated

import (
	"encoding/json"
	"math/rand/v2"

	"anneal/domain"
	"anneal/engines"
)

// A form is what an answer must be: pieces of one token each, a character of
// JSON or the name of a function.
type form struct {
	pieces []engines.Chunk
	finish string
}

// formOf is the answer to a request that asks for a form; nil where none is
// asked for.
func formOf(req engines.CompletionRequest, source *rand.Rand) (*form, error) {
	switch {
	case req.Chat != nil && req.Chat.Calls != nil:
		return called(req.Chat, source)
	case req.Format == nil:
		return nil, nil
	}
	f := &form{finish: engines.FinishStop}
	var content any
	var err error
	switch req.Format.Type {
	case engines.FormatJSON:
		content = map[string]any{"word": words[source.IntN(len(words))]}
	case engines.FormatSchema:
		content, err = instanceOf(req.Format.Schema, "format", source)
	default:
		err = domain.Errorf(domain.InvalidArgument, "format: a simulated model holds its answers to JSON and to schemas, not to %q: leave it out", req.Format.Type)
	}
	if err != nil {
		return nil, err
	}
	return f, f.write(content, func(text string) engines.Chunk { return engines.Chunk{Text: text} })
}

// called is one call of the function that is asked for, or of the first.
func called(chat *engines.Chat, source *rand.Rand) (*form, error) {
	for _, data := range chat.Tools {
		var tool struct {
			Function struct {
				Name       string          `json:"name"`
				Parameters json.RawMessage `json:"parameters"`
			} `json:"function"`
		}
		if err := json.Unmarshal(data, &tool); err != nil {
			return nil, domain.Errorf(domain.InvalidArgument, "tools: is not JSON: %v", err)
		}
		asked := tool.Function
		if chat.Calls.Name != "" && chat.Calls.Name != asked.Name {
			continue
		}
		var arguments any = map[string]any{}
		if asked.Parameters != nil {
			var err error
			if arguments, err = instanceOf(asked.Parameters, "tools", source); err != nil {
				return nil, err
			}
		}
		f := &form{finish: engines.FinishToolCalls}
		f.pieces = []engines.Chunk{{ToolCalls: []engines.ToolCall{{Name: asked.Name}}, Tokens: []int{len(words)}}}
		return f, f.write(arguments, func(text string) engines.Chunk {
			return engines.Chunk{ToolCalls: []engines.ToolCall{{Arguments: text}}}
		})
	}
	return nil, domain.Errorf(domain.InvalidArgument, "tools: has no function %q", chat.Calls.Name)
}

func (f *form) write(content any, piece func(string) engines.Chunk) error {
	data, err := json.Marshal(content)
	for _, r := range string(data) {
		one := piece(string(r))
		one.Tokens = []int{len(words) + int(r)}
		f.pieces = append(f.pieces, one)
	}
	return err
}

// within is the form in at most so many tokens, cut before the first stop
// sequence.
func (f *form) within(limit int, stops []string) ([]engines.Chunk, string) {
	pieces, finish := f.pieces, f.finish
	if len(pieces) > limit {
		pieces, finish = pieces[:limit], engines.FinishLength
	}
	text := ""
	for _, piece := range pieces {
		text += piece.Text
	}
	if at := firstStop(text, stops); at >= 0 {
		return trim(pieces, len(text)-at), engines.FinishStop
	}
	return pieces, finish
}
