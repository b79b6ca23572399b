package wire

import (
	"time"

	"anneal/domain"
	"anneal/engines"
)

// An Ask asks a replica for something that is answered by a stream: parts on
// StreamSubject(node, ID), numbered from 1.
//
// At most Window parts are on their way at a time: the receiver says what has
// arrived, and what comes meanwhile is joined into the next part. So a slow
// reader holds up nobody, and nothing is ever dropped for lack of room. Both
// ends speak up at least every Pulse, and give up after Silence.
type Ask[Request any] struct {
	Version    int         `json:"version"`
	ID         string      `json:"id"`
	Deployment domain.Name `json:"deployment"`
	Replica    string      `json:"replica"`
	Request    Request     `json:"request"`
}

// A Part of a stream. One without pieces only says that its sender is alive.
// What completions call them is what they are called for all.
type Part[Piece, Total any] struct {
	Version int     `json:"version"`
	Seq     uint64  `json:"seq"` // from 1, without gaps
	Pieces  []Piece `json:"chunks,omitempty"`
	Total   *Total  `json:"usage,omitempty"` // in the last part
	Fault   *Fault  `json:"fault,omitempty"` // in the last part, when it went wrong
	Done    bool    `json:"done,omitempty"`
}

// What replicas are asked for: continuations, and what is said in a recording.
type (
	Completion        = Ask[engines.CompletionRequest]
	CompletionPart    = Part[engines.Chunk, engines.Usage]
	Transcription     = Ask[engines.Transcription]
	TranscriptionPart = Part[engines.TranscriptEvent, engines.Transcript]
)

// The rules of a stream.
const (
	Window  = 16
	Pulse   = 2 * time.Second
	Silence = 10 * time.Second
	MaxPart = 256 // pieces
	maxPart = MaxMessage / 2
)

// Fit is how many of the pieces go into one part: at least one, at most
// MaxPart. room tells about how many bytes one takes on its way, rather more
// than less.
func Fit[Piece any](pieces []Piece, room func(Piece) int) int {
	size := 0
	for i, piece := range pieces[:min(len(pieces), MaxPart)] {
		if size += room(piece); size > maxPart && i > 0 {
			return i
		}
	}
	return min(len(pieces), MaxPart)
}

// JSON may write a byte of text as six.
const textByte = 6

// RoomOfChunk is a chunk's for Fit.
func RoomOfChunk(c engines.Chunk) int {
	const frame, token = 200, 8
	size := frame + textByte*(len(c.Text)+len(c.Reasoning)+len(c.Raw)) + token*len(c.Tokens)
	for _, call := range c.ToolCalls {
		size += frame + textByte*(len(call.Name)+len(call.Arguments))
	}
	if c.Prompt != nil {
		size += frame + textByte*len(c.Prompt.Text) + token*len(c.Prompt.Tokens)
	}
	return size + roomOfLogprobs(c.Logprobs)
}

func roomOfLogprobs(logprobs []engines.Logprob) int {
	const frame = 160
	size := 0
	for _, one := range logprobs {
		size += frame + textByte*len(one.Text) + 2*len(one.Bytes) + roomOfLogprobs(one.Top)
	}
	return size
}

// RoomOfListened is a step of listening's for Fit.
func RoomOfListened(l engines.TranscriptEvent) int {
	const frame, word, token = 320, 160, 8
	if l.Segment == nil {
		return frame
	}
	s := l.Segment
	size := 2*frame + textByte*(len(s.Text)+len(s.Speaker)) + token*len(s.Tokens)
	for _, w := range s.Words {
		size += word + textByte*(len(w.Text)+len(w.Language)+len(w.Speaker))
	}
	return size
}

// Heard says that every part up to Seq has arrived; Stop, that no more is wanted.
type Heard struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	Seq     uint64 `json:"seq"`
	Stop    bool   `json:"stop,omitempty"`
}
