// Package pool trains several LoRA adapters on one base model that is in memory once. It implements
// engines.TrainPool. The rows of all runs go through one product with the base model's weights, and
// the low-rank products are computed for each run.
package pool

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/fair"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/serve"
	"anneal/engines/embedded/tokenizer"
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
	wake   *sync.Cond // signaled when calls, closed, failed or tokens changes
	shares fair.Queue // accounts of calls
	calls  []*call    // calls with data that no worker has taken, least recently served first
	tokens int        // tokens of the passes that workers compute
	used   int64      // memory of the open runs, and of the adapters of samplers
	closed bool
	failed error         // the pool cannot continue
	broken chan struct{} // closed when failed is set

	sampling    sync.Mutex     // guards samples
	samples     *serve.Samples // nil until a sampler is opened
	sampleBytes int64          // maximum memory of the KV caches of samples
	tokenizer   *tokenizer.Tokenizer
	stopTokens  []int
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
	v.Require(request.SampleBytes >= 0, "sample_bytes", "must be 0 or more, is %d", request.SampleBytes)
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
	var tokens *tokenizer.Tokenizer
	if _, err := os.Stat(filepath.Join(request.BaseDir, "tokenizer.json")); err == nil {
		if tokens, err = tokenizer.Load(request.BaseDir); err != nil {
			return nil, fmt.Errorf("base model: %w", err)
		}
	}
	stopTokens, err := serve.StopTokens(request.BaseDir, weights.Config, tokens)
	if err != nil {
		return nil, fmt.Errorf("base model: %w", err)
	}
	p := newPool(weights, hash, request)
	p.tokenizer, p.stopTokens = tokens, stopTokens
	p.start()
	return p, nil
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
// workers keep. Passes that are computed at the same time have no more tokens together. It includes the KV
// caches of samples.
func passBytes(c *llama.Config, request engines.TrainPoolRequest) int64 {
	return c.SegmentBytes(maxTokens(c, request), engines.MaxTrainRank) + int64(request.Parallelism)*keptBytes(c) +
		sampleBytes(c, request)
}

// New returns a pool of runs on the weights w, whose hash is hash. It reads the limits of the request;
// Parallelism must be at least 1.
func New(w *llama.Weights, hash string, request engines.TrainPoolRequest) *Pool {
	p := newPool(w, hash, request)
	p.start()
	return p
}

// newPool returns a pool without workers.
func newPool(w *llama.Weights, hash string, request engines.TrainPoolRequest) *Pool {
	p := &Pool{
		net: llama.NewNet(w, nil, request.Parallelism), hash: hash, kernel: kernel.Arithmetic(),
		workers: request.Parallelism, runBytes: request.RunBytes, sampleBytes: sampleBytes(&w.Config, request),
	}
	p.maxTokens = maxTokens(&w.Config, request)
	p.limit = max(p.maxTokens, passTokens*p.workers)
	if p.runBytes == 0 {
		p.runBytes = engines.DefaultTrainRunBytes
		if free := llama.FreeMemory(); free > 0 {
			p.runBytes = max((free-passBytes(&w.Config, request))/2, 0)
		}
	}
	p.wake, p.broken, p.stopTokens = sync.NewCond(&p.mu), make(chan struct{}), w.Config.EOS
	return p
}

func (p *Pool) start() {
	for range p.workers {
		w := &worker{pool: p, pass: llama.NewPass(p.net)}
		p.running.Go(w.run)
	}
}

// BaseHash implements engines.TrainPool.
func (p *Pool) BaseHash() string { return p.hash }

// Kernel implements engines.TrainPool.
func (p *Pool) Kernel() string { return p.kernel }

// MaxTokens implements engines.TrainPool.
func (p *Pool) MaxTokens() int { return p.maxTokens }

// reserve counts the memory of a run or sampler, or returns ResourceExhausted.
func (p *Pool) reserve(bytes int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed()
	}
	if bytes > p.runBytes-p.used {
		return &domain.Error{Code: domain.ResourceExhausted, Reason: engines.TrainRunsTooLarge, Message: fmt.Sprintf(
			"the adapter needs %d bytes of memory, but the open runs and samplers of this pool have %d of at most %d bytes: close "+
				"one, choose a lower rank or fewer modules, or open the pool with a higher maximum", bytes, p.used, p.runBytes)}
	}
	p.used += bytes
	return nil
}

// release is the inverse of reserve.
func (p *Pool) release(bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used -= bytes
}

// Close implements engines.TrainPool.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.wake.Broadcast()
	p.running.Wait()
	p.sampling.Lock()
	defer p.sampling.Unlock()
	if p.samples != nil {
		return p.samples.Close()
	}
	return nil
}
