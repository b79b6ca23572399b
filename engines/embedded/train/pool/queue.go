package pool

import (
	"context"
	"slices"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/fair"
)

// A call is a Forward or ForwardBackward of a run. Pool.mu guards the fields from account on;
// outputs and losses have a range for each chunk.
type call struct {
	run      *run
	pass     *engines.TrainPass
	loss     loss
	backward bool

	account *fair.Account
	taken   int // number of data that workers have taken
	pending int // number of data that are not computed yet
	outputs []engines.TrainOutput
	losses  []float64     // loss of each datum
	err     error         // error of the call, for example after a panic
	done    chan struct{} // closed when all data are computed
}

// do computes a call. If ctx is done before the call has begun, it returns the error of ctx.
func (p *Pool) do(ctx context.Context, c *call) error {
	if err := p.add(ctx, c); err != nil {
		return err
	}
	select {
	case <-c.done:
		return p.errOf(c)
	case <-p.broken:
		return p.errOf(c)
	case <-ctx.Done():
	}
	if p.withdraw(c) {
		return ctx.Err()
	}
	select {
	case <-c.done:
	case <-p.broken:
	}
	return p.errOf(c)
}

// add adds a call to those that wait.
func (p *Pool) add(ctx context.Context, c *call) error {
	c.pending, c.done = len(c.pass.Data), make(chan struct{})
	c.outputs, c.losses = make([]engines.TrainOutput, c.pending), make([]float64, c.pending)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.failed != nil:
		return p.failed
	case p.closed:
		return errClosed()
	case ctx.Err() != nil:
		return ctx.Err()
	}
	c.account = p.shares.Join(c.run.config.Share.Account, c.run.config.Share.Weight)
	p.calls = append(p.calls, c)
	p.wake.Broadcast()
	return nil
}

func errClosed() error { return domain.Errorf(domain.Unavailable, "the training pool is closed") }

// errOf returns the error of a call, or of the pool if the call has not ended.
func (p *Pool) errOf(c *call) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.err == nil && c.pending > 0 {
		return p.failed
	}
	return c.err
}

// withdraw removes a call of which no data have been taken. It returns false if some have been.
func (p *Pool) withdraw(c *call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.taken > 0 {
		return false
	}
	p.remove(c)
	return true
}

// remove removes a call from those that wait. p.mu is locked.
func (p *Pool) remove(c *call) {
	before := len(p.calls)
	p.calls = slices.DeleteFunc(p.calls, func(other *call) bool { return other == c })
	if len(p.calls) < before {
		p.shares.Leave(c.account)
	}
}

// A chunk is a part of the data of a call that is computed in one pass.
type chunk struct {
	call   *call
	lo, hi int // range of the data
	turn   int // see llama.Order
}

// take returns the chunks of the next pass; none if the pool is closed. All of them have a backward
// pass, or none.
func (p *Pool) take(chunks []chunk) []chunk {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.first(nil)
	for at < 0 || p.failed != nil || !p.fits(p.calls[at].next()) {
		if p.failed != nil || p.closed && at < 0 {
			return nil
		}
		p.wake.Wait()
		at = p.first(nil)
	}
	backward, left := p.calls[at].backward, min(p.budget(), p.limit-p.tokens)
	var served []*call
	for ; at >= 0; at = p.first(func(c *call) bool { return c.backward == backward && c.next() <= left }) {
		c := p.calls[at]
		lo := c.taken
		for c.taken < len(c.pass.Data) {
			n := c.next()
			if n > left && (len(chunks) > 0 || c.taken > lo) {
				break
			}
			left -= n
			p.tokens += n
			c.account.Charge(n)
			c.taken++
		}
		chunks = append(chunks, chunk{call: c, lo: lo, hi: c.taken, turn: c.run.turn})
		if backward {
			c.run.turn++
		}
		if c.taken < len(c.pass.Data) {
			p.calls = slices.Delete(p.calls, at, at+1)
			served = append(served, c)
		} else {
			p.remove(c)
		}
	}
	p.calls = append(p.calls, served...)
	return chunks
}

// first returns the index of the waiting call that is served next, among those that match; a nil
// match matches all. It is the call of the account with the lowest virtual time, and among equals
// the least recently served one. It returns -1 if there is none.
func (p *Pool) first(match func(*call) bool) int {
	at := -1
	for i, c := range p.calls {
		if (match == nil || match(c)) && (at < 0 || c.account.Before(p.calls[at].account)) {
			at = i
		}
	}
	return at
}

// next returns the number of tokens of the next datum of a call.
func (c *call) next() int { return len(c.pass.Data[c.taken].Tokens) }

// fits reports whether a datum with n tokens can be computed beside the current passes. Data that
// do not fit wait until passes are finished.
func (p *Pool) fits(n int) bool { return p.tokens == 0 || p.tokens+n <= p.limit }

// budget returns the number of tokens of the next pass: the waiting tokens divided by the number of
// workers, from minTokens to passTokens.
func (p *Pool) budget() int {
	waiting := 0
	for _, c := range p.calls {
		for _, d := range c.pass.Data[c.taken:] {
			if waiting += len(d.Tokens); waiting >= passTokens*p.workers {
				return passTokens
			}
		}
	}
	return max(minTokens, (waiting+p.workers-1)/p.workers)
}

// finish records that chunks with a number of tokens are computed.
func (p *Pool) finish(chunks []chunk, tokens int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens -= tokens
	p.wake.Broadcast()
	for _, one := range chunks {
		one.call.end(one.hi - one.lo)
	}
}

// end records that n data need not be computed any more. Pool.mu is locked.
func (c *call) end(n int) {
	if c.pending -= n; c.pending == 0 {
		close(c.done)
	}
}

// fail records the error of a call after one of its chunks has panicked, and drops the data that no
// worker has taken. If the call has a backward pass, the gradient of its run is incomplete, so the
// run fails.
func (p *Pool) fail(c *call, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	if c.backward {
		c.run.fail(err)
	}
	if rest := len(c.pass.Data) - c.taken; rest > 0 {
		p.remove(c)
		c.taken = len(c.pass.Data)
		c.end(rest)
	}
}

// abort fails the pool after a panic in the queue itself.
func (p *Pool) abort(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		p.failed = domain.Errorf(domain.Unavailable, "the training pool has failed, so open it again: %v", err)
		close(p.broken)
	}
	p.wake.Broadcast()
}
