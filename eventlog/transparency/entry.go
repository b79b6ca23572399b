// Package transparency keeps a Merkle tree (RFC 6962) over the event log. It appends a leaf for
// each event, signs checkpoints, serves tiles, and proves events. Bundles can be verified without
// the log and without a server.
package transparency

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"

	"golang.org/x/mod/sumdb/tlog"

	"anneal/eventlog/integrity"
)

// EntrySize is the length in bytes of an encoded Entry.
const EntrySize = 1 + 8 + 2*sha256.Size

const entryVersion = 1

// An Entry is the content of a leaf of the tree: the leaf hash is the SHA-256 of a zero byte and
// the encoded entry. The entry commits to an event, but reveals nothing of it without the event's
// salts.
//
// The encoding is the version 1 as one byte, the position as a big-endian 64-bit integer, and the
// two commitments. The leaf of position p has the index p-1.
type Entry struct {
	Position uint64
	Envelope [sha256.Size]byte // commitment to the envelope of the event; see CommitEnvelope
	Payload  [sha256.Size]byte // commitment to the data of the event; see CommitPayload
}

// Append appends the encoded entry to b and returns the result.
func (e Entry) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(append(b, entryVersion), e.Position)
	return append(append(b, e.Envelope[:]...), e.Payload[:]...)
}

// Leaf returns the entry's leaf hash in the tree: tlog.RecordHash of the encoded entry. Unlike
// tlog.RecordHash, Leaf does not allocate.
func (e Entry) Leaf() tlog.Hash {
	var b [1 + EntrySize]byte
	return sha256.Sum256(e.Append(b[:1])) // RFC 6962 prefixes a leaf with a zero byte
}

// nodeHash returns what tlog.NodeHash returns, but does not allocate.
func nodeHash(left, right tlog.Hash) tlog.Hash {
	b := [1 + 2*sha256.Size]byte{1} // RFC 6962 prefixes an inner node with 1
	copy(b[1:], left[:])
	copy(b[1+sha256.Size:], right[:])
	return sha256.Sum256(b[:])
}

func decodeEntry(b []byte) (e Entry, ok bool) {
	if len(b) != EntrySize || b[0] != entryVersion {
		return e, false
	}
	e.Position = binary.BigEndian.Uint64(b[1:])
	b = b[9:]
	copy(e.Payload[:], b[copy(e.Envelope[:], b):])
	return e, true
}

// A Link chains an event to the previous event of its account.
type Link struct {
	Sequence uint64    // number of the event among the account's events, from 1
	Previous tlog.Hash // leaf hash of the account's previous event; zero for the first event
}

// A Salt is random data in a commitment. Without the salt, nobody can find the committed content by
// trying guesses.
type Salt [sha256.Size]byte

// Prefixes of the hashed data, which keep the two kinds of commitments apart.
const (
	envelopeLabel = "anneal log envelope 1\n"
	payloadLabel  = "anneal log payload 1\n"
)

// CommitEnvelope returns the SHA-256 of the concatenation of envelopeLabel, the salt, subject and
// attributes of the event in the encoding of integrity.HashChain, the sequence as a big-endian
// 64-bit integer, and the previous leaf hash.
func CommitEnvelope(salt Salt, m integrity.Message, link Link) [sha256.Size]byte {
	var small [1 << 10]byte
	return commitEnvelope(salt, m.AppendEnvelope(small[:0]), link)
}

func commitEnvelope(salt Salt, envelope []byte, link Link) [sha256.Size]byte {
	var small [1 << 10]byte
	b := append(append(small[:0], envelopeLabel...), salt[:]...)
	b = binary.BigEndian.AppendUint64(append(b, envelope...), link.Sequence)
	return sha256.Sum256(append(b, link.Previous[:]...))
}

// CommitPayload returns the SHA-256 of the concatenation of payloadLabel, the salt and the data of
// the event.
func CommitPayload(salt Salt, body []byte) (sum [sha256.Size]byte) {
	var small [1 << 10]byte
	b := append(append(small[:0], payloadLabel...), salt[:]...)
	if len(b)+len(body) <= cap(b) {
		return sha256.Sum256(append(b, body...))
	}
	h := sha256.New()
	h.Write(b)
	h.Write(body)
	h.Sum(sum[:0])
	return sum
}

// An encodedEvent is an event in the form in which an entry commits to it.
type encodedEvent struct {
	position uint64
	envelope []byte // subject and attributes, as integrity.Message.AppendEnvelope encodes them
	body     []byte
}

func encodeEvent(m integrity.Message) encodedEvent {
	return encodedEvent{m.Position(), m.AppendEnvelope(nil), m.Body()}
}

// account returns the account of the event, whose subject is the first part of the envelope.
func (e encodedEvent) account() []byte {
	return accountOf(e.envelope[4:][:binary.BigEndian.Uint32(e.envelope)])
}

// accountOf returns the account that an event's subject names.
func accountOf(subject []byte) []byte {
	_, rest, _ := bytes.Cut(subject, []byte("."))
	account, _, _ := bytes.Cut(rest, []byte("."))
	return account
}

// entry returns the entry that commits to the event.
func (e encodedEvent) entry(salts Salts, link Link) Entry {
	return Entry{Position: e.position, Envelope: commitEnvelope(salts.Envelope, e.envelope, link),
		Payload: CommitPayload(salts.Payload, e.body)}
}

// Salts are the two salts of one event. Disclosing them reveals nothing about other events.
type Salts struct{ Envelope, Payload Salt }

// A salter derives the salts of an account's events from the account's salt key.
type salter struct {
	mu      sync.Mutex
	mac     hash.Hash
	message [9]byte // buffer of salt, which therefore does not allocate
	sum     []byte
}

func newSalter(key []byte) *salter { return &salter{mac: hmac.New(sha256.New, key)} }

// Numbers of the two parts of an event, each of which has its own salt.
const (
	envelopePart = 1
	payloadPart  = 2
)

// salts returns the salts of the event at a position. Each salt is the HMAC-SHA256 of the part's
// number as one byte and the position as a big-endian 64-bit integer.
func (s *salter) salts(position uint64) Salts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Salts{s.salt(position, envelopePart), s.salt(position, payloadPart)}
}

func (s *salter) salt(position uint64, part byte) Salt {
	s.mac.Reset()
	s.message[0] = part
	binary.BigEndian.PutUint64(s.message[1:], position)
	s.mac.Write(s.message[:])
	s.sum = s.mac.Sum(s.sum[:0])
	return Salt(s.sum)
}
