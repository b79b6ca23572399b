package balance

import (
	"slices"
	"sync"
	"time"
)

// Constants of the rules in docs/adr/0080.
const (
	initialRate   = 5600      // prompt tokens per second that a replica is assumed to process at first
	rateShare     = 20        // a measured rate counts for 1/rateShare of the new estimate
	minRateTokens = 2048      // requests with fewer tokens ahead of them do not measure the rate
	minRate       = 50        // lowest estimate of a rate, in tokens per second
	maxRate       = 4_000_000 // highest estimate
	initialBlocks = 4096      // assumed size of the cache of a replica that reports none, in blocks
	minBlocks     = 64        // lowest estimate of the size of a cache
	maxBlocks     = 65536     // highest estimate of the size of a cache, and maximum length of a replica's block list
	blocksGained  = 8         // added to the estimated size after a correct prediction
	blocksLost    = 50        // 1/blocksLost of the estimated size is removed after a wrong prediction
	requestTokens = 16        // delay by a request in progress, in prompt tokens
	slotTokens    = 4096      // delay by each request that must end before the next one begins, in prompt tokens

	sessionTime = time.Second // maximum delay for which a request stays on its session's replica
)

// A Balancer predicts the state of the replicas of one deployment from what it sent to them, from
// what their responses say, and from their reports. Its methods may be called concurrently. Times
// are durations since any fixed point in time, and must not decrease.
type Balancer struct {
	mu         sync.Mutex
	index      map[string]int // by replica ID
	replicas   []replicaState
	unused     []int  // indexes of removed replicas
	generation uint64 // generation of the replica that was added last
	prefixes   prefixes
	announce   func(SentPrompt)

	refreshAt time.Duration // when refresh compares the replicas next
	buffer    []int64       // of refresh

	counts   []int32 // buffers of Choose
	matching replicaSet
	hints    []int // by candidate: index of the replica in the last choice
}

// A replicaState is the predicted state of a replica. The fields that each choice reads come first,
// in one line of the processor's cache.
type replicaState struct {
	id       string
	idleAt   time.Duration // when it will have processed all prompts that were sent to it
	speed    int64         // rate in prompt tokens per 2^30 nanoseconds, to avoid a division
	reported time.Duration // Candidate.ReportTime of the last report
	slow     bool          // slowness.extra is not 0
	broken   bool          // the breaker is open or half-open

	idle          time.Duration // predicted total time in which it had no prompt to process
	rate          int64         // prompt tokens per 1,000 seconds; see setRate
	reportsSize   bool          // the replica reports the size of its cache
	reportsCached bool          // a response of the replica has reported cached tokens
	generation    uint64        // distinguishes replicas with the same ID
	lastToken     time.Duration // when it last began to answer a request
	waiting       []*InFlight   // requests of this gateway without a first token, in the order in which they were sent

	slowness slowness
	breaker  breaker
	loads    map[string]time.Duration // by addon: when a request of a gateway made the replica load it
}

// New returns a Balancer without replicas. It calls announce, which may be nil, for each prompt
// that is sent, so that other gateways can record it.
func New(announce func(SentPrompt)) *Balancer {
	return &Balancer{index: map[string]int{}, prefixes: prefixes{holders: map[uint64]*replicaSet{}},
		announce: announce}
}

// A Candidate is a replica that may answer a request.
type Candidate struct {
	ID       string
	Requests int // number of requests in progress on the replica, or in its queue
	Slots    int // number of requests that it serves concurrently; 0 if unknown
	// AddonLoad is how long the replica takes to load the request's addon before it can answer; 0 if
	// the addon is loaded or the request has none.
	AddonLoad   time.Duration
	AddonQueued bool // other requests wait until the replica has loaded the addon
	// Report is the last report of the replica, and ReportTime the time at which it arrived, which is
	// later than 0; 0 if there is none. Each report is applied once.
	Report     Report
	ReportTime time.Duration
}

// A Query asks for a replica that answers a request.
type Query struct {
	Prompt     Prompt
	Addon      string // ID of the addon; "" if there is none
	Candidates []Candidate
	Planned    []int64 // by candidate: prompt tokens that earlier requests will add to its replica; may be nil
	// Session is the ID of the candidate that answers the other requests of the session; "" if there
	// is none. That candidate is chosen unless another one would answer earlier by more than
	// sessionTime.
	Session string
}

// A Choice is a chosen replica, and why it was chosen.
type Choice struct {
	Candidate int    // index in the candidates
	Reason    string // ReasonTokens or ReasonSession
	Pending   int64  // prompt tokens that the replica must process first
	Cached    int64  // tokens of the prompt that the replica is predicted to have cached
	Uncached  int64  // other tokens of the prompt
	Load      int64  // load time of the addon, in prompt tokens
	Busy      int64  // delay by the requests in progress, in prompt tokens
	Full      bool   // the request must wait until another one on the replica ends
	Slow      int64  // delay because the replica is slower than the others, in prompt tokens
	Probe     bool   // the request tests whether the replica works again: its circuit breaker is half-open
	Forced    bool   // the circuit breakers of all candidates are open

	addon string // ID of the addon that the replica must load; "" if there is none
}

