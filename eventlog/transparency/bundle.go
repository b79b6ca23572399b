package transparency

import (
	"bytes"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/transparency-dev/formats/proof"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"anneal/domain"
	"anneal/eventlog/integrity"
)

// BundleFormat is the value of Bundle.Format that this version of anneal writes and accepts.
const BundleFormat = "anneal-proof/1"

// A Bundle is a file that proves an event, or that the log has only grown since an earlier size, or
// both. It is one line of JSON.
type Bundle struct {
	Format string `json:"format"`
	// Event is the event that the bundle proves; nil when it proves no event.
	Event *Disclosure `json:"event,omitempty"`
	// Growth proves that the log has only grown: the first step begins at the earlier size, and the
	// last one ends at the size of the checkpoint.
	Growth []Step `json:"growth,omitempty"`
	// Proof is the proof that the log has the event, with the checkpoint, in the format tlog-proof of
	// C2SP. In a bundle without an event it is only the checkpoint.
	Proof string `json:"proof"`
}

// A Disclosure is an event with the salts that show that its Entry commits to it.
type Disclosure struct {
	Position     uint64                `json:"position,string"`
	Subject      string                `json:"subject"`
	Attributes   []integrity.Attribute `json:"attributes"`
	EnvelopeSalt Hash                  `json:"envelopeSalt"`
	// AccountSequence is the number of the event among the events of its account, from 1.
	AccountSequence uint64 `json:"accountSequence,string"`
	// PreviousLeaf is the leaf hash of the account's previous event; zero for the account's first
	// event.
	PreviousLeaf Hash `json:"previousLeaf"`
	// Payload is the data of the event as they are stored; nil when they are not disclosed.
	Payload     *string `json:"payload,omitempty"`
	PayloadSalt *Hash   `json:"payloadSalt,omitempty"`
	// PayloadCommitment is in the bundle instead of the data when they are not disclosed.
	PayloadCommitment *Hash `json:"payloadCommitment,omitempty"`
}

// A Step is a proof that the log at a larger size begins with the events that it had at a smaller
// size.
type Step struct {
	From     uint64 `json:"from,string"`
	FromRoot Hash   `json:"fromRoot"`
	To       uint64 `json:"to,string"`
	ToRoot   Hash   `json:"toRoot"`
	Hashes   []Hash `json:"hashes"`
}

// A Hash is a SHA-256. In JSON it is encoded in base64.
type Hash = tlog.Hash

// Marshal returns the content of the file of a bundle.
func (b Bundle) Marshal() ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(b)
	return out.Bytes(), err
}

// ParseBundle parses the file of a bundle. It accepts only text that Marshal writes, apart from
// white space, so that any changed byte is noticed.
func ParseBundle(data []byte) (b Bundle, err error) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		return b, fmt.Errorf("the file is not a proof bundle: %w", err)
	}
	if err := json.Unmarshal(data, &b); err != nil {
		return b, fmt.Errorf("the file is not a proof bundle: %w", err)
	}
	if b.Format != BundleFormat {
		return b, fmt.Errorf("the proof bundle has the format %q, but this version of anneal reads %s: use the "+
			"version that wrote it", b.Format, BundleFormat)
	}
	written, err := b.Marshal()
	if err == nil && !bytes.Equal(bytes.TrimSpace(written), compact.Bytes()) {
		err = errors.New("the proof bundle was changed or reformatted after anneal wrote it: get it again")
	}
	return b, err
}

// CheckpointSize returns the size of the checkpoint in the bundle, without verifying it.
func (b Bundle) CheckpointSize() (uint64, error) {
	signed := b.Proof
	if b.Event != nil {
		var inclusion proof.TLogProof
		if err := inclusion.Unmarshal([]byte(b.Proof)); err != nil {
			return 0, fmt.Errorf("proof: %w", err)
		}
		signed = string(inclusion.Checkpoint)
	}
	c, err := ParseCheckpoint(signed)
	return c.Size, err
}

