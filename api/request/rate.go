package request

import (
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"anneal/domain"
)

// rates hold a token bucket for each account with a quota on requests, which holds the requests of a
// minute. Each server counts for itself: several servers together admit a multiple.
type rates struct {
	mu      sync.Mutex
	buckets map[string]*bucket // by account
}

type bucket struct {
	*rate.Limiter
	most int64 // requests a minute
}

func newRates() *rates { return &rates{buckets: map[string]*bucket{}} }

// of returns the account's bucket for a quota. A bucket of another size begins full.
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

// forget deletes the bucket of an account without a quota.
func (r *rates) forget(account string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.buckets, account)
}

// used returns how many requests are taken from the account's bucket; 0 without one.
func (r *rates) used(account string, now time.Time) int64 {
	r.mu.Lock()
	b := r.buckets[account]
	r.mu.Unlock()
	if b == nil {
		return 0
	}
	return b.most - b.left(now)
}

// left returns how many requests the bucket admits now.
func (b *bucket) left(now time.Time) int64 {
	return max(0, int64(math.Floor(b.TokensAt(now)+1e-9)))
}

// until returns how long it takes until the bucket holds so many tokens.
func (b *bucket) until(tokens float64, now time.Time) time.Duration {
	if b.most == 0 {
		return time.Minute // never; ask again when the quota may have changed
	}
	lacks := max(0, tokens-b.TokensAt(now))
	return time.Duration(lacks / float64(b.Limit()) * float64(time.Second))
}

// RequestsUsed returns how much of its quota on requests the account of the path has used.
func (c *Call) RequestsUsed() int64 { return c.rates.used(c.Account, c.Time) }

// withinRate counts the request against its account's quota, and reports the rest in the response's
// headers.
func (c *Call) withinRate() error {
	account := c.Principal.Account
	most, set := c.View().Quota(account, domain.QuotaRequestsPerMinute)
	if !set || account == domain.System { // an event must not lock the operator out
		c.rates.forget(account)
		return nil
	}
	b := c.rates.of(account, most)
	allowed := b.AllowN(c.Time, 1)
	header := c.Writer.Header()
	header.Set("X-Ratelimit-Limit-Requests", strconv.FormatInt(most, 10))
	header.Set("X-Ratelimit-Remaining-Requests", strconv.FormatInt(b.left(c.Time), 10))
	header.Set("X-Ratelimit-Reset-Requests", b.until(float64(most), c.Time).Round(time.Millisecond).String())
	if allowed {
		return nil
	}
	wait := int(math.Ceil(max(1, b.until(1, c.Time).Seconds()-1e-9)))
	header.Set("Retry-After", strconv.Itoa(wait))
	return &domain.Error{Code: domain.ResourceExhausted, Reason: "RATE_LIMITED",
		Message: fmt.Sprintf("accounts/%s may send %d requests a minute (accounts/%s/quotas/%s): send the next one in %d seconds, or ask the operator to raise it", account, most, account, domain.QuotaRequestsPerMinute, wait)}
}
