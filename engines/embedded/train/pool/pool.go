// Package pool trains several LoRA adapters on one base model that is in memory once. It implements
// engines.TrainPool. The rows of all runs go through one product with the base model's weights, and
// the low-rank products are computed for each run.
package pool

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
)

// passTokens is the approximate maximum number of tokens that one goroutine computes at a time: more
// rows hardly make the products faster, and the activations of fewer stay in the caches. minTokens is
// the number below which a pass is not divided among goroutines. They do not change results.
const (
	passTokens = 128
	minTokens  = 64
)

// Opener implements engines.TrainPoolOpener. The zero value is ready to use.
type Opener struct {
	Parallelism int // default of TrainPoolRequest.Parallelism
}

// A Pool implements engines.TrainPool.
type Pool struct {
	net     *llama.Net
	hash    string
	kernel  string
	workers int
	running sync.WaitGroup

	maxTokens int   // maximum number of tokens of a datum
	limit     int   // maximum number of tokens of the passes that are computed at the same time
	runBytes  int64 // maximum memory of the open runs

	mu     sync.Mutex
	wake   *sync.Cond // signaled when calls, closed or tokens changes
	calls  []*call    // calls with data that no worker has taken, least recently served first
	tokens int        // tokens of the passes that workers compute
	used   int64      // memory of the open runs
	closed bool
}

// OpenTrainPool implements engines.TrainPoolOpener.
func (o Opener) OpenTrainPool(_ context.Context, request engines.TrainPoolRequest) (engines.TrainPool, error) {
	if request.Precision != "" && request.Precision != engines.PrecisionFloat32 {
		return nil, domain.Errorf(domain.FailedPrecondition,
			"precision: the embedded engine trains in float32, not in %q", request.Precision)
	}
	if request.Parallelism <= 0 {
		request.Parallelism = o.Parallelism
	}
	if request.Parallelism <= 0 {
		request.Parallelism = max(1, runtime.GOMAXPROCS(0)-1)
	}
	var v domain.Violations
	v.Require(request.MaxTokens >= 0, "max_tokens", "must be 0 or more, is %d", request.MaxTokens)
	v.Require(request.RunBytes >= 0, "run_bytes", "must be 0 or more, is %d", request.RunBytes)
	if err := v.Err(); err != nil {
		return nil, err
	}
	config, err := llama.ReadConfig(request.BaseDir)
	if err == nil {
		err = config.FitsPool(maxTokens(&config, request), passBytes(&config, request))
	}
	if err != nil {
		return nil, fmt.Errorf("base model: %w", err)
	}
	weights, err := llama.Load(request.BaseDir)
	if err != nil {
		return nil, fmt.Errorf("base model: %w", err)
	}
	hash := weights.Hash()
	if request.BaseHash != "" && request.BaseHash != hash {
		return nil, domain.Errorf(domain.FailedPrecondition, "base model: has the hash %s, not %s", hash, request.BaseHash)
	}
	return New(weights, hash, request), nil
}

// maxTokens returns the maximum number of tokens of a datum, which is computed in one pass.
func maxTokens(c *llama.Config, request engines.TrainPoolRequest) int {
	return min(cmp.Or(request.MaxTokens, engines.DefaultTrainTokens), c.MaxPositions)
}

// keptBytes is the maximum memory for activations that a worker keeps for its next pass: that of an
// ordinary pass, and at least 32 MiB, so that small models do not allocate it again for each pass.
func keptBytes(c *llama.Config) int64 {
	return max(c.SegmentBytes(passTokens, engines.MaxTrainRank), 32<<20)
}

// passBytes returns the maximum memory of all passes: of one with the longest datum, and what the
// workers keep. Passes that are computed at the same time have no more tokens together.
func passBytes(c *llama.Config, request engines.TrainPoolRequest) int64 {
	return c.SegmentBytes(maxTokens(c, request), engines.MaxTrainRank) + int64(request.Parallelism)*keptBytes(c)
}

