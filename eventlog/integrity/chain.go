package integrity

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"anneal/domain"
)

// A Hash is a running hash of the log: see Chain.
type Hash [sha256.Size]byte

func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// A Chain is the running hash of all events up to a position. Two logs with
// the same hash at a position hold the same events up to there, in the same
// order; whoever reads the log or its mirror can compute it.
//
// The hash at position 0 is 32 zero bytes. The hash at position p is the
// SHA-256 of, one after another:
//
//   - the hash at position p-1, 32 bytes
//   - p as a big-endian 64-bit integer
//   - the subject
//   - the number of attributes as a big-endian 32-bit integer
//   - each attribute's name, then its value
//   - the body
//
// The attributes are the message's headers that are named content-type or
// begin with "ce-", in the order of their names' bytes; a header with several
// values counts once for each, in their order. Names and values are as stored
// (values percent-encoded), without white space around them. Subject, names,
// values and body are each preceded by their length in bytes as a big-endian
// 32-bit integer. Headers that belong to NATS (Nats-Msg-Id and the like) do
// not count: a mirror may lack them.
type HashChain struct {
	Checkpoint      // of the newest event in it
	Before     Hash // at the position before
	Hash       Hash // at the position
}

// Attributes of an event that the hash chain knows by name, and the stream of the log.
const (
	attributeID          = "ce-id"
	attributeContentType = "content-type"

	logStream = "EVENTS"
)

// A stored event is one as the server keeps it.
type Message struct {
	position uint64
	subject  string
	header   []attribute
	body     []byte
}

type attribute struct{ name, value string }

// extend adds the next event. It refuses any but the next.
func (c *HashChain) Extend(e Message) error {
	if e.position != c.Position+1 {
		return GapError(c.Position+1, e.position)
	}
	c.Before = c.Hash
	c.Hash = c.Before.next(e)
	c.Position, c.EventID = e.position, e.id()
	return nil
}

// next is the hash at an event's position, given the one before it.
func (h Hash) next(e Message) Hash {
	var small [4 << 10]byte
	b := append(small[:0], h[:]...)
	b = binary.BigEndian.AppendUint64(b, e.position)
	b = appendCounted(b, e.subject)
	b = binary.BigEndian.AppendUint32(b, uint32(len(e.header)))
	for _, a := range e.header {
		b = appendCounted(appendCounted(b, a.name), a.value)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(e.body)))
	if len(b)+len(e.body) <= cap(b) {
		return sha256.Sum256(append(b, e.body...))
	}
	sum := sha256.New()
	sum.Write(b)
	sum.Write(e.body)
	sum.Sum(h[:0])
	return h
}

func appendCounted(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

func (e Message) id() string {
	for _, a := range e.header {
		if a.name == attributeID {
			return a.value[:min(len(a.value), maxMarkID)]
		}
	}
	return ""
}

// counts tells whether a header is an attribute of the event.
func IsAttribute(name string) bool {
	return strings.HasPrefix(name, "ce-") || name == attributeContentType
}

func sortAttributes(all []attribute) []attribute {
	slices.SortStableFunc(all, func(a, b attribute) int { return strings.Compare(a.name, b.name) })
	return all
}

// storedOf is a message that a consumer delivered, as the server keeps it.
func MessageOf(position uint64, subject string, header nats.Header, body []byte) Message {
	e := Message{position: position, subject: subject, body: body, header: make([]attribute, 0, 16)}
	for name, values := range header {
		if IsAttribute(name) {
			for _, value := range values {
				e.header = append(e.header, attribute{name, strings.TrimSpace(value)})
			}
		}
	}
	sortAttributes(e.header)
	return e
}

// attributesOf reads the attributes out of a header as NATS writes one. False
// means that it is none.
func attributesOf(header []byte) ([]attribute, bool) {
	const status, end = "NATS/1.0\r\n", "\r\n\r\n"
	rest, ok := bytes.CutPrefix(header, []byte(status))
	if !ok || bytes.Index(header, []byte(end)) != len(header)-len(end) {
		return nil, false
	}
	all := make([]attribute, 0, 16)
	for line := range strings.SplitSeq(strings.TrimSuffix(string(rest), end), "\r\n") {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return nil, false
		}
		if IsAttribute(name) {
			all = append(all, attribute{name, strings.TrimSpace(value)})
		}
	}
	return sortAttributes(all), true
}

// missing is the fault of a log that has one position after another that is
// not the one before.
func GapError(want, got uint64) error {
	f := domain.Errorf(domain.DataLoss, "gap in the event log: found position %d where %d must follow, so events are missing or damaged. "+
		"Stop the server and run 'anneal log repair --data DIR'", got, want)
	f.Reason = ReasonDamaged
	return f
}

// A Checkpoint names a place in the log. Positions are used again after a
// power failure that lost events, so the event's ID belongs to it.
type Checkpoint struct {
	Position uint64 `json:"position"`
	EventID  string `json:"eventId"`
}
