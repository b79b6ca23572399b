package balance

import (
	"slices"
	"time"
)

// An InFlight is a request in progress on a replica.
type InFlight struct {
	balancer   *Balancer
	id         string
	prompt     Prompt
	choice     Choice
	at         time.Duration // when it was sent
	predicted  time.Duration // predicted time of its first token
	work       time.Duration // predicted time in which the replica processes its prompt
	idle       time.Duration // idle of the replica when the request was sent
	expected   time.Duration // predicted time to the first token when the request was sent
	generation uint64        // generation of the replica
	begun      bool          // the request has its first token, or has failed
	overtaken  bool          // a request that was sent later had its first token earlier
}

// replica returns the index of the replica; false if the replica was removed.
func (s *InFlight) replica() (at int, ok bool) {
	at, ok = s.balancer.index[s.id]
	return at, ok && s.balancer.replicas[at].generation == s.generation
}

// Send records that a request is sent to the chosen replica.
func (b *Balancer) Send(now time.Duration, id string, p Prompt, c Choice) *InFlight {
	b.mu.Lock()
	at := b.indexOf(id)
	r := &b.replicas[at]
	r.wake(now)
	work := r.timeOf(c.Uncached)
	r.idleAt += work
	b.prefixes.use(at, p.Blocks)
	s := &InFlight{balancer: b, id: id, prompt: p, choice: c, at: now, predicted: r.idleAt, work: work, idle: r.idle,
		generation: r.generation, expected: r.idleAt - now}
	r.breaker.send(now, s)
	if c.addon != "" {
		r.loadAddon(now, c.addon)
	}
	// a request that waits for its addon delays no other, and its first token does not say when the
	// replica has processed the others
	if c.Load == 0 {
		r.waiting = append(r.waiting, s)
	}
	b.mu.Unlock()
	if b.announce != nil {
		b.announce(SentPrompt{Replica: id, Uncached: c.Uncached, Blocks: p.Blocks, Addon: c.addon})
	}
	return s
}

// FirstToken records the time of the first token of the response. The difference from the predicted
// time corrects the predicted state of the replica.
func (s *InFlight) FirstToken(now time.Duration) {
	b := s.balancer
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := s.replica()
	if !ok || s.begun {
		return
	}
	r := &b.replicas[at]
	r.lastToken = now
	r.breaker.succeed()
	r.broken = false
	if s.choice.Load > 0 {
		s.begun = true
		return
	}
	overtakes := r.overtake(s)
	r.begin(s)
	if !s.choice.Full && !overtakes {
		r.measureLag(s.expected, now-s.at)
	}
	switch d := now - s.predicted; {
	case d < 0 && overtakes: // the replica must still process earlier requests
		r.shift(-s.remaining(now), s.at)
	case d < 0:
		r.shift(d, s.at)
	case !s.overtaken:
		r.delay(s, d)
	}
	if tokens := s.choice.Pending + s.choice.Uncached; tokens >= minRateTokens && now > s.at &&
		!s.choice.Full && !overtakes {
		measured := tokens * 1_000_000 / int64(max(1, (now-s.at)/time.Microsecond)) * 1000
		r.setRate(r.rate + (measured-r.rate)/rateShare)
	}
}

// End records how many tokens of the prompt the replica had cached; -1 if the replica does not
// report the number. Engines that do not count cached tokens report 0, so End ignores 0 until the
// replica has reported more.
func (s *InFlight) End(cached int64) {
	b := s.balancer
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := s.replica()
	if !ok || cached < 0 {
		return
	}
	list, r := &b.prefixes.lists[at], &b.replicas[at]
	r.reportsCached = r.reportsCached || cached > 0
	if r.reportsSize || !r.reportsCached {
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

// Fail records that the replica did not answer the request, and that this is a fault of the
// replica. Fail removes the part of the prompt that the replica, by the prediction, has not
// processed yet. opened reports whether the failure opened the circuit breaker of the replica.
func (s *InFlight) Fail(now time.Duration) (opened bool) {
	b := s.balancer
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := s.replica()
	if !ok || s.begun {
		return false
	}
	return s.fail(&b.replicas[at], now)
}

func (s *InFlight) fail(r *replicaState, now time.Duration) (opened bool) {
	s.drop(r, now)
	opened = r.breaker.fail(now, s)
	r.broken = r.breaker.opened
	return opened
}

// Cancel is like Fail for a request that the client has canceled, or that the replica refused for a
// reason that does not mean that the replica fails. It counts as a failure only if the replica
// hangs.
func (s *InFlight) Cancel(now time.Duration) (opened bool) {
	b := s.balancer
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := s.replica()
	if !ok || s.begun {
		return false
	}
	r := &b.replicas[at]
	if s.hangs(r, now) {
		return s.fail(r, now)
	}
	s.drop(r, now)
	r.breaker.cancel(s)
	return false
}

// hangs reports whether the replica has had far more time for the request's first token than
// predicted, and has begun to answer no other request meanwhile. Requests without prompt tokens,
// such as recordings, have no first token.
func (s *InFlight) hangs(r *replicaState, now time.Duration) bool {
	return s.prompt.Tokens > 0 && s.choice.Load == 0 && now-s.at > max(hangTime, hangFactor*s.expected) &&
		r.lastToken < s.at
}

// drop removes the request from the predicted state of a replica.
func (s *InFlight) drop(r *replicaState, now time.Duration) {
	r.begin(s)
	r.shift(-s.remaining(now), s.at)
}

// remaining returns the part of work that is predicted to remain at the time now.
func (s *InFlight) remaining(now time.Duration) time.Duration {
	return min(s.work, max(0, s.predicted-now))
}

// overtake marks the waiting requests that were sent before s as overtaken, and reports whether
// there are any.
func (r *replicaState) overtake(s *InFlight) (overtakes bool) {
	for _, other := range r.waiting {
		if other == s {
			break
		}
		other.overtaken, overtakes = true, true
	}
	return overtakes
}

// begin marks a request as begun, and removes it from the requests without a first token.
func (r *replicaState) begin(s *InFlight) {
	s.begun = true
	r.waiting = slices.DeleteFunc(r.waiting, func(other *InFlight) bool { return other == s })
}
