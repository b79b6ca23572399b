package train

import (
	"context"
	"slices"
	"sync"

	"anneal/engines"
)

// A generation is a chunk that is generated while earlier chunks are trained on. Chunk n is generated
// by the policy that was trained on the chunks before n−MaxStaleness, so the result of a training
// depends on MaxStaleness, but not on how long generating and training take.
type generation struct {
	number  int       // number of the chunk
	policy  int       // number of chunks that the policy was trained on
	weights []float32 // trained parameters of the policy

	sampled chan struct{} // closed when all responses are complete, or the generation has ended
	done    chan struct{} // closed when chunk and err are valid; nil before the generation has begun
	// chunk is the result, and err the error of the generation.
	chunk *chunk
	err   error
}

// stale reports whether a training with these settings trains on responses of earlier policies.
func stale(s engines.TrainSettings) bool { return s.Rollouts != nil && s.Rollouts.MaxStaleness > 0 }

// policyCopies returns the number of copies of the trained parameters that settings need for
// generations: their policies, and the model that computes log-probabilities, packed twice.
func policyCopies(settings engines.TrainSettings) int {
	if !stale(settings) {
		return 0
	}
	return settings.Rollouts.MaxStaleness + 1 + 3
}

// generateAhead begins to generate the chunks that the current policy has to generate, and those that
// a checkpoint had not completed. It does nothing without MaxStaleness.
func (r *rollouts) generateAhead(ctx context.Context) {
	if !stale(r.settings) {
		return
	}
	if r.left() == 0 {
		last := min(r.state.Chunk+r.settings.Rollouts.MaxStaleness, r.settings.Epochs*r.chunks()-1)
		var weights []float32
		for n := r.state.Chunk + len(r.ahead); n <= last; n++ {
			if weights == nil {
				weights = slices.Clone(r.loop.Net.Trained())
			}
			r.ahead = append(r.ahead, &generation{number: n, policy: r.state.Chunk, weights: weights})
		}
	}
	if r.cancel == nil {
		r.life, r.cancel = context.WithCancel(ctx)
	}
	for i, g := range r.ahead {
		if g.done != nil {
			continue
		}
		g.sampled, g.done = make(chan struct{}), make(chan struct{})
		var predecessor <-chan struct{}
		if i > 0 {
			predecessor = r.ahead[i-1].sampled
		}
		go g.run(r, predecessor)
	}
}

// run generates the chunk. It first waits until the responses of the generation that precedes it are
// complete, even if they are not all scored: until predecessor is closed, unless it is nil.
func (g *generation) run(r *rollouts, predecessor <-chan struct{}) {
	defer close(g.done)
	sampled := sync.OnceFunc(func() { close(g.sampled) })
	defer sampled()
	if predecessor != nil {
		<-predecessor
	}
	g.err = recovered(func() (err error) {
		if err := r.life.Err(); err != nil {
			return err
		}
		loop := func() (*Loop, func()) { return r.frozen.use(g.weights) }
		if g.chunk, err = r.newChunk(r.life, &policy{loop, sampled}, g.number); err == nil {
			g.chunk.policy = g.policy
		}
		return err
	})
}

// A policy is the model that generates a chunk.
type policy struct {
	// loop returns a loop with the weights of the policy, for use until done is called.
	loop    func() (l *Loop, done func())
	sampled func() // is called when all responses are complete
}

// policyOf returns the policy that l trains.
func policyOf(l *Loop) *policy {
	return &policy{func() (*Loop, func()) { return l, func() {} }, func() {}}
}

// start starts n replicas of the policy, which keep its weights.
func (p *policy) start(r *rollouts, n int) ([]engines.Model, error) {
	loop, done := p.loop()
	defer done()
	return r.startReplicas(loop.Net, n)
}

// A frozenPolicy has the weights of one policy at a time. It can compute log-probabilities, but cannot
// train.
type frozenPolicy struct {
	mu   sync.Mutex
	loop *Loop
}

func newFrozenPolicy(l *Loop, temperature float64) *frozenPolicy {
	frozen := newEvalLoop(l.Net.Frozen(l.workers), l.workers)
	frozen.setTemperature(temperature)
	return &frozenPolicy{loop: frozen}
}

// use returns a loop with these weights, for use until done is called.
func (f *frozenPolicy) use(weights []float32) (l *Loop, done func()) {
	f.mu.Lock()
	copy(f.loop.Net.Trained(), weights)
	f.loop.Net.Pack(f.loop.workers)
	return f.loop, f.mu.Unlock
}

// nextChunk returns the chunk that is trained on next. It waits until the chunk is generated.
func (r *rollouts) nextChunk(ctx context.Context) (*chunk, error) {
	if !stale(r.settings) {
		return r.newChunk(ctx, policyOf(r.loop), r.state.Chunk)
	}
	g := r.ahead[0]
	select {
	case <-g.done:
		return g.chunk, g.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// completed reports whether the chunk is generated and can be trained on.
func (g *generation) completed() bool {
	if g.done == nil {
		return false
	}
	select {
	case <-g.done:
		return g.err == nil && g.chunk.err == nil
	default:
		return false
	}
}

// stopGenerations cancels the generations of a procedure, and waits until they have ended.
func stopGenerations(p procedure) {
	r, ok := p.(*rollouts)
	if !ok || r.cancel == nil {
		return
	}
	r.cancel()
	for _, g := range r.ahead {
		if g.done != nil {
			<-g.done
		}
	}
}
