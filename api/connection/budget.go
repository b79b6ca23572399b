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

// Decoding a JSON body takes at most costOfByte bytes of memory for each byte of the body, plus
// costOfObject for each object and costOfValue for each other value. TestBodyCost measures the
// three costs: for example, a body of 2 MB takes 8 MB if it is one string, and 110 MB if it is a
// list of {"":0}.
const (
	costOfByte   = 4
	costOfObject = 320
	costOfValue  = 40
)

// bodyCost returns an upper bound of the memory, in bytes, for decoding a JSON body. It is not
// exact, because it also counts brackets and commas inside strings.
func bodyCost(data []byte) int64 {
	count := func(mark string) int64 { return int64(bytes.Count(data, []byte(mark))) }
	return costOfByte*int64(len(data)) + costOfObject*count("{") + costOfValue*(count("[")+count(",")+count(":"))
}

// bodyWait is how long a request waits for memory for its body before it is rejected.
const bodyWait = time.Second

// smallBody bounds the memory, in bytes, of a request that may use the last eighth of the budget.
// That eighth is for ordinary requests, so that a few accounts with large bodies do not block the
// others.
const smallBody = 64 << 10

// slowBody is the memory, in bytes, above which decoding a body needs a decoder slot. There are
// slots for half of the cores, so that large bodies do not slow down other requests.
const slowBody = 2 << 20

// A Budget bounds the memory of the JSON bodies that are received and decoded concurrently. An
// account may use a quarter of the total, so that it cannot block other accounts.
type Budget struct {
	total, each int64 // bytes for all accounts, and bytes for one account
	// semaphore of decoder slots: has one element for each slow body that is being decoded
	decoders chan struct{}

	mu       sync.Mutex
	used     int64
	accounts map[string]int64
	freed    chan struct{} // closed and replaced when memory is released, to wake waiting requests
}

func NewBudget(total int64) *Budget {
	return &Budget{total: total, each: total / 4, accounts: map[string]int64{},
		decoders: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), freed: make(chan struct{})}
}

// reserve reserves n more bytes for a request of the account; reserved is the number of bytes that
// the request holds already. It waits up to bodyWait until the memory is free. It rejects a body
// that exceeds the share of one account without waiting.
func (b *Budget) reserve(ctx context.Context, account string, reserved, n int64) error {
	if reserved+n > b.each {
		f := domain.Errorf(domain.OutOfRange,
			"decoding the body takes %d bytes of memory, more than the limit of %d: send a smaller body, or "+
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
			return tooManyBodies("use all memory for bodies (%d bytes for all accounts, %d for one account)", b.total, b.each)
		}
	}
}

// enter takes a decoder slot. It returns an error if no slot is free within bodyWait. The caller
// must release the slot: see Exchange.leave.
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