// New returns a pool of runs on the weights w, whose hash is hash. It reads the limits of the request;
// Parallelism must be at least 1.
func New(w *llama.Weights, hash string, request engines.TrainPoolRequest) *Pool {
	p := &Pool{
		net: llama.NewNet(w, nil, request.Parallelism), hash: hash, kernel: kernel.Arithmetic(),
		workers: request.Parallelism, runBytes: request.RunBytes,
	}
	p.maxTokens = maxTokens(&w.Config, request)
	p.limit = max(p.maxTokens, passTokens*p.workers)
	if p.runBytes == 0 {
		p.runBytes = engines.DefaultTrainRunBytes
		if free := llama.FreeMemory(); free > 0 {
			p.runBytes = max((free-passBytes(&w.Config, request))/2, 0)
		}
	}
	p.wake = sync.NewCond(&p.mu)
	for range p.workers {
		w := &worker{pool: p, pass: llama.NewPass(p.net)}
		p.running.Go(w.run)
	}
	return p
}

// BaseHash implements engines.TrainPool.
func (p *Pool) BaseHash() string { return p.hash }

// Kernel implements engines.TrainPool.
func (p *Pool) Kernel() string { return p.kernel }

// MaxTokens implements engines.TrainPool.
func (p *Pool) MaxTokens() int { return p.maxTokens }

// reserve counts the memory of a run, or returns ResourceExhausted.
func (p *Pool) reserve(bytes int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed()
	}
	if bytes > p.runBytes-p.used {
		return &domain.Error{Code: domain.ResourceExhausted, Reason: engines.TrainRunsTooLarge, Message: fmt.Sprintf(
			"the run needs %d bytes of memory, but the open runs of this pool have %d of at most %d bytes: close a run, choose "+
				"a lower rank or fewer modules, or open the pool with a higher maximum", bytes, p.used, p.runBytes)}
	}
	p.used += bytes
	return nil
}

// Close implements engines.TrainPool.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.wake.Broadcast()
	p.running.Wait()
	return nil
}

// A call is a Forward or ForwardBackward of a run.
type call struct {
	run      *run
	pass     *engines.TrainPass
	loss     loss
	backward bool

	taken   int // number of data that workers have taken
	pending int // number of data that are not computed yet
	outputs []engines.TrainOutput
	losses  []float64     // loss of each datum
	done    chan struct{} // closed when all data are computed
}

// do computes a call. If ctx is done before the call has begun, it returns the error of ctx.
func (p *Pool) do(ctx context.Context, c *call) error {
	c.pending, c.done = len(c.pass.Data), make(chan struct{})
	c.outputs, c.losses = make([]engines.TrainOutput, c.pending), make([]float64, c.pending)
	p.mu.Lock()
	if p.closed || ctx.Err() != nil {
		defer p.mu.Unlock()
		if p.closed {
			return errClosed()
		}
		return ctx.Err()
	}
	p.calls = append(p.calls, c)
	p.mu.Unlock()
	p.wake.Broadcast()
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	if p.withdraw(c) {
		return ctx.Err()
	}
	<-c.done
	return nil
}

func errClosed() error { return domain.Errorf(domain.Unavailable, "the training pool is closed") }

// withdraw removes a call of which no data have been taken. It returns false if some have been.
func (p *Pool) withdraw(c *call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.taken > 0 {
		return false
	}
	p.calls = slices.DeleteFunc(p.calls, func(other *call) bool { return other == c })
	return true
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
	for len(p.calls) == 0 || !p.fits(p.calls[0].next()) {
		if p.closed && len(p.calls) == 0 {
			return nil
		}
		p.wake.Wait()
	}
	backward, left := p.calls[0].backward, min(p.budget(), p.limit-p.tokens)
	rest := p.calls[:0:0]
	var served []*call
	for _, c := range p.calls {
		lo := c.taken
		for c.backward == backward && c.taken < len(c.pass.Data) {
			n := c.next()
			if n > left && (len(chunks) > 0 || c.taken > lo) {
				break
			}
			left -= n
			p.tokens += n
			c.taken++
		}
		if c.taken == lo {
			rest = append(rest, c)
			continue
		}
		chunks = append(chunks, chunk{call: c, lo: lo, hi: c.taken, turn: c.run.turn})
		if backward {
			c.run.turn++
		}
		if c.taken < len(c.pass.Data) {
			served = append(served, c)
		}
	}
	p.calls = append(rest, served...)
	return chunks
}

