package protocol

import (
	"time"

	"anneal/domain"
	"anneal/engines"
)

// A StreamRequest requests a streamed response of a replica. The messages of the response are sent
// to StreamSubject(node, ID) and numbered from 1.
//
// At most Window messages are in flight. The reader acknowledges the messages that have arrived.
// While the window is full, chunks are batched into the next message. So a slow reader blocks no
// other reader, and no message is dropped for lack of buffer space. The node and the reader each
// send a message at least every KeepAlive, and end the stream when they have received no message
// for StreamTimeout.
type StreamRequest[Request any] struct {
	Version    int         `json:"version"`
	ID         string      `json:"id"`
	Deployment domain.Name `json:"deployment"`
	Replica    string      `json:"replica"`
	Request    Request     `json:"request"`
	domain.Trace
}

// A StreamMessage is one message of a streamed response. A message without chunks is a keep-alive.
// The JSON names are those of completions, also for other streams.
type StreamMessage[Chunk, Total any] struct {
	Version int     `json:"version"`
	Seq     uint64  `json:"seq"` // number of the message, from 1 without gaps
	Chunks  []Chunk `json:"chunks,omitempty"`
	Total   *Total  `json:"usage,omitempty"` // set in the last message
	Error   *Error  `json:"fault,omitempty"` // set in the last message of a failed stream
	Done    bool    `json:"done,omitempty"`
}

// Requests and response messages of the services of replicas.
type (
	Completion           = StreamRequest[engines.CompletionRequest]
	CompletionMessage    = StreamMessage[engines.Chunk, engines.Usage]
	EmbeddingRequest     = StreamRequest[engines.EmbeddingRequest]
	EmbeddingMessage     = StreamMessage[engines.Embedding, engines.Usage]
	Transcription        = StreamRequest[engines.TranscriptionRequest]
	TranscriptionMessage = StreamMessage[engines.TranscriptEvent, engines.Transcript]
)

// StreamUnknown is the reason of the error that a node sends to the reader of a stream that the
// node does not have, because the agent was restarted or has ended the stream.
const StreamUnknown = "STREAM_UNKNOWN"

// Limits and timeouts of a stream.
const (
	Window        = 16 // messages in flight
	KeepAlive     = 2 * time.Second
	StreamTimeout = 10 * time.Second
	MaxChunks     = 256 // per message
	maxChunkBytes = MaxMessage / 2
)

// FitChunks returns how many of the chunks fit into one message: at most MaxChunks, and at least
// one if there are any. sizeOf returns an upper bound of the encoded size of a chunk in bytes.
func FitChunks[Chunk any](chunks []Chunk, sizeOf func(Chunk) int) int {
	size := 0
	for i, chunk := range chunks[:min(len(chunks), MaxChunks)] {
		if size += sizeOf(chunk); size > maxChunkBytes && i > 0 {
			return i
		}
	}
	return min(len(chunks), MaxChunks)
}

// textByte is the maximum size, in bytes, of the JSON encoding of one byte of text: \u00xx.
const textByte = 6

// SizeOfChunk returns an upper bound of the encoded size of a completion chunk in bytes.
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

// SizeOfEmbedding returns an upper bound of the encoded size of an embedding in bytes: its data are
// encoded in Base64.
func SizeOfEmbedding(e engines.Embedding) int {
	const frame = 64
	return frame + (len(e.Data)+2)/3*4
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

// A StreamAck acknowledges every message up to number Seq. If Stop is set, the StreamAck also ends
// the stream.
type StreamAck struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	Seq     uint64 `json:"seq"`
	Stop    bool   `json:"stop,omitempty"`
}
