package twin

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"slices"
	"time"

	"anneal/api/routing/admission"
	"anneal/api/routing/balance"
)

// Options describe a simulation.
type Options struct {
	Trace    []TraceRequest
	Speed    float64 // requests arrive this many times faster than in the trace
	Profile  Profile
	Replicas int
	Policy   Policy
	Gateways int // number of gateways, which get the requests in turn; 0 means 1
	Slots    int // maximum number of requests that a gateway's queue sends to a replica; 0 means 64
	// Reports states that replicas report their pending prompt tokens and the size of their cache.
	Reports bool
	// AnnounceDelay is the time after which gateways learn of one another's requests; 0 means never.
	AnnounceDelay time.Duration
}

// A Policy chooses replicas.
type Policy string

// The policies. PolicyRoundRobin and PolicyFewestRequests are for comparison.
const (
	PolicyRoundRobin     Policy = "round-robin"
	PolicyFewestRequests Policy = "fewest-requests"
	PolicyTokens         Policy = "tokens" // the fewest pending and uncached prompt tokens
	PolicyQueue          Policy = "queue"  // the same, with a queue at the gateway
)

// Policies are all policies.
var Policies = []Policy{PolicyRoundRobin, PolicyFewestRequests, PolicyTokens, PolicyQueue}

// reportInterval is the time between two reports of a replica.
const reportInterval = 2 * time.Second

