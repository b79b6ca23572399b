package simulated

import (
	"encoding/json"
	"math/rand/v2"

	"anneal/domain"
	"anneal/engines"
)

// An output is a constrained completion, in chunks of one token each: a character of JSON or the
// name of a function.
type output struct {
	chunks []engines.Chunk
	finish string
}

// constrainedOutput generates the completion of a request with a response format or a required tool
// call; nil if the request has neither.
func constrainedOutput(req engines.CompletionRequest, source *rand.Rand) (*output, error) {
	switch {
	case req.Chat != nil && req.Chat.ToolChoice != nil:
		return toolCall(req.Chat, source)
	case req.Format == nil:
		return nil, nil
	}
	f := &output{finish: engines.FinishStop}
	var content any
	var err error
	switch req.Format.Type {
	case engines.FormatJSON:
		content = map[string]any{"word": words[source.IntN(len(words))]}
	case engines.FormatSchema:
		content, err = instanceOf(req.Format.Schema, "format", source)
	default:
		err = domain.Errorf(domain.InvalidArgument,
			"format: a simulated model supports json_object and json_schema, not %q: leave it out", req.Format.Type)
	}
	if err != nil {
		return nil, err
	}
	return f, f.write(content, func(text string) engines.Chunk { return engines.Chunk{Text: text} })
}

// toolCall returns a call of the required function or, if every function is allowed, of the first
// one.
func toolCall(chat *engines.Chat, source *rand.Rand) (*output, error) {
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
		function := tool.Function
		if chat.ToolChoice.Name != "" && chat.ToolChoice.Name != function.Name {
			continue
		}
		var arguments any = map[string]any{}
		if function.Parameters != nil {
			var err error
			if arguments, err = instanceOf(function.Parameters, "tools", source); err != nil {
				return nil, err
			}
		}
		f := &output{finish: engines.FinishToolCalls}
		f.chunks = []engines.Chunk{{ToolCalls: []engines.ToolCall{{Name: function.Name}}, Tokens: []int{len(words)}}}
		return f, f.write(arguments, func(text string) engines.Chunk {
			return engines.Chunk{ToolCalls: []engines.ToolCall{{Arguments: text}}}
		})
	}
	return nil, domain.Errorf(domain.InvalidArgument, "tools: has no function %q, which toolChoice requires: add it",
		chat.ToolChoice.Name)
}

func (f *output) write(content any, chunk func(string) engines.Chunk) error {
	data, err := json.Marshal(content)
	for _, r := range string(data) {
		one := chunk(string(r))
		one.Tokens = []int{len(words) + int(r)}
		f.chunks = append(f.chunks, one)
	}
	return err
}

// within returns the first chunks of the output, at most limit and cut before the first stop
// sequence, and the finish reason.
func (f *output) within(limit int, stops []string) ([]engines.Chunk, string) {
	chunks, finish := f.chunks, f.finish
	if len(chunks) > limit {
		chunks, finish = chunks[:limit], engines.FinishLength
	}
	text := ""
	for _, chunk := range chunks {
		text += chunk.Text
	}
	if at := firstStop(text, stops); at >= 0 {
		return trim(chunks, len(text)-at), engines.FinishStop
	}
	return chunks, finish
}
