package audit

import (
	"net/netip"
	"sync"
	"time"
)

// Rate limits of audit records, so that the records of one client cannot push those of others out
// of the bounded stream.
const (
	burst      = 30          // number of records that one account, address and kind may store at once
	interval   = time.Second // one more record is allowed after each interval
	maxBuckets = 10_000      // maximum number of combinations of account, address and kind that have a bucket of their own
)

// A limitKey selects the token bucket of a record by its account, origin and kind. from is the
// client's network, or for a record of the kind SecretRead the resource that read the secret.
type limitKey struct{ account, from, kind string }

func keyOf(r Record) limitKey {
	if r.Kind == SecretRead {
		return limitKey{r.Account, r.Reader, r.Kind}
	}
	return limitKey{r.Account, network(r.ClientAddress), r.Kind}
}

// network returns an IPv4 address unchanged, and the /64 prefix of an IPv6 address, because one
// client usually has all addresses of a /64.
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

// A bucket is a token bucket: each stored record takes one token, and a token is added after each
// interval.
type bucket struct {
	tokens  float64
	filled  time.Time
	pending Record // newest record for which the bucket had no token
	waiting int    // number of events that pending represents; 0 when no record waits
}

func (b *bucket) fill(now time.Time) {
	if passed := now.Sub(b.filled); passed > 0 {
		b.tokens = min(burst, b.tokens+float64(passed)/float64(interval))
		b.filled = now
	}
}

// limits has the token buckets of a Recorder.
type limits struct {
	mu      sync.Mutex
	buckets map[limitKey]*bucket
}

// admit takes a token and reports true when the record may be stored now. Otherwise the record
// waits in its bucket until flush returns it. A newer record of the same key replaces a waiting
// record; its field Repeated then includes the replaced one.
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

// flush returns the waiting records for which there are tokens now; if all is true, it returns
// every waiting record. It also deletes the buckets that are full again.
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
