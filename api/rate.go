package api

import (
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"anneal/domain"
)

// rates count the requests of the accounts that have a quota on them: a token
// bucket each, which holds a minute's requests and fills evenly. They are this
// server's; several servers let through as many times as much.
type rates struct {
	mu      sync.Mutex
	buckets map[string]*bucket // by account
}

type bucket struct {
	*rate.Limiter
	most int64 // requests a minute
}

func newRates() *rates { return &rates{buckets: map[string]*bucket{}} }

// of is the account's bucket for a quota. A bucket of another size begins full.
func (r *rates) of(account string, most int64) *bucket {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.buckets[account]
	if b == nil || b.most != most {
		b = &bucket{rate.NewLimiter(rate.Limit(float64(most)/60), int(most)), most}
		r.buckets[account] = b
	}
	return b
}

// forget lets go of the bucket of an account that has no quota any more.
func (r *rates) forget(account string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.buckets, account)
}

// used is how many requests the account's bucket lacks; 0 when it has none.
func (r *rates) used(account string, now time.Time) int64 {
	r.mu.Lock()
	b := r.buckets[account]
	r.mu.Unlock()
	if b == nil {
		return 0
	}
	return b.most - b.left(now)
}

// left is how many requests the bucket lets through at once.
func (b *bucket) left(now time.Time) int64 {
	return max(0, int64(math.Floor(b.TokensAt(now)+1e-9)))
}

// until is when the bucket will hold so many tokens, if nothing is taken.
func (b *bucket) until(tokens float64, now time.Time) time.Duration {
	if b.most == 0 {
		return time.Minute // never; ask again when the quota may have changed
	}
	lacks := max(0, tokens-b.TokensAt(now))
	return time.Duration(lacks / float64(b.Limit()) * float64(time.Second))
}

// withinRate counts the request against its account's quota, and says in the
// answer's headers how much of it is left.
func (c *call) withinRate() error {
	account := c.caller.account
	most, set := c.snapshot().Quota(account, domain.QuotaRequestsPerMinute)
	if !set || account == domain.System { // what is written in the log must not lock the operator out either
		c.rates.forget(account)
		return nil
	}
	b := c.rates.of(account, most)
	allowed := b.AllowN(c.now, 1)
	header := c.w.Header()
	header.Set("X-Ratelimit-Limit-Requests", strconv.FormatInt(most, 10))
	header.Set("X-Ratelimit-Remaining-Requests", strconv.FormatInt(b.left(c.now), 10))
	header.Set("X-Ratelimit-Reset-Requests", b.until(float64(most), c.now).Round(time.Millisecond).String())
	if allowed {
		return nil
	}
	wait := int(math.Ceil(max(1, b.until(1, c.now).Seconds()-1e-9)))
	header.Set("Retry-After", strconv.Itoa(wait))
	return &domain.Error{Code: domain.ResourceExhausted, Reason: "RATE_LIMITED",
		Message: fmt.Sprintf("accounts/%s may send %d requests a minute (accounts/%s/quotas/%s): send the next one in %d seconds, or ask the operator to raise it", account, most, account, domain.QuotaRequestsPerMinute, wait)}
}
