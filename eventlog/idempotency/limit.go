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

// AnswerLimit bounds the answers that are kept of one account at a time.
type Limit struct {
	Count int
	Bytes int64 // once so many are kept no further key is taken; those at work may still answer
}

// DefaultAnswerLimit is the limit of Answers whose opener sets no other.
var DefaultLimit = Limit{Count: 50_000, Bytes: 256 << 20}

// ReasonAnswersFull is why a claim is refused for want of room.
const ReasonFull = "TOO_MANY_IDEMPOTENCY_KEYS"

// keptCounts counts what is kept of each account: what this process keeps at once,
// what others keep when it hears of it.
type keptCounts struct {
	mu       sync.Mutex
	accounts map[string]*keptCount
}

type keptCount struct {
	answers map[string]keptAnswer // by key
	bytes   int64
	soonest time.Time // before this nothing lapses, as far as was looked
}

type keptAnswer struct {
	revision uint64 // 0 while it is not in the store
	bytes    int64
	ends     time.Time
}

// of is the count of a key's account.
func (k *keptCounts) of(key string) *keptCount {
	account, _, _ := strings.Cut(key, ".")
	if k.accounts == nil {
		k.accounts = map[string]*keptCount{}
	}
	if k.accounts[account] == nil {
		k.accounts[account] = &keptCount{answers: map[string]keptAnswer{}}
	}
	return k.accounts[account]
}

// take keeps a place for a key. When there is none it answers when the first
// of those that are taken lapses.
func (k *keptCounts) take(key string, now time.Time, limit Limit) (free time.Time, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := k.of(key)
	if _, has := a.answers[key]; has { // it lapsed, or somebody else just took it
		return free, true
	}
	if a.full(limit) && !now.Before(a.soonest) {
		a.sweep(now)
	}
	if a.full(limit) {
		return a.soonest, false
	}
	a.answers[key] = keptAnswer{ends: now.Add(Retention)}
	return free, true
}

func (a *keptCount) full(limit Limit) bool {
	return len(a.answers) >= limit.Count || a.bytes >= limit.Bytes
}

// sweep forgets what has lapsed, and finds out what lapses next.
func (a *keptCount) sweep(now time.Time) {
	a.soonest = now.Add(Retention)
	for key, one := range a.answers {
		switch {
		case !now.Before(one.ends):
			a.bytes -= one.bytes
			delete(a.answers, key)
		case one.ends.Before(a.soonest):
			a.soonest = one.ends
		}
	}
}

// give takes back the place of a key that was not put into the store.
func (k *keptCounts) give(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if a := k.of(key); a.answers[key].revision == 0 {
		delete(a.answers, key)
	}
}

// note counts what the store holds under a key since a revision.
func (k *keptCounts) note(key string, revision uint64, bytes int64, ends time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := k.of(key)
	if old := a.answers[key]; old.revision < revision {
		a.answers[key] = keptAnswer{revision, bytes, ends}
		a.bytes += bytes - old.bytes
	}
}

// noRoom refuses a key until some other lapses.
func noRoom(key string, limit Limit, free time.Time) error {
	account, _, _ := strings.Cut(key, ".")
	return &domain.Error{Code: domain.ResourceExhausted, Reason: ReasonFull,
		Message: fmt.Sprintf("accounts/%s has as many answers kept for its idempotency keys as there may be (%d, or %d bytes), each for %d hours: nothing was done; ask again after %s, or without an idempotency key",
			account, limit.Count, limit.Bytes, int(Retention.Hours()), free.UTC().Format(time.RFC3339))}
}

// Follow counts what the store holds and what other servers put there, until
// ctx is done. Until it has read what there is, less is counted.
func (a *Store) Follow(ctx context.Context) error {
	stored, ok := a.records.(*kv.Bucket)
	if !ok { // in memory, where no other server is
		<-ctx.Done()
		return ctx.Err()
	}
	return stored.Follow(ctx, func(key string, revision uint64, size int64, at time.Time) {
		a.kept.note(key, revision, size, at.Add(Retention))
	})
}
