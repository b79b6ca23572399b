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

// rates holds a token bucket for each account with the quota requests-per-minute. The capacity of a
// bucket is the number of requests per minute. Each server has its own buckets, so n servers
// together admit up to n times the quota.
type rates struct {
	mu      sync.Mutex
	buckets map[string]*bucket // token buckets by account name
}

type bucket struct {
	*rate.Limiter
	size int64 // capacity of the bucket, and number of tokens that it gains per minute
}

func newRates() *rates { return &rates{buckets: map[string]*bucket{}} }

// of returns the account's bucket for a quota of size requests per minute. If the account has no
// bucket of this size, it creates a full one.
func (r *rates) of(account string, size int64) *bucket {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.buckets[account]
	if b == nil || b.size != size {
		b = &bucket{rate.NewLimiter(rate.Limit(float64(size)/60), int(size)), size}
		r.buckets[account] = b
	}
	return b
}

// forget deletes the bucket of an account that has no quota.
func (r *rates) forget(account string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.buckets, account)
}

// used returns how many tokens are missing from the account's bucket, because requests took them
// within the last minute; 0 if the account has no bucket.
func (r *rates) used(account string, now time.Time) int64 {
	r.mu.Lock()
	b := r.buckets[account]
	r.mu.Unlock()
	if b == nil {
		return 0
	}
	return b.size - b.left(now)
}

// left returns how many requests the bucket admits at the time now.
func (b *bucket) left(now time.Time) int64 {
	return max(0, int64(math.Floor(b.TokensAt(now)+1e-9)))
}

// until returns how long it takes until the bucket has the given number of tokens. The bucket must
// have a size above 0: other buckets gain no tokens.
func (b *bucket) until(tokens float64, now time.Time) time.Duration {
	lacks := max(0, tokens-b.TokensAt(now))
	return time.Duration(lacks / float64(b.Limit()) * float64(time.Second))
}

// RequestsUsed returns the usage of the quota requests-per-minute by the account in the path.
func (c *Call) RequestsUsed() int64 { return c.rates.used(c.Account, c.Time) }

// withinRate counts the request against the quota requests-per-minute of the principal's account,
// and sets the response headers with the remaining requests. It returns an error if no request
// remains. It counts each request once, and does not count requests to Uncounted operations.
func (c *Call) withinRate() error {
	if c.counted {
		return nil
	}
	c.counted = true
	account := c.Principal.Account
	size, set := c.View().Quota(account, domain.QuotaRequestsPerMinute)
	if !set || account == domain.System { // the operator must always be able to raise the quota
		c.rates.forget(account)
		return nil
	}
	b := c.rates.of(account, size)
	allowed := c.Operation.Uncounted && asOfValue(c) == "" || b.AllowN(c.Time, 1)
	header := c.Writer.Header()
	header.Set("X-Ratelimit-Limit-Requests", strconv.FormatInt(size, 10))
	header.Set("X-Ratelimit-Remaining-Requests", strconv.FormatInt(b.left(c.Time), 10))
	if size > 0 { // a bucket with a size of 0 gains no tokens
		header.Set("X-Ratelimit-Reset-Requests", b.until(float64(size), c.Time).Round(time.Millisecond).String())
	}
	if allowed {
		return nil
	}
	if size == 0 {
		return OverQuota(account, domain.QuotaRequestsPerMinute, 0, 0, 1)
	}
	wait := int(math.Ceil(max(1, b.until(1, c.Time).Seconds()-1e-9)))
	header.Set("Retry-After", strconv.Itoa(wait))
	return &domain.Error{Code: domain.ResourceExhausted, Reason: "RATE_LIMITED",
		Message: fmt.Sprintf("accounts/%s may send %d requests a minute (accounts/%s/quotas/%s): send the next request in "+
			"%d seconds, or ask the operator to raise the quota", account, size, account, domain.QuotaRequestsPerMinute,
			wait)}
}
