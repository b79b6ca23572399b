package api

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"time"

	"anneal/api/request"
	"anneal/domain"
)

func tooManyBodies(format string, args ...any) error {
	f := domain.Errorf(domain.ResourceExhausted, "the bodies that are being read "+format+": send fewer large requests at once, and this one again shortly", args...)
	f.Reason = request.ReasonBodies
	return f
}

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

// smallBody is what decoding a request takes at most that may use the last
// eighth of the memory: a few accounts with large bodies do not keep the others
// from sending ordinary ones.
const smallBody = 64 << 10

// slowBody is what decoding a request takes at least that decodes only in turn:
// half of the cores decode such bodies, so that many of them slow nobody else down.
const slowBody = 2 << 20

// A bodyBudget bounds the memory of the bodies that are read and decoded at one
// time, in total and for each account. An account may take a quarter of it, so
// that no account keeps the others waiting.
type bodyBudget struct {
	total, each int64         // bytes
	decoders    chan struct{} // one for each slow body that is decoded now

	mu       sync.Mutex
	used     int64
	accounts map[string]int64
	freed    chan struct{} // closed when something is released
}

func newBodyBudget(total int64) *bodyBudget {
	return &bodyBudget{total: total, each: total / 4, accounts: map[string]int64{}, decoders: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), freed: make(chan struct{})}
}

// reserve takes n more bytes for a request of an account that has own already,
// and waits for them up to bodyWait. What is more than an account's share is
// refused for good.
func (b *bodyBudget) reserve(ctx context.Context, account string, own, n int64) error {
	if own+n > b.each {
		f := domain.Errorf(domain.OutOfRange, "decoding the body takes %d bytes of memory, of which each account has %d: send less, or fewer objects and values, at once", own+n, b.each)
		f.Reason = request.ReasonBodyTooLarge
		return f
	}
	timeout := time.NewTimer(bodyWait)
	defer timeout.Stop()
	for {
		freed, ok := b.take(account, own, n)
		if ok {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			return tooManyBodies("take all the memory that there is for them (%d bytes, %d for each account)", b.total, b.each)
		}
	}
}

// enter waits for the turn of a slow body, up to bodyWait.
func (b *bodyBudget) enter(ctx context.Context) error {
	timeout := time.NewTimer(bodyWait)
	defer timeout.Stop()
	select {
	case b.decoders <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timeout.C:
		return tooManyBodies("take the time of all %d processor cores that decode large ones", cap(b.decoders))
	}
}

func (b *bodyBudget) take(account string, own, n int64) (freed <-chan struct{}, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	room := b.total
	if own+n > smallBody {
		room -= b.total / 8
	}
	if b.accounts[account]+n > b.each || b.used+n > room {
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
