package routing

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"anneal/api/routing/balance"
	"anneal/domain"
	"anneal/projections"
)

// A Note is about a prompt that a gateway sent to a replica. Gateways send one another their notes,
// so that each knows what all of them sent.
type Note struct {
	Deployment domain.Name
	Created    uint64 // CreateVersion of the deployment
	balance.SentPrompt
	// Waiting is the number of requests in the gateway's admission queue; nil in a note about a
	// prompt. Then Replica is the ID of the gateway.
	Waiting *int

	sent time.Time
}

// maxNotes is the maximum number of notes that wait to be taken. Further notes are dropped: they
// only make predictions better.
const maxNotes = 4096

// notes are the notes for the other gateways. The zero value collects none.
type notes struct {
	mu      sync.Mutex
	enabled bool
	waiting []Note
}

func (n *notes) add(note Note, clock func() time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.enabled && len(n.waiting) < maxNotes {
		note.sent = clock()
		n.waiting = append(n.waiting, note)
	}
}

// TakeNotes returns the notes since the last call, with their ages. The first call enables notes.
func (r *Router) TakeNotes(now time.Time) []Note {
	n := &r.balancers.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := n.waiting
	n.enabled, n.waiting = true, nil
	for i := range taken {
		taken[i].Age = now.Sub(taken[i].sent)
	}
	return taken
}

// AddNote records a prompt that another gateway sent. row is the row of the deployment of the note.
// A note about a deleted deployment, or a replica that the row does not have, is ignored.
func (r *Router) AddNote(row *projections.Row[domain.Deployment], n Note, clock func() time.Time) {
	if row.CreateVersion != n.Created {
		return
	}
	if _, ok := row.State.Replicas[n.Replica]; !ok {
		return
	}
	balancer, now := r.balancers.forDeployment(row, clock)
	balancer.Record(now(), n.SentPrompt)
}

// A wireNote is the JSON form of a Note in a message between gateways.
type wireNote struct {
	Deployment domain.Name   `json:"deployment"`
	Created    uint64        `json:"created"`
	Replica    string        `json:"replica"`
	Uncached   int64         `json:"uncached"`
	Blocks     []byte        `json:"blocks"` // the hashes as 8 bytes each, little-endian
	Age        time.Duration `json:"age"`    // in nanoseconds
	Addon      string        `json:"addon,omitempty"`
	Waiting    *int          `json:"waiting,omitempty"`
}

// Limits of a message between gateways.
const (
	maxMessageNotes  = 64
	maxMessageBlocks = 256 // of one note: the first 131,072 tokens of a prompt
)

// EncodeNotes returns the messages to other gateways that have the notes.
func EncodeNotes(notes []Note) (messages [][]byte) {
	for len(notes) > 0 {
		n := min(len(notes), maxMessageNotes)
		wire := make([]wireNote, n)
		for i, note := range notes[:n] {
			blocks := []byte{}
			for _, hash := range note.Blocks[:min(len(note.Blocks), maxMessageBlocks)] {
				blocks = binary.LittleEndian.AppendUint64(blocks, hash)
			}
			wire[i] = wireNote{note.Deployment, note.Created, note.Replica, note.Uncached, blocks, note.Age,
				note.Addon, note.Waiting}
		}
		message, _ := json.Marshal(wire) // such values can always be marshaled
		messages, notes = append(messages, message), notes[n:]
	}
	return messages
}

// DecodeNotes returns the notes in a message of another gateway. It returns an error for a message
// that EncodeNotes cannot have made.
func DecodeNotes(message []byte) ([]Note, error) {
	var wire []wireNote
	if err := json.Unmarshal(message, &wire); err != nil {
		return nil, fmt.Errorf("decode the message of another gateway: %w", err)
	}
	out := make([]Note, 0, len(wire))
	for _, w := range wire {
		if w.Waiting != nil && *w.Waiting < 0 {
			return nil, fmt.Errorf("the message of another gateway has a queue of %d requests", *w.Waiting)
		}
		if w.Uncached < 0 || w.Age < 0 || len(w.Blocks)%8 != 0 || len(w.Blocks) > 8*maxMessageBlocks {
			return nil, fmt.Errorf("the message of another gateway has a note with %d uncached tokens, an age of %v and %d "+
				"bytes of blocks", w.Uncached, w.Age, len(w.Blocks))
		}
		note := Note{Deployment: w.Deployment, Created: w.Created, Waiting: w.Waiting,
			SentPrompt: balance.SentPrompt{Replica: w.Replica, Uncached: w.Uncached, Age: w.Age, Addon: w.Addon}}
		for at := 0; at < len(w.Blocks); at += 8 {
			note.Blocks = append(note.Blocks, binary.LittleEndian.Uint64(w.Blocks[at:]))
		}
		out = append(out, note)
	}
	return out, nil
}

// A QueueLength is the number of requests in the admission queue of a deployment.
type QueueLength struct {
	Deployment domain.Name
	Waiting    int
}

// emptyReports is how often an empty queue is reported after requests have waited.
const emptyReports = 10

// QueueLengths returns the lengths of this gateway's admission queues, and notes them for the other
// gateways. It returns empty queues only for a while after requests have waited. id is the ID of
// this gateway.
func (r *Router) QueueLengths(id string) (out []QueueLength) {
	for _, found := range r.balancers.all() {
		q := found.queue
		q.mu.Lock()
		waiting := len(q.waiting)
		if waiting > 0 {
			q.reports = emptyReports + 1
		}
		report := q.reports > 0
		q.reports = max(0, q.reports-1)
		q.mu.Unlock()
		if !report {
			continue
		}
		out = append(out, QueueLength{q.deployment, waiting})
		r.balancers.notes.add(Note{Deployment: q.deployment, Created: q.created, Waiting: &waiting,
			SentPrompt: balance.SentPrompt{Replica: id}}, time.Now)
	}
	return out
}
