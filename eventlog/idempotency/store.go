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

// Retention is how long a response is replayed, from the time at which its request first arrived.
const Retention = 24 * time.Hour

// MaxResponse is the maximum size of a stored response in bytes.
const MaxResponse = 512 << 10

const BucketStream = "KV_ANSWERS"

// EnsureBucket creates the bucket ANSWERS if it does not exist. The NATS server removes records
// some time after they have expired; Claim determines exactly when a record expires.
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

// A Store keeps the responses to requests with an idempotency key, so that a repeated request is
// executed once, even when the repetitions reach different servers. A key is the ID of an account,
// a dot, and letters, digits and hyphens.
type Store struct {
	Limit Limit       // limit of each account; set before the first claim
	Space *disk.Space // space on the embedded server's disk, checked before each write; set before the first claim

	records   kv.Store
	kept      accountCounts
	lostUntil time.Time // until this time unknown keys are refused, because their records may have been lost
	lostFile  string
}

// Records returns the key-value store that holds the records.
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

// claimAttempts is how many times Claim tries to store its record. A try fails when a concurrent
// claim stores its record first.
const claimAttempts = 16

// A ClaimState is the outcome of a claim to a key.
type ClaimState int

// Outcomes of a claim. With Fresh and Resumed the caller executes the request and then calls Store
// or Release.
const (
	Fresh      ClaimState = iota // the key is new
	Resumed                      // an earlier claim ended without a response; its request may have been executed
	InProgress                   // another claim holds the key until Lease, or until it stores a response
	Completed                    // Response is the response to the earlier request
	Mismatch                     // the key was used for a different request
)

// A Claim is the result of Store.Claim for a request and its idempotency key.
type Claim struct {
	State    ClaimState
	Seed     []byte    // 32 random bytes, equal for all claims of the key, from which the request derives generated IDs
	Lease    time.Time // when the lease of the claim that holds the key ends
	Response []byte

	key      string
	record   storedClaim
	revision uint64
}

// A storedClaim is the record of a key.
type storedClaim struct {
	Digest []byte    `json:"digest"` // digest of the request that first used the key
	Seed   []byte    `json:"seed"`
	Since  time.Time `json:"since"` // when the key was first claimed
	Lease  time.Time `json:"lease"`
	Answer []byte    `json:"answer,omitempty"`
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
		return domain.Errorf(domain.InvalidArgument, "response has %d bytes: must have 1 to %d", len(answer),
			MaxResponse)
	}
	claim.record.Answer = answer
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

// put stores the record of a claim and returns its new revision. It returns ErrConflict when the
// stored record has another revision than the claim.
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