// next returns the number of tokens of the next datum of a call.
func (c *call) next() int { return len(c.pass.Data[c.taken].Tokens) }

// fits reports whether a datum with n tokens can be computed beside the current passes. Data that do
// not fit wait until passes are finished.
func (p *Pool) fits(n int) bool { return p.tokens == 0 || p.tokens+n <= p.limit }

// budget returns the number of tokens of the next pass: an equal share of those that wait, within
// limits.
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
		if one.call.pending -= one.hi - one.lo; one.call.pending == 0 {
			close(one.call.done)
		}
	}
}

// A worker is a goroutine that computes passes.
type worker struct {
	pool  *Pool
	pass  *llama.Pass
	batch llama.SegmentBatch
}

func (w *worker) run() {
	var chunks []chunk
	for {
		if chunks = w.pool.take(chunks[:0]); len(chunks) == 0 {
			return
		}
		w.compute(chunks)
		tokens, targets := w.batch.Len()
		c := &w.pool.net.Weights.Config
		if c.SegmentBytes(max(tokens, targets/8), engines.MaxTrainRank) > keptBytes(c) {
			w.pass, w.batch = llama.NewPass(w.pool.net), llama.SegmentBatch{}
		}
		w.pool.finish(chunks, tokens)
		clear(chunks)
	}
}

func (w *worker) compute(chunks []chunk) {
	w.batch.Reset()
	for _, one := range chunks {
		c, r := one.call, one.call.run
		if c.backward {
			w.batch.Begin(r.adapter, r.gradient, r.order, one.turn)
		} else {
			w.batch.Begin(r.adapter, nil, nil, 0)
		}
		for i := one.lo; i < one.hi; i++ {
			d := &c.pass.Data[i]
			w.batch.Add(d.Tokens, d.Targets)
			c.outputs[i].Logprobs = make([]float32, len(d.Targets))
			if c.pass.Loss == engines.LossCrossEntropy {
				c.outputs[i].Losses = make([]float32, len(d.Targets))
			}
		}
	}
	backward, at := chunks[0].call.backward, cursor{chunks: chunks, datum: chunks[0].lo}
	w.pass.ForwardSegments(&w.batch, backward, at.losses)
	if backward {
		w.pass.BackwardSegments()
	}
}

// A cursor is a position in the targets of chunks.
type cursor struct {
	chunks []chunk // the current chunk, and those that follow
	datum  int     // index of the current datum
	target int     // index of the next target
}

// losses implements llama.TargetLoss. It writes the losses and log-probabilities of the next targets to
// their calls.
func (at *cursor) losses(logp, grads []float32) {
	for len(logp) > 0 {
		c := at.chunks[0].call
		d, out := &c.pass.Data[at.datum], &c.outputs[at.datum]
		lo := at.target
		n := copy(out.Logprobs[lo:], logp)
		var values []float32
		if out.Losses != nil {
			values = out.Losses[lo : lo+n]
		}
		c.losses[at.datum] = c.loss.apply(c.losses[at.datum], d, lo, logp[:n], grads[:n], values)
		logp, grads, at.target = logp[n:], grads[n:], lo+n
		if at.target < len(d.Targets) {
			return
		}
		if at.datum, at.target = at.datum+1, 0; at.datum == at.chunks[0].hi {
			if at.chunks = at.chunks[1:]; len(at.chunks) > 0 {
				at.datum = at.chunks[0].lo
			}
		}
	}
}
