package api

import (
	"bytes"
	"context"
	"sync"
	"time"

	"anneal/domain"
)

// What decoding a JSON body takes, in bytes of memory: for each byte of it, for
// each object and for each other value. TestBodyCost measures it: a text of 2 MB
// takes 8 MB, and a list of as many bytes of {"":0} takes 110 MB.
const (
	costOfByte   = 4
	costOfObject = 320
	costOfValue  = 40
)

// bodyCost bounds from above what decoding a body takes. What looks like
// structure inside of texts counts as well.
func bodyCost(data []byte) int64 {
	count := func(mark string) int64 { return int64(bytes.Count(data, []byte(mark))) }
	return costOfByte*int64(len(data)) + costOfObject*count("{") + costOfValue*(count("[")+count(",")+count(":"))
}

// bodyWait is how long a request waits for memory for its body.
const bodyWait = time.Second

// A bodyBudget bounds the memory of the bodies that are read and decoded at one
// time, in total and for each account. An account may take a quarter of it, so
// that no account keeps the others waiting.
type bodyBudget struct {
	total, each int64 // bytes

	mu       sync.Mutex
	used     int64
	accounts map[string]int64
	freed    chan struct{} // closed when something is released
}

func newBodyBudget(total int64) *bodyBudget {
	return &bodyBudget{total: total, each: total / 4, accounts: map[string]int64{}, freed: make(chan struct{})}
}

// reserve takes n more bytes for a request of an account that has own already,
// and waits for them up to bodyWait. What is more than an account's share is
// refused for good.
func (b *bodyBudget) reserve(ctx context.Context, account string, own, n int64) error {
	if own+n > b.each {
		f := domain.Faultf(domain.OutOfRange, "decoding the body takes %d bytes of memory, of which each account has %d: send less, or fewer objects and values, at once", own+n, b.each)
		f.Reason = reasonBodyTooLarge
		return f
	}
	timeout := time.NewTimer(bodyWait)
	defer timeout.Stop()
	for {
		freed, ok := b.take(account, n)
		if ok {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			f := domain.Faultf(domain.ResourceExhausted, "the bodies that are being read take all the memory that there is for them (%d bytes, %d for each account): send fewer large requests at once, and this one again shortly", b.total, b.each)
			f.Reason = reasonBodies
			return f
		}
	}
}

func (b *bodyBudget) take(account string, n int64) (freed <-chan struct{}, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.accounts[account]+n > b.each || b.used+n > b.total {
		return b.freed, false
	}
	b.used += n
	b.accounts[account] += n
	return nil, true
}

func (b *bodyBudget) release(account string, n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.accounts[account] -= n; b.accounts[account] == 0 {
		delete(b.accounts, account)
	}
	close(b.freed)
	b.freed = make(chan struct{})
}