// Disclose returns the Disclosure of an event, to which the entry e commits. withPayload says
// whether it includes the data of the event.
func Disclose(m integrity.Message, e Entry, salts Salts, link Link, withPayload bool) (*Disclosure, error) {
	if encodeEvent(m).entry(salts, link) != e {
		return nil, domain.Errorf(domain.DataLoss, "the Merkle tree commits to another event at position %d than the log "+
			"has: the log or the salt keys in the key store were changed. Restore a backup", e.Position)
	}
	d := &Disclosure{Position: e.Position, Subject: m.Subject(), Attributes: m.Attributes(),
		EnvelopeSalt: Hash(salts.Envelope), AccountSequence: link.Sequence, PreviousLeaf: link.Previous}
	if !withPayload {
		sum := Hash(e.Payload)
		d.PayloadCommitment = &sum
		return d, nil
	}
	text, salt := string(m.Body()), Hash(salts.Payload)
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("the data of the event at position %d are not valid UTF-8, so a bundle cannot contain "+
			"them", e.Position)
	}
	d.Payload, d.PayloadSalt = &text, &salt
	return d, nil
}

// Message returns the event, without its data when they are not disclosed.
func (d Disclosure) Message() integrity.Message {
	var body []byte
	if d.Payload != nil {
		body = []byte(*d.Payload)
	}
	return integrity.NewMessage(d.Position, d.Subject, d.Attributes, body)
}

// entry returns the Entry that commits to the disclosed event.
func (d Disclosure) entry() (Entry, error) {
	e := Entry{Position: d.Position}
	switch {
	case d.Position == 0:
		return e, errors.New("event: position must be at least 1")
	case d.Payload != nil && d.PayloadSalt != nil && d.PayloadCommitment == nil:
		e.Payload = CommitPayload(Salt(*d.PayloadSalt), []byte(*d.Payload))
	case d.Payload == nil && d.PayloadSalt == nil && d.PayloadCommitment != nil:
		e.Payload = *d.PayloadCommitment
	default:
		return e, errors.New("the event must have either payload and payloadSalt, or payloadCommitment")
	}
	link := Link{d.AccountSequence, d.PreviousLeaf}
	if (link.Sequence == 1) != (link.Previous == tlog.Hash{}) || link.Sequence == 0 {
		return e, errors.New("previousLeaf must be zero for the first event of an account, and only for the first")
	}
	e.Envelope = CommitEnvelope(Salt(d.EnvelopeSalt), d.Message(), link)
	return e, nil
}

// A Verified is the result of Bundle.Verify: what the bundle proves.
type Verified struct {
	Checkpoint Checkpoint
	Cosigned   int // number of the given witnesses that signed the checkpoint
	Leaf       tlog.Hash
	Event      *Disclosure // event that is proven; nil when the bundle proves none
	// Since is the size since which the log is proven to have only grown. Without such a proof, it is
	// the size of the checkpoint.
	Since     uint64
	SinceRoot tlog.Hash // root hash of the log at the size Since
	Growth    []Step    // proof that the log has only grown since Since; nil if the bundle has none
}

// Verify verifies the bundle with the public key of the log, and returns what it proves. It counts
// only the cosignatures of the given witnesses.
func (b Bundle) Verify(log note.Verifier, witnesses ...note.Verifier) (v Verified, err error) {
	signed, inclusion := []byte(b.Proof), (*proof.TLogProof)(nil)
	if b.Event != nil {
		inclusion = &proof.TLogProof{}
		if err := inclusion.Unmarshal(signed); err != nil {
			return v, fmt.Errorf("proof: %w", err)
		}
		if string(inclusion.Marshal()) != b.Proof || inclusion.ExtraData != nil {
			return v, errors.New("proof: must have the format c2sp.org/tlog-proof@v1")
		}
		signed = inclusion.Checkpoint
	}
	if v.Checkpoint, v.Cosigned, err = OpenCheckpoint(signed, log, witnesses...); err != nil {
		return v, err
	}
	v.Since, v.SinceRoot = v.Checkpoint.Size, v.Checkpoint.Root
	if inclusion != nil {
		if v.Leaf, err = b.Event.verify(*inclusion, v.Checkpoint); err != nil {
			return v, err
		}
		v.Event = b.Event
	}
	if len(b.Growth) > 0 {
		if err := verifySteps(b.Growth, v.Checkpoint); err != nil {
			return v, err
		}
		v.Since, v.SinceRoot, v.Growth = b.Growth[0].From, b.Growth[0].FromRoot, b.Growth
	}
	return v, nil
}