// Reasons of a choice.
const (
	ReasonTokens  = "tokens"  // the replica has the lowest score
	ReasonSession = "session" // it answers the other requests of the session
)

// Score is the number of prompt tokens that the replica could process before it answers. The lowest
// score wins.
func (c Choice) Score() int64 { return c.Pending + c.Uncached + c.Load + c.Busy + c.Slow }

// Choose returns the candidate with the lowest score, and of candidates with equal scores the one
// with the lowest ID. Candidates whose circuit breaker is open are not chosen, unless it is open
// for all of them. Choose returns false if there are no candidates.
func (b *Balancer) Choose(now time.Duration, q Query) (Choice, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := len(b.replicas) + len(q.Candidates) // score adds unknown candidates
	b.counts = slices.Grow(b.counts[:0], known)[:known]
	clear(b.counts)
	for len(b.hints) < len(q.Candidates) {
		b.hints = append(b.hints, len(b.hints))
	}
	b.refresh(now)
	b.prefixes.cached(q.Prompt.Blocks, &b.matching, b.counts)
	at, session, sessionScore := -1, -1, int64(0)
	var bestScore int64
	forced := true // the breakers of all candidates so far are open
	for i := range q.Candidates {
		score := b.score(now, &q, i)
		r := &b.replicas[b.hints[i]]
		admitted := !r.broken || r.breaker.admits(now)
		if !admitted && !forced {
			continue
		}
		if admitted && forced {
			at, session, forced = -1, -1, false
		}
		if q.Session != "" && q.Candidates[i].ID == q.Session {
			session, sessionScore = i, score
		}
		if at < 0 || score < bestScore || score == bestScore && q.Candidates[i].ID < q.Candidates[at].ID {
			at, bestScore = i, score
		}
	}
	if at < 0 {
		return Choice{}, false
	}
	reason := ReasonTokens
	if session >= 0 && sessionScore-bestScore <= b.replicas[b.hints[session]].tokensIn(sessionTime) {
		at, reason = session, ReasonSession
	}
	best := b.choice(now, &q, at)
	best.Reason, best.Forced = reason, forced
	return best, true
}

// score returns the score of one candidate.
func (b *Balancer) score(now time.Duration, q *Query, i int) int64 {
	candidate := &q.Candidates[i]
	at := b.hints[i]
	if at >= len(b.replicas) || b.replicas[at].id != candidate.ID {
		at = b.indexOf(candidate.ID)
		b.hints[i] = at
	}
	r := &b.replicas[at]
	if candidate.ReportTime > r.reported {
		r.reported = candidate.ReportTime
		b.report(now, at, candidate.Report)
	}
	tokens := r.pending(now) + max(0, q.Prompt.Tokens-int64(b.counts[at])*BlockTokens)
	if q.Planned != nil {
		tokens += q.Planned[i]
	}
	score := tokens + candidate.delay()
	if r.slow {
		score += r.extra(tokens)
	}
	if candidate.AddonLoad > 0 {
		score += r.tokensIn(r.addonDelay(now, q.Addon, candidate))
	}
	return score
}

// delay returns the delay by the requests in progress, in prompt tokens.
func (c *Candidate) delay() int64 {
	delay := int64(c.Requests) * requestTokens
	if c.full() {
		delay += int64(c.Requests-c.Slots+1) * slotTokens
	}
	return delay
}

// full reports whether a further request must wait until another one ends.
func (c *Candidate) full() bool { return c.Slots > 0 && c.Requests >= c.Slots }

// choice returns the details of the score of one candidate.
func (b *Balancer) choice(now time.Duration, q *Query, i int) Choice {
	at, candidate := b.hints[i], &q.Candidates[i]
	r := &b.replicas[at]
	c := Choice{Candidate: i, Pending: r.pending(now), Busy: candidate.delay(), Full: candidate.full(),
		Cached: min(int64(b.counts[at])*BlockTokens, q.Prompt.Tokens), Probe: r.broken && r.breaker.admits(now),
		Load: r.tokensIn(r.addonDelay(now, q.Addon, candidate))}
	c.Uncached = q.Prompt.Tokens - c.Cached
	if q.Planned != nil {
		c.Pending += q.Planned[i]
	}
	if candidate.AddonLoad > 0 {
		c.addon = q.Addon
	}
	c.Slow = r.extra(c.Pending + c.Uncached)
	return c
}

// indexOf returns the index of a replica. It adds the replica if it is unknown.
func (b *Balancer) indexOf(id string) int {
	if at, ok := b.index[id]; ok {
		return at
	}
	at := len(b.replicas)
	if n := len(b.unused); n > 0 {
		at, b.unused = b.unused[n-1], b.unused[:n-1]
	} else {
		b.replicas = append(b.replicas, replicaState{})
		b.prefixes.lists = append(b.prefixes.lists, blockList{})
	}
	b.generation++
	b.replicas[at] = replicaState{id: id, generation: b.generation, slowness: slowness{slow: slowOne}}
	b.replicas[at].setRate(1000 * b.typicalRate())
	b.prefixes.lists[at] = newBlockList(initialBlocks)
	b.index[id] = at
	return at
}

