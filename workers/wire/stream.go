package wire

import (
	"time"

	"anneal/domain"
	"anneal/engines"
)

// A Completion asks a replica for one continuation. Its answer is a stream of
// parts on StreamSubject(node, ID), numbered from 1.
//
// At most Window parts are on their way at a time: the receiver says what has
// arrived, and what comes meanwhile is joined into the next part. So a slow
// reader holds up nobody, and nothing is ever dropped for lack of room. Both
// ends speak up at least every Pulse, and give up after Silence.
type Completion struct {
	Version    int                       `json:"version"`
	ID         string                    `json:"id"`
	Deployment domain.Name               `json:"deployment"`
	Replica    string                    `json:"replica"`
	Request    engines.CompletionRequest `json:"request"`
}

// The rules of a stream.
const (
	Window  = 16
	Pulse   = 2 * time.Second
	Silence = 10 * time.Second
	MaxPart = 256 // chunks
	maxPart = MaxMessage / 2
)

// Fit is how many of the chunks go into one part: at least one, at most MaxPart.
func Fit(chunks []engines.Chunk) int {
	size := 0
	for i, chunk := range chunks[:min(len(chunks), MaxPart)] {
		if size += roomOf(chunk); size > maxPart && i > 0 {
			return i
		}
	}
	return min(len(chunks), MaxPart)
}

// roomOf is about how many bytes a chunk takes on its way, rather more than
// less: JSON may write a byte of text as six.
func roomOf(c engines.Chunk) int {
	const frame, token = 200, 8
	size := frame + 6*(len(c.Text)+len(c.Reasoning)+len(c.Raw)) + token*len(c.Tokens)
	for _, call := range c.ToolCalls {
		size += frame + 6*(len(call.Name)+len(call.Arguments))
	}
	if c.Prompt != nil {
		size += frame + 6*len(c.Prompt.Text) + token*len(c.Prompt.Tokens)
	}
	return size + roomOfLogprobs(c.Logprobs)
}

func roomOfLogprobs(logprobs []engines.Logprob) int {
	const frame = 160
	size := 0
	for _, one := range logprobs {
		size += frame + 6*len(one.Text) + 2*len(one.Bytes) + roomOfLogprobs(one.Top)
	}
	return size
}

// A Part of a stream. One without chunks only says that its sender is alive.
type Part struct {
	Version int             `json:"version"`
	Seq     uint64          `json:"seq"` // from 1, without gaps
	Chunks  []engines.Chunk `json:"chunks,omitempty"`
	Usage   *engines.Usage  `json:"usage,omitempty"` // in the last part
	Fault   *Fault          `json:"fault,omitempty"` // in the last part, when it went wrong
	Done    bool            `json:"done,omitempty"`
}

// Heard says that every part up to Seq has arrived; Stop, that no more is wanted.
type Heard struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	Seq     uint64 `json:"seq"`
	Stop    bool   `json:"stop,omitempty"`
}