// An event of the simulation happens at a time. Events of the same time happen in the order in
// which they were scheduled.
type event struct {
	at  time.Duration
	seq int
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

// A simulation is a run of one policy.
type simulation struct {
	Options
	now        time.Duration
	seq        int
	events     events
	engines    []*engine
	replicas   []balance.Candidate
	gateways   []*gateway
	requests   []*request
	unfinished int // requests that have not ended
}

// A gateway simulates a gateway, which sends each request to a replica.
type gateway struct {
	s        *simulation
	balancer *balance.Balancer
	queue    *admission.Queue
	waiting  map[uint64]*request // by ID in the queue
	pending  []int64             // by replica: prompt tokens of requests that were sent and have no first token
	inFlight []int               // by replica
	turn     int                 // counter of PolicyRoundRobin and PolicyFewestRequests

	candidates []balance.Candidate
}

// Run simulates a trace, and returns the result. Equal options give equal results. Run returns an
// error when ctx is done.
func Run(ctx context.Context, o Options) (Result, error) {
	if o.Replicas < 1 || o.Speed <= 0 || len(o.Trace) == 0 {
		return Result{}, fmt.Errorf("a simulation needs at least one replica, a positive speed and a trace with requests")
	}
	o.Slots = cmp.Or(o.Slots, 64)
	s := &simulation{Options: o, unfinished: len(o.Trace)}
	for i := range o.Replicas {
		s.engines = append(s.engines, newEngine(o.Profile))
		s.replicas = append(s.replicas, balance.Candidate{ID: fmt.Sprintf("r%04d", i)})
	}
	for range max(1, o.Gateways) {
		g := &gateway{s: s, inFlight: make([]int, o.Replicas), pending: make([]int64, o.Replicas),
			queue: admission.NewQueue(), waiting: map[uint64]*request{}, candidates: slices.Clone(s.replicas)}
		g.balancer = balance.New(func(sent balance.SentPrompt) { s.announce(g, sent) })
		s.gateways = append(s.gateways, g)
	}
	for i, t := range o.Trace {
		r := &request{arrival: time.Duration(float64(t.Time) / o.Speed), account: t.Account, prompt: t.Prompt,
			output: t.Output}
		if blocks := int64(len(t.Prompt.Blocks)) + r.privateBlocks(); blocks > o.Profile.CacheBlocks {
			return Result{}, fmt.Errorf("request %d of the trace needs %d blocks of the cache, which has %d", i+1, blocks,
				o.Profile.CacheBlocks)
		}
		s.requests = append(s.requests, r)
		s.at(r.arrival, func() { s.gateways[i%len(s.gateways)].arrive(r) })
	}
	for i := range s.engines {
		s.at(reportInterval*time.Duration(i)/time.Duration(o.Replicas), func() { s.report(i) })
	}
	for s.unfinished > 0 && ctx.Err() == nil {
		e := heap.Pop(&s.events).(event)
		s.now = e.at
		e.do()
	}
	if s.unfinished > 0 {
		return Result{}, ctx.Err()
	}
	return s.result(), nil
}

func (s *simulation) at(t time.Duration, do func()) {
	s.seq++
	heap.Push(&s.events, event{t, s.seq, do})
}

// announce informs the other gateways of a prompt that one gateway sent.
func (s *simulation) announce(from *gateway, sent balance.SentPrompt) {
	if s.AnnounceDelay <= 0 {
		return
	}
	sent.Age = s.AnnounceDelay
	for _, g := range s.gateways {
		if g != from {
			s.at(s.now+s.AnnounceDelay, func() { g.balancer.Record(s.now, sent) })
		}
	}
}

func (s *simulation) report(i int) {
	report := balance.Report{PendingTokens: -1}
	if s.Reports {
		report = balance.Report{PendingTokens: s.engines[i].pending(), CacheBlocks: s.Profile.CacheBlocks}
	}
	for _, g := range s.gateways {
		g.balancer.Report(s.now, s.replicas[i].ID, report)
		g.dispatch()
	}
	s.at(s.now+reportInterval, func() { s.report(i) })
}

func (g *gateway) arrive(r *request) {
	if g.s.Policy != PolicyQueue {
		g.send(r, g.choose(r))
		return
	}
	choice, _ := g.balancer.Choose(g.s.now, g.query(r, nil))
	g.s.seq++
	r.queued = &admission.Request{ID: uint64(g.s.seq), Account: r.account, Prompt: choice.Uncached,
		Answer: expectedAnswer, Arrival: g.s.now}
	g.waiting[r.queued.ID] = r
	g.queue.Add(r.queued)
	g.dispatch()
}

// expectedAnswer is the assumed number of tokens of an answer.
const expectedAnswer = 256

// dispatch sends the requests of the queue that replicas take now.
func (g *gateway) dispatch() {
	if g.s.Policy != PolicyQueue {
		return
	}
	for {
		var choice balance.Choice
		next, _ := g.queue.Next(len(g.inFlight), func(q *admission.Request, planned []int64) admission.Placement {
			choice, _ = g.balancer.Choose(g.s.now, g.query(g.waiting[q.ID], planned))
			i := choice.Candidate
			capacity := g.queue.Capacity(q, g.s.Slots)
			return admission.Placement{Replica: i, Uncached: choice.Uncached,
				Free: g.pending[i] < capacity.PendingTokens && g.inFlight[i] < capacity.Slots}
		})
		if next == nil {
			return
		}
		r := g.waiting[next.ID]
		delete(g.waiting, next.ID)
		g.send(r, choice)
	}
}

// query returns the query for a replica that answers a request. planned is nil or has the planned
// tokens of each replica.
func (g *gateway) query(r *request, planned []int64) balance.Query {
	for i := range g.candidates {
		g.candidates[i].Requests = g.inFlight[i]
	}
	return balance.Query{Prompt: r.prompt, Candidates: g.candidates, Planned: planned}
}

func (g *gateway) choose(r *request) balance.Choice {
	switch g.s.Policy {
	case PolicyRoundRobin:
		g.turn++
		return balance.Choice{Candidate: g.turn % len(g.inFlight)}
	case PolicyFewestRequests:
		g.turn++
		n, best := len(g.inFlight), g.turn%len(g.inFlight)
		for i := range n {
			if at := (g.turn + i) % n; g.inFlight[at] < g.inFlight[best] {
				best = at
			}
		}
		return balance.Choice{Candidate: best}
	}
	choice, _ := g.balancer.Choose(g.s.now, g.query(r, nil))
	return choice
}

func (g *gateway) send(r *request, choice balance.Choice) {
	s, i := g.s, choice.Candidate
	r.gateway, r.dispatch, r.choice = g, s.now, choice
	r.sent = g.balancer.Send(s.now, s.replicas[i].ID, r.prompt, choice)
	g.inFlight[i]++
	g.pending[i] += choice.Uncached
	e := s.engines[i]
	e.waiting = append(e.waiting, r)
	if !e.busy {
		s.step(i)
	}
}

// step runs steps of an engine until it has nothing to do.
func (s *simulation) step(i int) {
	e := s.engines[i]
	if !e.begin(s.now) {
		return
	}
	s.at(e.stepEnd, func() {
		var changed []*gateway
		e.finish(s.now, func(r *request) {
			r.sent.FirstToken(s.now)
			r.gateway.pending[i] -= r.choice.Uncached
			changed = append(changed, r.gateway)
		}, func(r *request) {
			r.sent.End(r.cached)
			if r.queued != nil {
				r.gateway.queue.End(r.queued, r.prompt.Tokens-r.cached, r.output)
			}
			s.unfinished--
			r.gateway.inFlight[i]--
			changed = append(changed, r.gateway)
		})
		e.busy = true // requests that dispatch sends wait for the step below
		for _, g := range slices.Compact(changed) {
			g.dispatch()
		}
		s.step(i)
	})
}
