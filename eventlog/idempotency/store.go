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

// Retention is how long the store keeps a response, and replays it to repetitions of its request.
// It begins when the request first arrives.
const Retention = 24 * time.Hour

// MaxResponse is the maximum size of a stored response in bytes.
const MaxResponse = 512 << 10

const BucketStream = "KV_ANSWERS"

// EnsureBucket creates the JetStream bucket ANSWERS if it does not exist. The NATS server deletes
// expired records with some delay; Claim itself ignores a record as soon as it expires.
func EnsureBucket(ctx context.Context, js jetstream.JetStream, replicas int) error {
	return eventlog.EnsureStream(ctx, js, jetstream.StreamConfig{
		Name:              BucketStream,
		Description:       "Sealed responses to requests with an idempotency key, kept for a day",
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

// A Store keeps the responses to requests with an idempotency key, so that a repeated request is
// executed once, even if its repetitions reach different servers. A stored key is the account's ID,
// a dot and the client's key of letters, digits and hyphens.
type Store struct {
	Limit Limit       // limit of each account; set before the first claim
	Space *disk.Space // free space of the embedded server's disk, checked before each write; set before the first claim

	records   kv.Store
	kept      accountCounts
	lostUntil time.Time // until then unknown keys are refused, because their records may have been lost
	lostFile  string
}

// Records returns the key-value store in which a keeps its records.
func (a *Store) Records() kv.Store { return a.records }

// Open opens a store that keeps its records in the JetStream bucket ANSWERS. It creates the bucket
// if it does not exist.
func Open(ctx context.Context, nc *nats.Conn) (*Store, error) {
	records, err := kv.OpenBucket(ctx, nc, BucketStream, "idempotency keys", EnsureBucket)
	if err != nil {
		return nil, err
	}
	return &Store{Limit: DefaultLimit, records: records}, nil
}

// NewMemory returns a store in memory, for tests.
func NewMemory() *Store {
	return &Store{Limit: DefaultLimit, records: kv.NewMemory()}
}

// claimAttempts is how often Claim tries to store its record. An attempt fails when a concurrent
// claim of the key stores its record first.
const claimAttempts = 16

// A ClaimState is an outcome of Claim: whether the caller must execute its request, or why not.
type ClaimState int

// Outcomes of Claim. After Fresh and Resumed the caller executes the request and then calls Store
// or Release; otherwise it does not execute the request.
const (
	Fresh   ClaimState = iota // no earlier claim has used the key
	Resumed                   // an earlier claim ended without a stored response; its request may have been executed
	// another request with the key is being executed; wait until Lease, or until it stores its
	// response
	InProgress
	Completed // the request was executed before; Response is its response
	Mismatch  // the key was used before for a different request
)

// A Claim is the result of Store.Claim for a request and its idempotency key.
type Claim struct {
	State ClaimState
	// 32 random bytes, the same for every claim of the key; the request derives the IDs that it
	// generates from them
	Seed     []byte
	Lease    time.Time // when the lease of the request that is being executed ends
	Response []byte
	// Position is a position of the log up to which the request has recorded its events. The caller
	// sets it before Store; 0 if it is unknown.
	Position uint64

	key      string
	record   storedClaim
	revision uint64
}

// A storedClaim is what the store keeps for a key.
type storedClaim struct {
	Digest []byte    `json:"digest"` // digest of the request that first used the key
	Seed   []byte    `json:"seed"`
	Since  time.Time `json:"since"` // when the key was first claimed
	Lease  time.Time `json:"lease"`
	Answer []byte    `json:"answer,omitempty"`
	// Position is Claim.Position of the request that stored Answer; 0 in records of earlier versions.
	Position uint64 `json:"position,omitempty"`
}

// Claim claims a key for a request, and returns the outcome in the State of the Claim. digest
// identifies the request. The claim ends when the duration lease has passed, so that a process that
// crashes does not keep the key. The record of the claim is on disk when Claim returns. When the
// account's limit is reached, the error has the reason ReasonFull; when records were lost, it has
// the reason ReasonLost. In either case, the field Lease of the returned Claim is the time after
// which the caller can retry.
func (a *Store) Claim(ctx context.Context, key string, digest []byte, now time.Time, lease time.Duration) (Claim,
	error) {
	for range claimAttempts {
		data, revision, err := a.records.Get(ctx, key)
		if err != nil {
			return Claim{}, err
		}
		var old storedClaim
		if revision > 0 {
			if err := json.Unmarshal(data, &old); err != nil {
				return Claim{}, domain.Errorf(domain.DataLoss, "the stored response of this idempotency key cannot be read: "+
					"check whether the request took effect, then use another key")
			}
		}
		claim := Claim{key: key, revision: revision, record: old, Seed: old.Seed, Lease: old.Lease}
		switch lapsed := revision == 0 || !now.Before(old.Since.Add(Retention)); {
		case revision == 0 && now.Before(a.lostUntil):
			return Claim{Lease: a.lostUntil}, a.recordsLost()
		case lapsed:
			claim.State, claim.Seed = Fresh, make([]byte, 32)
			_, _ = rand.Read(claim.Seed) // crypto/rand.Read never returns an error
			claim.record = storedClaim{Digest: digest, Seed: claim.Seed, Since: now}
			if free, ok := a.kept.reserve(key, now, a.Limit); !ok {
				return Claim{Lease: free}, errFull(key, a.Limit, free)
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
	return Claim{}, domain.Errorf(domain.Aborted, "the idempotency key is claimed by many concurrent requests: try again")
}

// Renew extends the lease of a claim and returns the claim with the new lease, which the caller
// must use from then on. It returns ErrConflict when the lease expired and another claim took the
// key.
func (a *Store) Renew(ctx context.Context, claim Claim, now time.Time, lease time.Duration) (_ Claim, err error) {
	claim.record.Lease = now.Add(lease)
	claim.Lease = claim.record.Lease
	claim.revision, err = a.put(ctx, claim)
	return claim, err
}

// Store stores the response to the request that holds the claim. It returns ErrConflict when the
// lease expired and another claim took the key.
func (a *Store) Store(ctx context.Context, claim Claim, answer []byte) error {
	if len(answer) == 0 || len(answer) > MaxResponse {
		return domain.Errorf(domain.InvalidArgument, "store the response of an idempotency key: it has %d bytes, must "+
			"have 1 to %d", len(answer),
			MaxResponse)
	}
	claim.record.Answer, claim.record.Position = answer, claim.Position
	_, err := a.put(ctx, claim)
	return err
}

// Release ends a claim without a response, so that the same request can be retried immediately.
// Other requests cannot use the key, because the request may have been executed. Release returns
// ErrConflict when the lease expired and another claim took the key.
func (a *Store) Release(ctx context.Context, claim Claim) error {
	claim.record.Lease = claim.record.Since // a time in the past, so that the claim has ended
	_, err := a.put(ctx, claim)
	return err
}

// put stores the record of a claim and returns its new revision. It returns ErrConflict when
// another claim has stored a newer revision.
func (a *Store) put(ctx context.Context, claim Claim) (uint64, error) {
	data, err := json.Marshal(claim.record)
	if err != nil {
		return 0, err
	}
	if err := a.Space.Check(disk.Events, int64(len(data))); err != nil {
		a.kept.release(claim.key)
		return 0, err
	}
	revision, err := a.records.Put(ctx, claim.key, data, claim.revision)
	if err != nil {
		a.kept.release(claim.key)
		return 0, err
	}
	a.kept.note(claim.key, revision, int64(len(data)), claim.record.Since.Add(Retention))
	return revision, nil
}
