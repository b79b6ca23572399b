package audit

import (
	"net/netip"
	"sync"
	"time"
)

// Limits of records, so that one client cannot replace the records of others.
const (
	burst      = 30          // records at once of one account, address and kind
	interval   = time.Second // time until a further record is allowed
	maxBuckets = 10_000      // accounts, addresses and kinds that are limited separately
)

// A limitKey selects the bucket of a record. For SecretRead, from is the reader instead of the
// address.
type limitKey struct{ account, from, kind string }

func keyOf(r Record) limitKey {
	if r.Kind == SecretRead {
		return limitKey{r.Account, r.Reader, r.Kind}
	}
	return limitKey{r.Account, network(r.ClientAddress), r.Kind}
}

// network returns an IPv4 address, or the /64 of an IPv6 address: one client has all of its
// addresses.
func network(address string) string {
	parsed, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	parsed = parsed.Unmap().WithZone("")
	if prefix, err := parsed.Prefix(64); parsed.Is6() && err == nil {
		return prefix.String()
	}
	return parsed.String()
}

// A bucket has one token for each record that may be stored now.
type bucket struct {
	tokens  float64
	filled  time.Time
	pending Record // newest record that waits for a token
	waiting int    // events that pending represents; 0 for none
}

func (b *bucket) fill(now time.Time) {
	if passed := now.Sub(b.filled); passed > 0 {
		b.tokens = min(burst, b.tokens+float64(passed)/float64(interval))
		b.filled = now
	}
}

// limits are the buckets of a recorder.
type limits struct {
	mu      sync.Mutex
	buckets map[limitKey]*bucket
}

// admit reports whether a record may be stored now. Otherwise flush returns it later, or a newer one
// that also represents it.
func (l *limits) admit(r Record, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := keyOf(r)
	b := l.buckets[key]
	if b == nil && len(l.buckets) >= maxBuckets {
		key.from = "others"
		b = l.buckets[key]
	}
	if b == nil {
		b = &bucket{tokens: burst, filled: now}
		l.buckets[key] = b
	}
	b.fill(now)
	if b.waiting == 0 && b.tokens >= 1 {
		b.tokens--
		return true
	}
	b.pending = r
	b.waiting += r.events()
	return false
}

// flush returns the records that waited and may be stored now, or all with all, and forgets buckets
// that are full.
func (l *limits) flush(now time.Time, all bool) (due []Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, b := range l.buckets {
		b.fill(now)
		switch {
		case b.waiting > 0 && (all || b.tokens >= 1):
			b.tokens = max(0, b.tokens-1)
			if b.waiting > 1 {
				b.pending.Repeated = b.waiting
			}
			due = append(due, b.pending)
			b.pending, b.waiting = Record{}, 0
		case b.waiting == 0 && b.tokens >= burst:
			delete(l.buckets, key)
		}
	}
	return due
}
