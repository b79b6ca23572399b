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

// A Hash is the value of a HashChain at one position of the log.
type Hash [sha256.Size]byte

func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// A HashChain is the running hash of all events up to a position. Two logs with the same hash at a
// position hold the same events up to that position, in the same order. Any reader of the log or
// its mirror can compute it.
//
// The hash at position 0 is 32 zero bytes. The hash at position p is the
// SHA-256 of the concatenation of:
//
//   - the hash at position p-1, 32 bytes
//   - p as a big-endian 64-bit integer
//   - the subject
//   - the number of attributes as a big-endian 32-bit integer
//   - each attribute's name, then its value
//   - the body
//
// The attributes are the message's headers named content-type or with the prefix "ce-", in byte
// order of their names; a header with several values counts once for each, in their order. Names
// and values are as stored (values percent-encoded), without surrounding white space. Subject,
// names, values and body are each preceded by their length in bytes as a big-endian 32-bit integer.
// Headers of NATS (Nats-Msg-Id and the like) are excluded: a mirror may lack them.
type HashChain struct {
	Checkpoint      // position and ID of the newest event that the hash includes
	Before     Hash // hash at the position before, Position-1
	Hash       Hash // hash at Position
}

// Names that the hash chain needs: attributeID is the header with an event's ID,
// attributeContentType the only attribute without the prefix "ce-", and logStream the JetStream
// stream of the log.
const (
	attributeID          = "ce-id"
	attributeContentType = "content-type"

	logStream = "EVENTS"
)

// A Message is an event in the form in which the NATS server stores it.
type Message struct {
	position uint64
	subject  string
	header   []Attribute
	body     []byte
}

// An Attribute is a header of an event that HashChain includes: a name and a value.
type Attribute struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// NewMessage returns a Message. attributes must be in the order that HashChain defines.
func NewMessage(position uint64, subject string, attributes []Attribute, body []byte) Message {
	return Message{position: position, subject: subject, header: attributes, body: body}
}

// Position returns the position of the event.
func (e Message) Position() uint64 { return e.position }

// Subject returns the subject of the event.
func (e Message) Subject() string { return e.subject }

// Attributes returns the event's attributes in the order that HashChain defines. Callers must not
// change them.
func (e Message) Attributes() []Attribute { return e.header }

// Body returns the data of the event. Callers must not change it.
func (e Message) Body() []byte { return e.body }

// AppendEnvelope appends the event's subject and attributes to b, encoded as in HashChain, and
// returns the result.
func (e Message) AppendEnvelope(b []byte) []byte {
	b = appendCounted(b, e.subject)
	b = binary.BigEndian.AppendUint32(b, uint32(len(e.header)))
	for _, a := range e.header {
		b = appendCounted(appendCounted(b, a.Name), a.Value)
	}
	return b
}

// Extend adds the next event to the hash chain. It returns an error unless the event's position is
// c.Position+1.
func (c *HashChain) Extend(e Message) error {
	if e.position != c.Position+1 {
		return GapError(c.Position+1, e.position)
	}
	c.Before = c.Hash
	c.Hash = c.Before.next(e)
	c.Position, c.EventID = e.position, e.id()
	return nil
}

// next returns the hash at the position of e. h is the hash at the position before.
func (h Hash) next(e Message) Hash {
	var small [4 << 10]byte
	b := append(small[:0], h[:]...)
	b = binary.BigEndian.AppendUint64(b, e.position)
	b = e.AppendEnvelope(b)
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
		if a.Name == attributeID {
			return a.Value[:min(len(a.Value), maxMarkID)]
		}
	}
	return ""
}

// IsAttribute reports whether HashChain includes the header with this name.
func IsAttribute(name string) bool {
	return strings.HasPrefix(name, "ce-") || name == attributeContentType
}

func sortAttributes(all []Attribute) []Attribute {
	slices.SortStableFunc(all, func(a, b Attribute) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// MessageOf returns the Message of an event that a NATS consumer delivered.
func MessageOf(position uint64, subject string, header nats.Header, body []byte) (e Message) {
	e.Set(position, subject, header, body)
	return e
}

// Set makes e the Message of an event that a NATS consumer delivered. It reuses the memory of the
// attributes that e had.
func (e *Message) Set(position uint64, subject string, header nats.Header, body []byte) {
	if cap(e.header) == 0 {
		e.header = make([]Attribute, 0, 16)
	}
	*e = Message{position: position, subject: subject, body: body, header: e.header[:0]}
	for name, values := range header {
		if IsAttribute(name) {
			for _, value := range values {
				e.header = append(e.header, Attribute{name, strings.TrimSpace(value)})
			}
		}
	}
	sortAttributes(e.header)
}

// attributesOf returns the attributes in an encoded NATS header, in the order that HashChain
// defines. ok is false when the header is invalid.
func attributesOf(header []byte) ([]Attribute, bool) {
	const status, end = "NATS/1.0\r\n", "\r\n\r\n"
	rest, ok := bytes.CutPrefix(header, []byte(status))
	if !ok || bytes.Index(header, []byte(end)) != len(header)-len(end) {
		return nil, false
	}
	all := make([]Attribute, 0, 16)
	for line := range strings.SplitSeq(strings.TrimSuffix(string(rest), end), "\r\n") {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return nil, false
		}
		if IsAttribute(name) {
			all = append(all, Attribute{name, strings.TrimSpace(value)})
		}
	}
	return sortAttributes(all), true
}

// GapError returns the DataLoss error for a log in which position got was found where position want
// must follow.
func GapError(want, got uint64) error {
	f := domain.Errorf(domain.DataLoss,
		"gap in the event log: found position %d where %d must follow, so events are missing or damaged. "+
			"Stop the server and run 'anneal log repair --data DIR'", got, want)
	f.Reason = ReasonDamaged
	return f
}

// A Checkpoint identifies an event of the log by its position and its ID. The position is not
// enough, because a log that lost its newest events assigns their positions to other events.
type Checkpoint struct {
	Position uint64 `json:"position"`
	EventID  string `json:"eventId"`
}
