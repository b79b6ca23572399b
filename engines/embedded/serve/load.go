package serve

import (
	"context"

	"anneal/engines"
)

// the agent detects models that report their load by a type assertion
var _ engines.LoadReporter = (*model)(nil)

// Load implements engines.LoadReporter. The scheduler computes the load between two steps, so the
// numbers are exact. Those of other weights (LoadWeights) are added, except for the KV cache, of
// which the largest counts.
func (m *model) Load(ctx context.Context) (engines.ModelLoad, error) {
	reply := make(chan engines.ModelLoad, 1)
	m.mu.Lock()
	m.loadCalls = append(m.loadCalls, reply)
	var variants []*model
	for _, v := range m.variants {
		variants = append(variants, v.model)
	}
	m.mu.Unlock()
	m.signal()
	var load engines.ModelLoad
	select {
	case load = <-reply:
	case <-m.done:
		return engines.NoLoad(), errClosed()
	case <-ctx.Done():
		return engines.NoLoad(), ctx.Err()
	}
	for _, v := range variants {
		other, err := v.Load(ctx)
		if err != nil {
			return engines.NoLoad(), err
		}
		load.PendingTokens += other.PendingTokens
		load.Running += other.Running
		load.Waiting += other.Waiting
		load.CacheUsed += other.CacheUsed
		load.CacheTokens = max(load.CacheTokens, other.CacheTokens)
	}
	return load, nil
}

// reportLoad replies to the calls of Load.
func (s *scheduler) reportLoad() {
	m := s.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.loadCalls) == 0 {
		return
	}
	load := engines.ModelLoad{Running: int64(len(s.running)), CacheTokens: int64(s.pool.maxBlocks) * blockTokens,
		CacheUsed: int64(s.pool.allocated-len(s.pool.free)-s.pool.lru.Len()) * blockTokens}
	for _, r := range s.running {
		load.PendingTokens += int64(len(r.prompt) - r.read)
	}
	for _, r := range m.waiting {
		if !r.canceled() {
			load.Waiting++
			load.PendingTokens += int64(len(r.prompt) - s.pool.cachedTokens(r))
		}
	}
	for _, reply := range m.loadCalls {
		reply <- load
	}
	m.loadCalls = nil
}

// cachedTokens returns the number of prompt tokens of a request that has not started whose blocks are
// in the prefix cache.
func (p *pool) cachedTokens(r *request) int {
	c := &cache{}
	for at := 0; at+blockTokens <= r.reusable(); at += blockTokens {
		b := p.index[c.nextKey(len(c.blocks), r, r.prompt[at:at+blockTokens])]
		if b == nil {
			break
		}
		c.blocks = append(c.blocks, b)
	}
	return len(c.blocks) * blockTokens
}