// typicalRate returns the median rate of the known replicas in tokens per second.
func (b *Balancer) typicalRate() int64 {
	rates := make([]int64, 0, len(b.index))
	for _, at := range b.index {
		rates = append(rates, b.replicas[at].rate)
	}
	if len(rates) == 0 {
		return initialRate
	}
	slices.Sort(rates)
	return max(minRate, rates[len(rates)/2]/1000)
}

// Keep forgets all replicas that are not in ids.
func (b *Balancer) Keep(ids []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := make(map[string]bool, len(ids))
	for _, id := range ids {
		kept[id] = true
	}
	for id, at := range b.index {
		if !kept[id] {
			b.prefixes.clear(at)
			b.replicas[at] = replicaState{}
			delete(b.index, id)
			b.unused = append(b.unused, at)
		}
	}
	slices.Sort(b.unused) // the order of a map must not decide which index is used next
}

// pending returns the number of prompt tokens that a replica must process before a new request.
func (r *replicaState) pending(now time.Duration) int64 { return r.tokensIn(r.idleAt - now) }

// tokensIn returns the number of prompt tokens that a replica processes in a time.
func (r *replicaState) tokensIn(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64(d) >> 10 * r.speed >> 20
}

func (r *replicaState) setRate(rate int64) {
	r.rate = min(max(minRate*1000, rate), maxRate*1000)
	r.speed = r.rate * (1 << 30) / 1_000_000_000_000
}

// timeOf returns the time in which a replica processes a number of prompt tokens.
func (r *replicaState) timeOf(tokens int64) time.Duration {
	return time.Duration(tokens*1_000_000/(r.rate/1000)) * time.Microsecond
}

// wake ends the predicted idle time of a replica, if it has no prompt to process now.
func (r *replicaState) wake(now time.Duration) {
	if now > r.idleAt {
		r.idle += now - r.idleAt
		r.idleAt = now
	}
}

// shift moves the time at which a replica will have processed its prompts by d, and also the
// predicted first tokens of the requests that were sent at the time begin or later.
func (r *replicaState) shift(d, begin time.Duration) {
	r.idleAt += d
	for _, s := range r.waiting {
		if s.at >= begin {
			s.predicted += d
		}
	}
}

// delay moves the predictions of the request s and of later ones by d > 0. Predicted idle time of
// the replica since s was sent absorbs a part of d.
func (r *replicaState) delay(s *InFlight, d time.Duration) {
	used := min(d, r.idle-s.idle)
	r.idleAt += d - used
	r.idle -= used
	for _, other := range r.waiting {
		if other.at >= s.at {
			used := min(d, max(0, other.idle-s.idle))
			other.predicted += d - used
			other.idle -= used
		}
	}
}

// A Report is the state that a replica reports.
type Report struct {
	PendingTokens int64         // prompt tokens that it has not processed; -1 if unknown
	CacheBlocks   int64         // size of its cache of prompts in blocks; 0 if unknown
	Age           time.Duration // time since the replica had this state
}

// maxPending is the maximum number of pending tokens of a report that counts.
const maxPending = 1 << 32

// Report corrects the predicted state of a replica.
func (b *Balancer) Report(now time.Duration, id string, report Report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.report(now, b.indexOf(id), report)
}

// report corrects the predicted state of a replica. Requests that were sent after the replica had
// the reported state are added to it.
func (b *Balancer) report(now time.Duration, at int, report Report) {
	r := &b.replicas[at]
	if report.PendingTokens >= 0 {
		idleAt := now - report.Age + r.timeOf(min(report.PendingTokens, maxPending))
		for _, s := range r.waiting {
			if s.at > now-report.Age {
				idleAt = max(idleAt, s.at) + s.work
			}
		}
		r.wake(now)
		r.shift(max(idleAt, now)-r.idleAt, -1)
	}
	if report.CacheBlocks > 0 {
		r.reportsSize = true
		b.prefixes.lists[at].limit = int(min(report.CacheBlocks, maxBlocks))
		b.prefixes.shrink(at)
	}
}

// A SentPrompt is a prompt that a gateway sent to a replica. Gateways announce the prompts that
// they send to one another, so that each of them predicts the state of all replicas.
type SentPrompt struct {
	Replica  string
	Uncached int64 // tokens that the replica must process
	Blocks   []uint64
	Addon    string        // ID of the addon that the replica must load; "" if there is none
	Age      time.Duration // time since the prompt was sent
}

// Record records a prompt that another gateway sent.
func (b *Balancer) Record(now time.Duration, sent SentPrompt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := b.indexOf(sent.Replica)
	r := &b.replicas[at]
	r.wake(now)
	r.shift(r.timeOf(sent.Uncached), now-sent.Age)
	b.prefixes.use(at, sent.Blocks)
	if sent.Addon != "" {
		r.loadAddon(now-sent.Age, sent.Addon)
	}
}
