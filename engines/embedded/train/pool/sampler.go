package pool

import (
	"context"
	"sync"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/serve"
)

// sampleSlots is the maximum number of samples in one batch. More rows hardly make products faster.
const sampleSlots = 64

// sampleBytes returns the maximum memory of the KV caches of samples.
func sampleBytes(c *llama.Config, request engines.TrainPoolRequest) int64 {
	bytes := request.SampleBytes
	if bytes == 0 {
		bytes = engines.DefaultTrainSampleBytes
	}
	return max(bytes, serve.SampleBytes(c, maxTokens(c, request)))
}

// A sampler implements engines.TrainSampler.
type sampler struct {
	pool    *Pool
	samples *serve.Samples
	weights *serve.SampleWeights // nil for the base model

	mu     sync.Mutex
	calls  int // number of calls in progress
	closed bool
}

// OpenSampler implements engines.TrainPool. Samples are drawn by the engine's serving code, on the packed
// base weights of the pool, so they need no second copy of the base model.
func (p *Pool) OpenSampler(ctx context.Context, adapterDir string) (_ engines.TrainSampler, err error) {
	defer recovered(&err)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	samples, err := p.startSamples()
	if err != nil {
		return nil, err
	}
	s := &sampler{pool: p, samples: samples}
	if adapterDir == "" {
		return s, nil
	}
	if s.weights, err = samples.Load(adapterDir); err != nil {
		return nil, err
	}
	if err := p.reserve(s.weights.Bytes()); err != nil {
		return nil, err
	}
	return s, nil
}

// startSamples returns the scheduler of samples, which it starts for the first sampler.
func (p *Pool) startSamples() (*serve.Samples, error) {
	p.sampling.Lock()
	defer p.sampling.Unlock()
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return nil, errClosed()
	}
	if p.samples == nil {
		p.samples = serve.NewSamples(p.net, p.hash, p.tokenizer, p.stopTokens, serve.Options{
			Parallelism: p.workers, Slots: sampleSlots, CacheBytes: p.sampleBytes, ContextLength: p.maxTokens,
		})
	}
	return p.samples, nil
}

// Sample implements engines.TrainSampler.
func (s *sampler) Sample(ctx context.Context, request engines.TrainSampleRequest) (
	result engines.TrainSamples, err error,
) {
	defer recovered(&err)
	if !s.acquire() {
		return result, domain.Errorf(domain.FailedPrecondition, "the sampler is closed")
	}
	defer s.leave()
	return s.samples.Sample(ctx, s.weights, request)
}

// Close implements engines.TrainSampler.
func (s *sampler) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.free()
	}
	return nil
}

func (s *sampler) acquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.calls++
	return true
}

func (s *sampler) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls--
	s.free()
}

// free frees the memory of the adapter after the last call of a closed sampler. s.mu is locked.
func (s *sampler) free() {
	if s.closed && s.calls == 0 && s.weights != nil {
		s.pool.release(s.weights.Bytes())
		s.weights = nil
	}
}
