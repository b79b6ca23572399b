package idempotency

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"anneal/domain"
	"anneal/eventlog/kv"
)

// Limit is the maximum number and total size of the responses that are stored for one account.
type Limit struct {
	Count int
	// when the responses of an account have this total size in bytes, its new keys are refused;
	// requests in progress still store their responses
	Bytes int64
}

// DefaultLimit is the Limit of a store when the caller sets none.
var DefaultLimit = Limit{Count: 50_000, Bytes: 256 << 20}

// ReasonFull is the reason of a claim that is refused because the account's limit is reached.
const ReasonFull = "TOO_MANY_IDEMPOTENCY_KEYS"

// accountCounts counts the stored keys and bytes of each account. The counts include this process's
// own claims immediately, and those of other processes once the watch of the JetStream bucket
// reports them.
type accountCounts struct {
	mu       sync.Mutex
	accounts map[string]*accountCount
}

type accountCount struct {
	responses  map[string]keptResponse // the account's stored responses by idempotency key
	bytes      int64
	nextExpiry time.Time // no key of the account expires before this time
}

type keptResponse struct {
	revision uint64 // revision of the stored record; 0 until the record is stored
	bytes    int64
	ends     time.Time
}

// of returns the counts of the account to which an idempotency key belongs. The caller holds the
// lock.
func (k *accountCounts) of(key string) *accountCount {
	account, _, _ := strings.Cut(key, ".")
	if k.accounts == nil {
		k.accounts = map[string]*accountCount{}
	}
	if k.accounts[account] == nil {
		k.accounts[account] = &accountCount{responses: map[string]keptResponse{}}
	}
	return k.accounts[account]
}

// reserve counts a key before its record is stored. When the account has reached its limit, ok is
// false, and free is the time at which the account's next key expires.
func (k *accountCounts) reserve(key string, now time.Time, limit Limit) (free time.Time, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := k.of(key)
	if _, has := a.responses[key]; has { // the key is stored but expired, or a concurrent claim has just reserved it
		return free, true
	}
	if a.full(limit) && !now.Before(a.nextExpiry) {
		a.sweep(now)
	}
	if a.full(limit) {
		return a.nextExpiry, false
	}
	a.responses[key] = keptResponse{ends: now.Add(Retention)}
	return free, true
}

func (a *accountCount) full(limit Limit) bool {
	return len(a.responses) >= limit.Count || a.bytes >= limit.Bytes
}

// sweep removes expired keys from the counts and sets nextExpiry.
func (a *accountCount) sweep(now time.Time) {
	a.nextExpiry = now.Add(Retention)
	for key, one := range a.responses {
		switch {
		case !now.Before(one.ends):
			a.bytes -= one.bytes
			delete(a.responses, key)
		case one.ends.Before(a.nextExpiry):
			a.nextExpiry = one.ends
		}
	}
}

// release undoes reserve for a key that was not stored.
func (k *accountCounts) release(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if a := k.of(key); a.responses[key].revision == 0 {
		delete(a.responses, key)
	}
}

// note counts a stored record of a key: its revision, its size in bytes and the time at which it
// expires. It ignores a revision that is not newer than the counted one.
func (k *accountCounts) note(key string, revision uint64, bytes int64, ends time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := k.of(key)
	if old := a.responses[key]; old.revision < revision {
		a.responses[key] = keptResponse{revision, bytes, ends}
		a.bytes += bytes - old.bytes
	}
}

// errFull returns the error for a new key of an account that has reached its limit. free is the
// time at which the account's next key expires.
func errFull(key string, limit Limit, free time.Time) error {
	account, _, _ := strings.Cut(key, ".")
	return &domain.Error{Code: domain.ResourceExhausted, Reason: ReasonFull,
		Message: fmt.Sprintf("account %s has reached the limit of stored idempotency keys (%d responses or %d "+
			"bytes, each kept for %d hours): nothing was done; retry after %s, or without an idempotency key",
			account, limit.Count, limit.Bytes, int(Retention.Hours()), free.UTC().Format(time.RFC3339))}
}

// Follow keeps the counts up to date with the records that this server and others store, until ctx
// is done. The counts are too low until Follow has read the existing records.
func (a *Store) Follow(ctx context.Context) error {
	stored, ok := a.records.(*kv.Bucket)
	if !ok { // only a JetStream bucket is shared with other servers
		<-ctx.Done()
		return ctx.Err()
	}
	return stored.Follow(ctx, func(key string, revision uint64, size int64, at time.Time) {
		a.kept.note(key, revision, size, at.Add(Retention))
	})
}
