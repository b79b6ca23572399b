package idempotency

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/kv"
)

// AnswersKept is how long an answer is given again: from when its request
// first came.
const Retention = 24 * time.Hour

// MaxAnswer is how many bytes an answer may have to be kept.
const MaxResponse = 512 << 10

const BucketStream = "KV_ANSWERS"

// ensureAnswers makes the bucket ANSWERS. The server forgets what is older
// than any claim can be; when exactly one lapses is for Claim to say.
func EnsureBucket(ctx context.Context, js jetstream.JetStream, replicas int) error {
	return eventlog.EnsureStream(ctx, js, jetstream.StreamConfig{
		Name:              BucketStream,
		Description:       "Sealed answers to requests with an idempotency key, for a day",
		Subjects:          []string{"$KV.ANSWERS.>"},
		Storage:           jetstream.FileStorage,
		Replicas:          max(1, replicas),
		MaxMsgsPerSubject: 1,
		MaxMsgSize:        eventlog.MaxEvent,
		MaxAge:            Retention + time.Hour,
		Discard:           jetstream.DiscardNew,
		AllowRollup:       true,
	}, replicas)
}

// IdempotencyStore keep what was answered to requests whose callers may repeat them,
// so that what a request asks for is done once, whichever servers it reaches.
// A key is the name of its account, a dot, and letters, digits and hyphens.
type Store struct {
	Limit Limit       // of each account; set before anything is asked
	Space *disk.Space // of the embedded server's disk; likewise

	records   kv.Store
	kept      keptCounts
	lostUntil time.Time // until then a key that is not known may be one whose record was lost
	lostFile  string
}

// OpenAnswers keeps answers in the JetStream bucket ANSWERS, made when missing.
func Open(ctx context.Context, nc *nats.Conn) (*Store, error) {
	records, err := kv.OpenBucket(ctx, nc, BucketStream, "answers", EnsureBucket)
	if err != nil {
		return nil, err
	}
	return &Store{Limit: DefaultLimit, records: records}, nil
}

// NewMemoryAnswers forgets everything with the process: for tests.
func NewMemory() *Store {
	return &Store{Limit: DefaultLimit, records: kv.NewMemory()}
}

// claimAttempts is how often Claim tries; each lost race means that another claim was made.
const claimAttempts = 16

// A ClaimState says what became of a claim to a key.
type ClaimState int

// What a claim may be answered with. Who gets Fresh or Resumed does the work,
// and then calls Store or Release.
const (
	Fresh      ClaimState = iota // nobody had the key
	Resumed                      // whoever had it ended without an answer, and may have done the work
	InProgress                   // somebody is at work, until Lease at most
	Completed                    // Answer is what was answered
	Mismatch                     // the key belongs to another request
)

// A Claim is one request's hold on a key.
type Claim struct {
	State    ClaimState
	Seed     []byte    // 32 random bytes, the same for all who work under the key: what they make up is made from it
	Lease    time.Time // of whoever is at work
	Response []byte

	key      string
	record   answerRecord
	revision uint64
}

// An answerRecord is a claim as the bucket has it.
type answerRecord struct {
	Digest []byte    `json:"digest"` // of the request that the key belongs to
	Seed   []byte    `json:"seed"`
	Since  time.Time `json:"since"` // when the key was first claimed
	Lease  time.Time `json:"lease"`
	Answer []byte    `json:"answer,omitempty"`
}

// Claim takes a key for a request with a digest, unless somebody else has it.
// The claim ends with the lease, so that a process which dies does not keep the
// key; it is on disk before it is answered. When the account has no room for
// another key it is refused with ReasonAnswersFull, and Lease is when to ask
// again.
func (a *Store) Claim(ctx context.Context, key string, digest []byte, now time.Time, lease time.Duration) (Claim, error) {
	for range claimAttempts {
		data, revision, err := a.records.Get(ctx, key)
		if err != nil {
			return Claim{}, err
		}
		var old answerRecord
		if revision > 0 {
			if err := json.Unmarshal(data, &old); err != nil {
				return Claim{}, domain.Errorf(domain.DataLoss, "the record of an idempotency key cannot be read: use another key")
			}
		}
		claim := Claim{key: key, revision: revision, record: old, Seed: old.Seed, Lease: old.Lease}
		switch lapsed := revision == 0 || !now.Before(old.Since.Add(Retention)); {
		case revision == 0 && now.Before(a.lostUntil):
			return Claim{Lease: a.lostUntil}, a.recordsLost()
		case lapsed:
			claim.State, claim.Seed = Fresh, make([]byte, 32)
			_, _ = rand.Read(claim.Seed) // never fails
			claim.record = answerRecord{Digest: digest, Seed: claim.Seed, Since: now}
			if free, ok := a.kept.take(key, now, a.Limit); !ok {
				return Claim{Lease: free}, noRoom(key, a.Limit, free)
			}
		case !bytes.Equal(old.Digest, digest):
			claim.State = Mismatch
			return claim, nil
		case old.Answer != nil:
			claim.State, claim.Response = Completed, old.Answer
			return claim, nil
		case now.Before(old.Lease):
			claim.State = InProgress
			return claim, nil
		default:
			claim.State = Resumed
		}
		claim.record.Lease = now.Add(lease)
		claim.Lease = claim.record.Lease
		if claim.revision, err = a.put(ctx, claim); !errors.Is(err, eventlog.ErrConflict) {
			return claim, err
		}
	}
	return Claim{}, domain.Errorf(domain.Aborted, "the idempotency key is claimed by many requests at once: try again")
}

// Renew extends the lease of a claim whose work goes on, and answers the claim
// to go on with. ErrConflict is as with Store.
func (a *Store) Renew(ctx context.Context, claim Claim, now time.Time, lease time.Duration) (_ Claim, err error) {
	claim.record.Lease = now.Add(lease)
	claim.Lease = claim.record.Lease
	claim.revision, err = a.put(ctx, claim)
	return claim, err
}

// Store keeps the answer to the request that holds the claim. ErrConflict says
// that its lease ran out and somebody else took over.
func (a *Store) Store(ctx context.Context, claim Claim, answer []byte) error {
	if len(answer) == 0 || len(answer) > MaxResponse {
		return domain.Errorf(domain.InvalidArgument, "an answer has %d bytes: from 1 to %d are kept", len(answer), MaxResponse)
	}
	claim.record.Answer = answer
	_, err := a.put(ctx, claim)
	return err
}

// Release gives the key back without an answer: the same request may try again
// at once. It still belongs to that request, which may have been carried out.
// ErrConflict is as with Store.
func (a *Store) Release(ctx context.Context, claim Claim) error {
	claim.record.Lease = claim.record.Since // long over
	_, err := a.put(ctx, claim)
	return err
}

// put records the claim over the revision that it was read at, and answers
// its own.
func (a *Store) put(ctx context.Context, claim Claim) (uint64, error) {
	data, err := json.Marshal(claim.record)
	if err != nil {
		return 0, err
	}
	if err := a.Space.Check(disk.Events, int64(len(data))); err != nil {
		a.kept.give(claim.key)
		return 0, err
	}
	revision, err := a.records.Put(ctx, claim.key, data, claim.revision)
	if err != nil {
		a.kept.give(claim.key)
		return 0, err
	}
	a.kept.note(claim.key, revision, int64(len(data)), claim.record.Since.Add(Retention))
	return revision, nil
}
