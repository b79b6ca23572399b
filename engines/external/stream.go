package external

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"unicode/utf8"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/process"
)

// maxEvent is the maximum size of an event in a stream, in bytes.
const maxEvent = 16 << 20

// A stream reads the event stream of one completion from the server.
type stream struct {
	req         *engines.CompletionRequest
	emit        func(engines.Chunk) error
	emitsPrompt bool // emit the tokens of the prompt, which the stream contains
	usage       engines.Usage
	counted     bool // usage has the numbers of tokens that the server reported
	offset      int  // number of characters of the completion so far
	finished    bool
	ended       bool // the last event was received
	permanent   bool // the error of read is not a failure of the connection to the server
}

// An event is an event in the stream of a completion or a chat completion.
type event struct {
	Choices        []choice        `json:"choices"`
	Usage          *usage          `json:"usage"`
	PromptTokenIDs []int           `json:"prompt_token_ids"` // tokens of a chat's prompt, only in the first event
	Error          json.RawMessage `json:"error"`
	nativeEvent
}

type choice struct {
	Text           string    `json:"text"`
	Delta          delta     `json:"delta"`
	Logprobs       *logprobs `json:"logprobs"`
	FinishReason   string    `json:"finish_reason"`
	TokenIDs       []int     `json:"token_ids"`
	PromptTokenIDs []int     `json:"prompt_token_ids"` // tokens of a completion's prompt, only in the first event
}

type delta struct {
	Content          string `json:"content"`
	Reasoning        string `json:"reasoning"`
	ReasoningContent string `json:"reasoning_content"`
	ToolCalls        []struct {
		Index    int    `json:"index"`
		ID       string `json:"id"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	PromptDetails    *struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails *struct {
		ReasoningTokens int `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

// read emits the chunks of the stream until it ends.
func (s *stream) read(response *http.Response) error {
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind != "text/event-stream" {
		return s.fail(domain.Errorf(domain.Internal,
			"the model server returned %q instead of an event stream", kind))
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, maxEvent)
	lines.Split(process.ScanWholeLines)
	for !s.ended && lines.Scan() {
		data, is := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if data = bytes.TrimSpace(data); !is || len(data) == 0 {
			continue
		}
		if string(data) == "[DONE]" {
			break
		}
		if err := s.handle(data); err != nil {
			return s.fail(err)
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return s.fail(domain.Errorf(domain.Internal, "the model server sent an event of more than %d bytes", maxEvent))
	}
	if lines.Err() != nil && !s.finished {
		return lines.Err()
	}
	if !s.finished {
		return errCut
	}
	return nil
}

var errCut = errors.New("the model server ended the stream before its last event")

// fail records that an error is permanent, and returns it.
func (s *stream) fail(err error) error {
	s.permanent = true
	return err
}

// handle processes an event.
func (s *stream) handle(data []byte) error {
	var e event
	if err := json.Unmarshal(data, &e); err != nil {
		return domain.Errorf(domain.Internal, "the model server sent an invalid event: %v", err)
	}
	if len(e.Error) > 0 && string(e.Error) != "null" {
		return responseError(statusOf(e.Error), data)
	}
	if e.Usage != nil {
		s.count(e.Usage)
	}
	if err := s.emitPrompt(e.PromptTokenIDs); err != nil {
		return err
	}
	if c, native := e.choice(s); native {
		e.Choices = append(e.Choices, c)
	}
	for _, c := range e.Choices {
		if s.finished {
			break
		}
		if err := s.emitPrompt(c.PromptTokenIDs); err != nil {
			return err
		}
		if err := s.emitChoice(c); err != nil {
			return err
		}
	}
	return nil
}

// statusOf returns the HTTP status of an error in a stream; 500 if it has none.
func statusOf(data []byte) int {
	var body struct {
		Code int `json:"code"`
	}
	if json.Unmarshal(data, &body) != nil || body.Code < 400 {
		return http.StatusInternalServerError
	}
	return body.Code
}

func (s *stream) count(u *usage) {
	s.counted = true
	s.usage.PromptTokens, s.usage.CompletionTokens = u.PromptTokens, u.CompletionTokens
	if u.PromptDetails != nil {
		s.usage.CachedTokens = u.PromptDetails.CachedTokens
	}
	if u.CompletionDetails != nil {
		s.usage.ReasoningTokens = u.CompletionDetails.ReasoningTokens
	}
	if s.req.MaxTokens == 0 {
		s.usage.CompletionTokens, s.usage.ReasoningTokens = 0, 0
	}
}

// emitPrompt emits the tokens of the prompt at its first call, if the stream contains them.
func (s *stream) emitPrompt(tokens []int) error {
	if !s.emitsPrompt || len(tokens) == 0 {
		return nil
	}
	s.emitsPrompt = false
	return emitPrompt(tokens, s.emit)
}

// emitChoice emits a choice of an event.
func (s *stream) emitChoice(c choice) error {
	if s.req.MaxTokens == 0 {
		if c.FinishReason == "" {
			return nil
		}
		c = choice{FinishReason: engines.FinishLength}
	}
	chunk := engines.Chunk{Text: c.Text + c.Delta.Content, Reasoning: c.Delta.Reasoning, Tokens: c.TokenIDs}
	if chunk.Reasoning == "" {
		chunk.Reasoning = c.Delta.ReasoningContent
	}
	for _, call := range c.Delta.ToolCalls {
		chunk.ToolCalls = append(chunk.ToolCalls, engines.ToolCall{Index: call.Index, ID: call.ID,
			Name: call.Function.Name, Arguments: call.Function.Arguments})
	}
	if c.Logprobs != nil {
		logprobs := c.Logprobs.list(s, c.TokenIDs)
		if chunk.Tokens == nil {
			chunk.Tokens = tokensOf(logprobs)
		}
		if s.req.Logprobs {
			chunk.Logprobs = logprobs
		}
	}
	s.offset += utf8.RuneCountInString(chunk.Text)
	switch c.FinishReason {
	case "":
	case engines.FinishStop, engines.FinishLength, engines.FinishToolCalls:
		chunk.Finish = c.FinishReason
	default:
		return domain.Errorf(domain.Internal, "the model server sent the unknown finish_reason %q", short(c.FinishReason))
	}
	s.finished = chunk.Finish != ""
	if !s.counted && (chunk.Text != "" || chunk.Reasoning != "" || len(chunk.ToolCalls) > 0) {
		s.usage.CompletionTokens += max(1, len(chunk.Tokens))
	}
	return s.send(chunk)
}

// send emits a chunk. It splits a chunk of more than engines.MaxChunk tokens; the first part gets
// the text.
func (s *stream) send(chunk engines.Chunk) error {
	rest := chunk
	for len(rest.Tokens) > engines.MaxChunk {
		first := rest
		first.Finish, first.Tokens = "", rest.Tokens[:engines.MaxChunk:engines.MaxChunk]
		rest = engines.Chunk{Finish: rest.Finish, Tokens: rest.Tokens[engines.MaxChunk:], Logprobs: rest.Logprobs}
		if len(first.Logprobs) > engines.MaxChunk {
			first.Logprobs, rest.Logprobs = first.Logprobs[:engines.MaxChunk:engines.MaxChunk], rest.Logprobs[engines.MaxChunk:]
		} else {
			rest.Logprobs = nil
		}
		if err := s.emit(first); err != nil {
			return err
		}
	}
	if rest.Text == "" && rest.Reasoning == "" && rest.ToolCalls == nil && rest.Tokens == nil && rest.Finish == "" {
		return nil
	}
	return s.emit(rest)
}
