// Package transparency keeps a Merkle tree (RFC 6962) over the event log. It appends a leaf for
// each event, signs checkpoints, serves tiles, and proves events. Bundles can be verified without
// the log and without a server.
package transparency

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"

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

// Leaf returns the entry's leaf hash in the tree.
func (e Entry) Leaf() tlog.Hash {
	var b [EntrySize]byte
	return tlog.RecordHash(e.Append(b[:0]))
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
	b := append(append(small[:0], envelopeLabel...), salt[:]...)
	b = binary.BigEndian.AppendUint64(m.AppendEnvelope(b), link.Sequence)
	return sha256.Sum256(append(b, link.Previous[:]...))
}

// CommitPayload returns the SHA-256 of the concatenation of payloadLabel, the salt and the data of
// the event.
func CommitPayload(salt Salt, body []byte) (sum [sha256.Size]byte) {
	var small [4 << 10]byte
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

// Salts are the two salts of one event. Disclosing them reveals nothing about other events.
type Salts struct{ Envelope, Payload Salt }

// A salter derives the salts of an account's events from the account's salt key.
type salter struct{ mac hash.Hash }

func newSalter(key []byte) salter { return salter{hmac.New(sha256.New, key)} }

// Numbers of the two parts of an event, each of which has its own salt.
const (
	envelopePart = 1
	payloadPart  = 2
)

// salts returns the salts of the event at a position. Each salt is the HMAC-SHA256 of the part's
// number as one byte and the position as a big-endian 64-bit integer.
func (s salter) salts(position uint64) Salts {
	return Salts{s.salt(position, envelopePart), s.salt(position, payloadPart)}
}

func (s salter) salt(position uint64, part byte) (salt Salt) {
	s.mac.Reset()
	var b [9]byte
	b[0] = part
	binary.BigEndian.PutUint64(b[1:], position)
	s.mac.Write(b[:])
	s.mac.Sum(salt[:0])
	return salt
}
