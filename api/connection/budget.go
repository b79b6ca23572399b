package connection

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
	f := domain.Errorf(domain.ResourceExhausted,
		"the request bodies in progress "+format+": send fewer large requests concurrently, and retry this request shortly",
		args...)
	f.Reason = request.ReasonBodies
	return f
}

// Decoding a JSON body takes costOfByte bytes of memory for each byte of the body, and in addition
// costOfObject for each object and costOfValue for each other value. TestBodyCost measures the
// three costs: a body of 2 MB takes 8 MB when it is a string, and 110 MB when it is a list of
// {"":0}.
const (
	costOfByte   = 4
	costOfObject = 320
	costOfValue  = 40
)

// bodyCost returns an upper bound of the memory for decoding a body, in bytes. It also counts
// brackets and commas inside strings.
func bodyCost(data []byte) int64 {
	count := func(mark string) int64 { return int64(bytes.Count(data, []byte(mark))) }
	return costOfByte*int64(len(data)) + costOfObject*count("{") + costOfValue*(count("[")+count(",")+count(":"))
}

// bodyWait is how long a request waits for memory for its body.
const bodyWait = time.Second

// smallBody is the memory, in bytes, up to which a request may use the last eighth of the budget.
// The last eighth keeps a few accounts with large bodies from blocking the ordinary requests of
// other accounts.
const smallBody = 64 << 10

// slowBody is the memory, in bytes, from which a body needs a decoder slot. There are slots for
// half of the cores, because large bodies must not slow other requests down.
const slowBody = 2 << 20

// A Budget bounds the memory of the bodies that are read and decoded concurrently, in total and for
// each account. An account may use a quarter of the total, so that no account blocks the other
// accounts.
type Budget struct {
	total, each int64         // bytes
	decoders    chan struct{} // contains one element for each slow body that is being decoded

	mu       sync.Mutex
	used     int64
	accounts map[string]int64
	freed    chan struct{} // closed and replaced when memory is released
}

func NewBudget(total int64) *Budget {
	return &Budget{total: total, each: total / 4, accounts: map[string]int64{},
		decoders: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), freed: make(chan struct{})}
}

// reserve reserves n more bytes for a request that has already reserved some. It waits up to
// bodyWait for memory, but rejects a body that exceeds the share of one account without waiting.
func (b *Budget) reserve(ctx context.Context, account string, reserved, n int64) error {
	if reserved+n > b.each {
		f := domain.Errorf(domain.OutOfRange,
			"decoding the body takes %d bytes of memory, more than the limit of %d for one account: send a smaller body, or "+
				"one with fewer objects and values", reserved+n, b.each)
		f.Reason = request.ReasonBodyTooLarge
		return f
	}
	timeout := time.NewTimer(bodyWait)
	defer timeout.Stop()
	for {
		freed, ok := b.take(account, reserved, n)
		if ok {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			return tooManyBodies("use all memory for bodies (%d bytes in total, %d for each account)", b.total, b.each)
		}
	}
}

// enter takes a decoder slot. It returns an error when no slot is free within bodyWait.
func (b *Budget) enter(ctx context.Context) error {
	timeout := time.NewTimer(bodyWait)
	defer timeout.Stop()
	select {
	case b.decoders <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timeout.C:
		return tooManyBodies("use all %d decoder slots for large bodies", cap(b.decoders))
	}
}

func (b *Budget) take(account string, own, n int64) (freed <-chan struct{}, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	capacity := b.total
	if own+n > smallBody {
		capacity -= b.total / 8
	}
	if b.accounts[account]+n > b.each || b.used+n > capacity {
		return b.freed, false
	}
	b.used += n
	b.accounts[account] += n
	return nil, true
}

func (b *Budget) release(account string, n int64) {
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