func (d Disclosure) verify(p proof.TLogProof, c Checkpoint) (leaf tlog.Hash, err error) {
	e, err := d.entry()
	if err != nil {
		return leaf, err
	}
	if p.Index != d.Position-1 {
		return leaf, fmt.Errorf("the proof is for the leaf of position %d, but the event's position is %d", p.Index+1,
			d.Position)
	}
	hashes := make(tlog.RecordProof, len(p.Hashes))
	for i, h := range p.Hashes {
		hashes[i] = h
	}
	if p.Index >= c.Size {
		return leaf, fmt.Errorf("the checkpoint covers %d events, but the event's position is %d", c.Size, d.Position)
	}
	leaf = e.Leaf()
	if tlog.CheckRecord(hashes, int64(c.Size), c.Root, int64(p.Index), leaf) != nil {
		return leaf, fmt.Errorf("the log of the checkpoint has another event at position %d: the event or its proof was "+
			"changed", d.Position)
	}
	return leaf, nil
}

func verifySteps(steps []Step, c Checkpoint) error {
	for i, s := range steps {
		if i > 0 && (steps[i-1].To != s.From || steps[i-1].ToRoot != s.FromRoot) {
			return fmt.Errorf("growth: step %d must begin with the size and the root hash "+
				"with which the step before ends", i+1)
		}
		if s.From == 0 || s.From > s.To || s.To > c.Size {
			return fmt.Errorf("growth: step %d is from size %d to %d: sizes must ascend, "+
				"from at least 1 to at most %d", i+1, s.From, s.To, c.Size)
		}
		if s.From == s.To {
			if s.FromRoot != s.ToRoot || len(s.Hashes) > 0 {
				return fmt.Errorf("growth: step %d has two root hashes for size %d: the log was rewritten", i+1, s.From)
			}
			continue
		}
		if tlog.CheckTree(s.Hashes, int64(s.To), s.ToRoot, int64(s.From), s.FromRoot) != nil {
			return fmt.Errorf("growth: the log of %d events does not begin with that of %d: it was rewritten, or the proof was "+
				"changed", s.To, s.From)
		}
	}
	if end := steps[len(steps)-1]; end.To != c.Size || end.ToRoot != c.Root {
		return fmt.Errorf("growth: the last step ends at size %d, but must end at the checkpoint's size %d", end.To, c.Size)
	}
	return nil
}

// A History verifies bundles of consecutive events of one account. It shows that no event is
// missing, swapped or repeated.
type History struct {
	account  string
	sequence uint64
	leaf     tlog.Hash
}

// Add adds the bundle of the account's next event. It returns an error unless the event directly
// follows the event that was added before.
func (h *History) Add(v Verified) error {
	if v.Event == nil {
		return errors.New("the bundle proves no event, so it cannot be part of an account's history")
	}
	d, account := v.Event, string(accountOf([]byte(v.Event.Subject)))
	switch {
	case h.sequence == 0:
	case account != h.account:
		return fmt.Errorf("the event at position %d is of account %s, but the event before is of %s", d.Position, account,
			h.account)
	case d.AccountSequence <= h.sequence:
		return fmt.Errorf("the event at position %d is event %d of the account, but event %d is before it: events are "+
			"swapped or repeated", d.Position, d.AccountSequence, h.sequence)
	case d.AccountSequence > h.sequence+1:
		return fmt.Errorf("the event at position %d is event %d of the account, but event %d is before it: %d events are "+
			"missing", d.Position, d.AccountSequence, h.sequence, d.AccountSequence-h.sequence-1)
	case subtle.ConstantTimeCompare(d.PreviousLeaf[:], h.leaf[:]) == 0:
		return fmt.Errorf("the event at position %d does not follow the event in the bundle before: its previousLeaf is not "+
			"the leaf hash of event %d of the account", d.Position, h.sequence)
	}
	h.account, h.sequence, h.leaf = account, d.AccountSequence, v.Leaf
	return nil
}

// inclusionProof returns the field Proof of a bundle with an event.
func inclusionProof(position uint64, hashes tlog.RecordProof, signed []byte) string {
	p := proof.TLogProof{Index: position - 1, Checkpoint: signed}
	for _, h := range hashes {
		p.Hashes = append(p.Hashes, h)
	}
	return strings.ToValidUTF8(string(p.Marshal()), "")
}
