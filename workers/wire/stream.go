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
)

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
