package protocol

import (
	"time"

	"anneal/domain"
	"anneal/engines"
)

// A StreamRequest asks a replica for a streamed response: messages on StreamSubject(node, ID),
// numbered from 1.
//
// At most Window messages are in flight: the receiver acknowledges what has arrived, and chunks
// that are produced meanwhile are batched into the next message. So a slow reader blocks nobody,
// and no message is dropped for lack of buffer space. Both ends send something at least every
// KeepAlive, and give up after StreamTimeout without a message from the other.
type StreamRequest[Request any] struct {
	Version    int         `json:"version"`
	ID         string      `json:"id"`
	Deployment domain.Name `json:"deployment"`
	Replica    string      `json:"replica"`
	Request    Request     `json:"request"`
}

// A StreamMessage is one message of a streamed response. One without chunks is a keep-alive. Its
// JSON names are those of completions for all kinds of streams.
type StreamMessage[Chunk, Total any] struct {
	Version int     `json:"version"`
	Seq     uint64  `json:"seq"` // from 1, without gaps
	Chunks  []Chunk `json:"chunks,omitempty"`
	Total   *Total  `json:"usage,omitempty"` // in the last message
	Error   *Error  `json:"fault,omitempty"` // in the last message of a failed stream
	Done    bool    `json:"done,omitempty"`
}

// Streams of replicas.
type (
	Completion           = StreamRequest[engines.CompletionRequest]
	CompletionMessage    = StreamMessage[engines.Chunk, engines.Usage]
	Transcription        = StreamRequest[engines.TranscriptionRequest]
	TranscriptionMessage = StreamMessage[engines.TranscriptEvent, engines.Transcript]
)

// Limits and timeouts of a stream.
const (
	Window        = 16 // messages
	KeepAlive     = 2 * time.Second
	StreamTimeout = 10 * time.Second
	MaxChunks     = 256 // of a message
	maxChunkBytes = MaxMessage / 2
)

// FitChunks returns how many of the chunks go into one message: at least one, at most MaxChunks.
// sizeOf returns an upper bound of the encoded size of a chunk in bytes.
func FitChunks[Chunk any](chunks []Chunk, sizeOf func(Chunk) int) int {
	size := 0
	for i, chunk := range chunks[:min(len(chunks), MaxChunks)] {
		if size += sizeOf(chunk); size > maxChunkBytes && i > 0 {
			return i
		}
	}
	return min(len(chunks), MaxChunks)
}

// textByte is the maximum number of bytes that JSON takes to encode one byte of text.
const textByte = 6

// SizeOfChunk returns an upper bound of the encoded size of a completion chunk in bytes.
func SizeOfChunk(c engines.Chunk) int {
	const frame, token = 200, 8
	size := frame + textByte*(len(c.Text)+len(c.Reasoning)+len(c.Raw)) + token*len(c.Tokens)
	for _, call := range c.ToolCalls {
		size += frame + textByte*(len(call.Name)+len(call.Arguments))
	}
	if c.Prompt != nil {
		size += frame + textByte*len(c.Prompt.Text) + token*len(c.Prompt.Tokens)
	}
	return size + sizeOfLogprobs(c.Logprobs)
}

func sizeOfLogprobs(logprobs []engines.Logprob) int {
	const frame = 160
	size := 0
	for _, one := range logprobs {
		size += frame + textByte*len(one.Text) + 2*len(one.Bytes) + sizeOfLogprobs(one.Top)
	}
	return size
}

// SizeOfTranscriptEvent returns an upper bound of the encoded size of a transcript event in bytes.
func SizeOfTranscriptEvent(e engines.TranscriptEvent) int {
	const frame, word, token = 320, 160, 8
	if e.Segment == nil {
		return frame
	}
	s := e.Segment
	size := 2*frame + textByte*(len(s.Text)+len(s.Speaker)) + token*len(s.Tokens)
	for _, w := range s.Words {
		size += word + textByte*(len(w.Text)+len(w.Language)+len(w.Speaker))
	}
	return size
}

// A StreamAck acknowledges every message up to Seq; Stop ends the stream.
type StreamAck struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	Seq     uint64 `json:"seq"`
	Stop    bool   `json:"stop,omitempty"`
}
