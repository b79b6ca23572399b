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

// maxEvent is the most bytes of one event of a stream.
const maxEvent = 16 << 20

// An answer is a stream that is being read.
type answer struct {
	req        *engines.CompletionRequest
	emit       func(engines.Chunk) error
	tellPrompt bool // its tokens are told by the stream
	usage      engines.Usage
	counted    bool // usage is the server's count, not ours
	offset     int  // characters of the answer so far
	finished   bool
	refused    bool // the error is final: not that of a broken connection
}

// An event is a piece of a stream, of either operation.
type event struct {
	Choices        []choice        `json:"choices"`
	Usage          *usage          `json:"usage"`
	PromptTokenIDs []int           `json:"prompt_token_ids"` // of a chat, in its first piece
	Error          json.RawMessage `json:"error"`
}

type choice struct {
	Text           string    `json:"text"`
	Delta          delta     `json:"delta"`
	Logprobs       *logprobs `json:"logprobs"`
	FinishReason   string    `json:"finish_reason"`
	TokenIDs       []int     `json:"token_ids"`
	PromptTokenIDs []int     `json:"prompt_token_ids"` // of a completion, in its first piece
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

// read emits the stream's pieces until it ends.
func (a *answer) read(response *http.Response) error {
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind != "text/event-stream" {
		return a.refuse(domain.Errorf(domain.Internal, "the server of the model answered with %q instead of a stream of events", kind))
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, maxEvent)
	lines.Split(process.ScanWholeLines)
	for lines.Scan() {
		data, is := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if data = bytes.TrimSpace(data); !is || len(data) == 0 {
			continue
		}
		if string(data) == "[DONE]" {
			break
		}
		if err := a.hear(data); err != nil {
			return a.refuse(err)
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return a.refuse(domain.Errorf(domain.Internal, "the server of the model sent a piece of more than %d bytes", maxEvent))
	}
	if lines.Err() != nil && !a.finished {
		return lines.Err()
	}
	if !a.finished {
		return errCut
	}
	return nil
}

var errCut = errors.New("the answer has no end")

func (a *answer) refuse(err error) error {
	a.refused = true
	return err
}

// hear takes one event.
func (a *answer) hear(data []byte) error {
	var e event
	if err := json.Unmarshal(data, &e); err != nil {
		return domain.Errorf(domain.Internal, "the server of the model sent what is no event: %v", err)
	}
	if len(e.Error) > 0 && string(e.Error) != "null" {
		return refusal(statusOf(e.Error), data)
	}
	if e.Usage != nil {
		a.count(e.Usage)
	}
	if err := a.prompt(e.PromptTokenIDs); err != nil {
		return err
	}
	for _, c := range e.Choices {
		if a.finished {
			break
		}
		if err := a.prompt(c.PromptTokenIDs); err != nil {
			return err
		}
		if err := a.piece(c); err != nil {
			return err
		}
	}
	return nil
}

// statusOf is the HTTP status that an error within a stream stands for.
func statusOf(data []byte) int {
	var told struct {
		Code int `json:"code"`
	}
	if json.Unmarshal(data, &told) != nil || told.Code < 400 {
		return http.StatusInternalServerError
	}
	return told.Code
}

func (a *answer) count(u *usage) {
	a.counted = true
	a.usage.PromptTokens, a.usage.CompletionTokens = u.PromptTokens, u.CompletionTokens
	if u.PromptDetails != nil {
		a.usage.CachedTokens = u.PromptDetails.CachedTokens
	}
	if u.CompletionDetails != nil {
		a.usage.ReasoningTokens = u.CompletionDetails.ReasoningTokens
	}
	if a.req.MaxTokens == 0 {
		a.usage.CompletionTokens, a.usage.ReasoningTokens = 0, 0
	}
}

func (a *answer) prompt(tokens []int) error {
	if !a.tellPrompt || len(tokens) == 0 {
		return nil
	}
	a.tellPrompt = false
	return emitPrompt(tokens, a.emit)
}

// piece emits what one choice of an event says.
func (a *answer) piece(c choice) error {
	if a.req.MaxTokens == 0 {
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
		chunk.ToolCalls = append(chunk.ToolCalls, engines.ToolCall{Index: call.Index, ID: call.ID, Name: call.Function.Name, Arguments: call.Function.Arguments})
	}
	if c.Logprobs != nil {
		told := c.Logprobs.list(a, c.TokenIDs)
		if chunk.Tokens == nil {
			chunk.Tokens = tokensOf(told)
		}
		if a.req.Logprobs {
			chunk.Logprobs = told
		}
	}
	a.offset += utf8.RuneCountInString(chunk.Text)
	switch c.FinishReason {
	case "":
	case engines.FinishStop, engines.FinishLength, engines.FinishToolCalls:
		chunk.Finish = c.FinishReason
	default:
		return domain.Errorf(domain.Internal, "the server of the model ended the answer for the reason %q", short(c.FinishReason))
	}
	a.finished = chunk.Finish != ""
	if !a.counted && (chunk.Text != "" || chunk.Reasoning != "" || len(chunk.ToolCalls) > 0) {
		a.usage.CompletionTokens += max(1, len(chunk.Tokens))
	}
	return a.send(chunk)
}

// send emits a chunk, in several when it has too many tokens for a message: the
// first then has its text.
func (a *answer) send(chunk engines.Chunk) error {
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
		if err := a.emit(first); err != nil {
			return err
		}
	}
	if rest.Text == "" && rest.Reasoning == "" && rest.ToolCalls == nil && rest.Tokens == nil && rest.Finish == "" {
		return nil
	}
	return a.emit(rest)
}
