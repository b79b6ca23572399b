package balance

import (
	"slices"
	"time"
)

// A Sent is a request in progress on a replica.
type Sent struct {
	balancer  *Balancer
	id        string
	prompt    Prompt
	choice    Choice
	at        time.Duration // when it was sent
	predicted time.Duration // predicted time of its first token
	begun     bool
}

// Send records that a request is sent to the chosen replica.
func (b *Balancer) Send(now time.Duration, id string, p Prompt, c Choice) *Sent {
	b.mu.Lock()
	at := b.of(id)
	r := &b.replicas[at]
	r.idleAt = max(r.idleAt, now) + r.timeOf(c.Uncached+c.Load)
	b.prefixes.use(at, p.Blocks)
	s := &Sent{balancer: b, id: id, prompt: p, choice: c, at: now, predicted: r.idleAt}
	r.waiting = append(r.waiting, s)
	b.mu.Unlock()
	if b.notes != nil {
		b.notes(Note{Replica: id, Uncached: c.Uncached, Blocks: p.Blocks})
	}
	return s
}

// FirstToken records the time of the first token of the response. The difference from the predicted
// time corrects the predicted state of the replica.
func (s *Sent) FirstToken(now time.Duration) {
	b := s.balancer
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.index[s.id]
	if !ok || s.begun {
		return
	}
	r := &b.replicas[at]
	r.begin(s)
	r.shift(now-s.predicted, s.at)
	if tokens := s.choice.Score(); tokens >= minRateTokens && now > s.at {
		measured := tokens * 1_000_000 / int64(max(1, (now-s.at)/time.Microsecond)) * 1000
		r.setRate(r.rate + (measured-r.rate)/rateShare)
	}
}

// End records how many tokens of the prompt the replica had cached; -1 if it does not say.
func (s *Sent) End(cached int64) {
	b := s.balancer
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.index[s.id]
	if !ok || cached < 0 {
		return
	}
	list := &b.prefixes.lists[at]
	if b.replicas[at].reported {
		return
	}
	switch {
	case cached+BlockTokens < s.choice.Cached: // the cache is smaller than predicted
		list.limit = max(minBlocks, list.limit-list.limit/blocksLost)
	case s.choice.Cached > 0:
		list.limit = min(maxBlocks, list.limit+blocksGained)
	}
	b.prefixes.shrink(at)
}

// Fail records that the replica did not answer the request, so that it no longer waits for it.
func (s *Sent) Fail(now time.Duration) {
	b := s.balancer
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.index[s.id]
	if !ok || s.begun {
		return
	}
	r := &b.replicas[at]
	r.begin(s)
	r.shift(-r.timeOf(s.choice.Uncached+s.choice.Load), s.at)
}

// begin removes a request from those that have no first token.
func (r *replica) begin(s *Sent) {
	s.begun = true
	r.waiting = slices.DeleteFunc(r.waiting, func(other *Sent) bool { return other == s })
}
