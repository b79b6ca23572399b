package protocol

import (
	"time"

	"anneal/domain"
	"anneal/engines"
)

// A StreamRequest is a request to a replica with a streamed response. The messages of the response
// are sent to StreamSubject(node, ID) and numbered from 1.
//
// The reader is the gateway that sent the request. It acknowledges the messages that have arrived.
// At most Window messages are sent without an acknowledgement; further chunks are then collected
// for the next message. So a slow reader does not block others, and no message is dropped because a
// buffer is full. Node and reader each send a message at least every KeepAlive, and end the
// response when they receive none for StreamTimeout.
type StreamRequest[Request any] struct {
	Version    int         `json:"version"`
	ID         string      `json:"id"`
	Deployment domain.Name `json:"deployment"`
	Replica    string      `json:"replica"`
	Request    Request     `json:"request"`
	domain.Trace
}

// A StreamMessage is one message of a streamed response. A message without chunks is a keep-alive.
// All kinds of responses use the JSON names of completions.
type StreamMessage[Chunk, Total any] struct {
	Version int     `json:"version"`
	Seq     uint64  `json:"seq"` // sequence number of the message in the response, from 1 without gaps
	Chunks  []Chunk `json:"chunks,omitempty"`
	Total   *Total  `json:"usage,omitempty"` // usage of the whole request; only in the last message
	Error   *Error  `json:"fault,omitempty"` // why the request failed; only in the last message
	Done    bool    `json:"done,omitempty"`
}

// The requests that replicas serve, by kind, and the messages of their responses.
type (
	Completion           = StreamRequest[engines.CompletionRequest]
	CompletionMessage    = StreamMessage[engines.Chunk, engines.Usage]
	EmbeddingRequest     = StreamRequest[engines.EmbeddingRequest]
	EmbeddingMessage     = StreamMessage[engines.Embedding, engines.Usage]
	Transcription        = StreamRequest[engines.TranscriptionRequest]
	TranscriptionMessage = StreamMessage[engines.TranscriptEvent, engines.Transcript]
)

// StreamUnknown is the reason of the error that a node sends to the reader of a response that it
// does not have, because the agent was restarted or the response has ended.
const StreamUnknown = "STREAM_UNKNOWN"

// Limits and timeouts of a streamed response.
const (
	Window        = 16 // maximum number of messages without an acknowledgement
	KeepAlive     = 2 * time.Second
	StreamTimeout = 10 * time.Second
	MaxChunks     = 256 // maximum number of chunks in a message
	maxChunkBytes = MaxMessage / 2
)

// FitChunks returns how many of the first chunks fit into one message: at most MaxChunks, and at
// least one if there are any. sizeOf returns an upper bound of the encoded length of a chunk in
// bytes.
func FitChunks[Chunk any](chunks []Chunk, sizeOf func(Chunk) int) int {
	size := 0
	for i, chunk := range chunks[:min(len(chunks), MaxChunks)] {
		if size += sizeOf(chunk); size > maxChunkBytes && i > 0 {
			return i
		}
	}
	return min(len(chunks), MaxChunks)
}

// textByte is the maximum number of bytes that JSON needs for one byte of text: 6 for \u00xx.
const textByte = 6

// SizeOfChunk returns an upper bound of the length in bytes of an encoded completion chunk.
func SizeOfChunk(c engines.Chunk) int {
	const frame, token = 200, 8
	size := frame + textByte*(len(c.Text)+len(c.Reasoning)+len(c.Raw)) + token*len(c.Tokens)
	for _, call := range c.ToolCalls {
		size += frame + textByte*(len(call.Name)+len(call.Arguments))
	}
	if c.Prompt != nil {
		size += frame + textByte*(len(c.Prompt.Text)+len(c.Prompt.Grammar)) + token*len(c.Prompt.Tokens)
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

// SizeOfEmbedding returns an upper bound of the length in bytes of an encoded embedding, whose data
// are in base64.
func SizeOfEmbedding(e engines.Embedding) int {
	const frame = 64
	return frame + (len(e.Data)+2)/3*4
}

// SizeOfTranscriptEvent returns an upper bound of the length in bytes of an encoded transcript
// event.
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

// A StreamAck acknowledges every message up to the number Seq. With Stop it also ends the response.
type StreamAck struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	Seq     uint64 `json:"seq"`
	Stop    bool   `json:"stop,omitempty"`
}
