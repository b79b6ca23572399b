package balance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A pool simulates replicas that process prompts one after another.
type pool struct {
	t       *testing.T
	b       *Balancer
	all     []Candidate
	rates   []int64         // tokens per second
	lags    []time.Duration // constant part of the time to the first token
	free    []time.Duration // when a replica has processed its prompts
	started []int           // requests that each replica got
	pending []*arrival
}

type arrival struct {
	s       *InFlight
	replica int
	first   time.Duration
}

func (p *pool) run(from, until, every time.Duration, tokens int64) {
	p.started = make([]int, len(p.all))
	for now := from; now < until; now += every {
		kept := p.pending[:0]
		for _, a := range p.pending {
			if a.first > now {
				kept = append(kept, a)
				continue
			}
			a.s.FirstToken(a.first)
			a.s.End(-1)
			p.all[a.replica].Requests--
		}
		p.pending = kept
		prompt := Prompt{Tokens: tokens}
		choice, ok := p.b.Choose(now, Query{Prompt: prompt, Candidates: p.all})
		require.True(p.t, ok)
		i := choice.Candidate
		p.started[i]++
		p.free[i] = max(p.free[i], now) + time.Duration(tokens*int64(time.Second)/p.rates[i])
		p.pending = append(p.pending, &arrival{p.b.Send(now, p.all[i].ID, prompt, choice), i, p.free[i] + p.lags[i]})
		p.all[i].Requests++
	}
}

func newPool(t *testing.T, rates ...int64) *pool {
	p := &pool{t: t, b: New(nil), rates: rates, lags: make([]time.Duration, len(rates)),
		free: make([]time.Duration, len(rates))}
	for i := range rates {
		p.all = append(p.all, Candidate{ID: string(rune('a' + i))})
	}
	return p
}

// TestSlowReplicasGetLess checks that a replica that processes prompts at a quarter of the others'
// rate gets less than a quarter of the requests of another, and as many when it is as fast again.
func TestSlowReplicasGetLess(t *testing.T) {
	p := newPool(t, 2000, 8000, 8000, 8000)
	p.run(0, 2*time.Minute, 200*time.Millisecond, 4000)
	p.run(2*time.Minute, 4*time.Minute, 200*time.Millisecond, 4000)
	assert.Less(t, 4*p.started[0], p.started[1], "%v", p.started)
	assert.Positive(t, p.started[0])
	p.rates[0] = 8000
	p.run(4*time.Minute, 14*time.Minute, 200*time.Millisecond, 4000)
	p.run(14*time.Minute, 16*time.Minute, 200*time.Millisecond, 4000)
	assert.Greater(t, 2*p.started[0], p.started[1], "%v", p.started)
}

// TestLaggingReplicasGetLess checks the same for short requests, which a replica answers later than
// others although it has no prompts to process.
func TestLaggingReplicasGetLess(t *testing.T) {
	p := newPool(t, 8000, 8000, 8000)
	p.lags[0] = 400 * time.Millisecond
	p.run(0, time.Minute, 50*time.Millisecond, 20)
	p.run(time.Minute, 3*time.Minute, 50*time.Millisecond, 20)
	assert.Less(t, 4*p.started[0], p.started[1], "%v", p.started)
	assert.Positive(t, p.started[0], "it is tried from time to time")
	p.lags[0] = 0
	p.run(3*time.Minute, 13*time.Minute, 50*time.Millisecond, 20)
	p.run(13*time.Minute, 15*time.Minute, 50*time.Millisecond, 20)
	assert.Greater(t, 2*p.started[0], p.started[1], "%v", p.started)
}

// TestEqualReplicasAreNotSlow checks that equal replicas have no delay for slowness.
func TestEqualReplicasAreNotSlow(t *testing.T) {
	p := newPool(t, 8000, 8000, 8000, 8000)
	for i := range p.lags {
		p.lags[i] = time.Duration(20+10*i) * time.Millisecond
	}
	p.run(0, 5*time.Minute, 100*time.Millisecond, 2000)
	for _, at := range p.b.index {
		assert.Zero(t, p.b.replicas[at].extra(1000), p.b.replicas[at].id)
	}
}
