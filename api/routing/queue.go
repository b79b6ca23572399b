package routing

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"anneal/api/request"
	"anneal/api/routing/admission"
	"anneal/api/routing/balance"
	"anneal/domain"
	"anneal/projections"
)

// A queue is the admission queue of one deployment at this gateway. It knows the requests that this
// gateway has sent to each replica. A request that a replica takes now passes without waiting;
// others wait in the order of admission.Queue.
type queue struct {
	deployment domain.Name
	created    uint64 // CreateVersion of the deployment
	metrics    *queueMetrics
	begin      time.Time // the times of the admission.Queue are durations since begin

	mu        sync.Mutex
	admission *admission.Queue
	promises  *admission.Promises
	replicas  map[string]*sentLoad
	numbered  []*sentLoad // by number
	waiting   map[uint64]*waiter
	lastID    uint64
	answer    float64 // mean number of tokens of the deployment's answers
	planned   []int64 // of the candidates of one choice
	counts    queueCounts
	reports   int           // number of reports of the queue's length that follow: see Router.QueueLengths
	renewed   time.Duration // when a waiting request last called dispatch
}

// A sentLoad is the load of a replica by the requests of this gateway.
type sentLoad struct {
	number   int // index in queue.numbered
	slots    int // requests that the replica serves concurrently; 0 if it has not reported them
	reported int // requests in progress or queued, by the last report
	inFlight int
	pending  int64 // prompt tokens of requests without a first token
}

// queueCounts count what happened in a queue, by class.
type queueCounts struct {
	admitted, refused, honoured [2]uint64
}

// Constants of the queue.
const (
	initialAnswer = 256 // assumed mean number of tokens of an answer
	answerShare   = 64  // share of one answer in the mean
	maxNumbered   = 64  // replicas beyond those of the deployment that are kept
)

func newQueue(deployment domain.Name, created uint64, metrics *queueMetrics) *queue {
	return &queue{deployment: deployment, created: created, metrics: metrics, begin: time.Now(),
		admission: admission.NewQueue(), promises: admission.NewPromises(), replicas: map[string]*sentLoad{},
		waiting: map[uint64]*waiter{}, answer: initialAnswer}
}

func (q *queue) now() time.Duration { return time.Since(q.begin) }

// A waiter is a request in the queue, and later its place on a replica.
type waiter struct {
	queue    *queue
	state    *sendState
	balancer *balance.Balancer
	clock    func() time.Duration
	request  admission.Request

	// guarded by queue.mu
	query    balance.Query
	ready    []domain.Replica // by candidate
	loads    []*sentLoad      // by candidate
	choice   balance.Choice
	at       time.Duration     // when update last ran
	load     *sentLoad         // replica to which the request was sent; nil before
	sent     *balance.InFlight // nil before
	others   int               // requests in progress on the replica, when the request was sent
	begun    bool              // the replica has begun to answer
	pending  int64             // part of load.pending
	admitted chan struct{}     // closed when the request is sent to a replica; nil if it never waited
}

// errReplicasChanged states that the replicas of a waiting request must be found again.
var errReplicasChanged = errors.New("the replicas have changed")

// admit returns an Attempt on the replica that is predicted to answer the request first, of the
// ready replicas that are not in tried, once the admission queue lets the request pass. It returns
// nil if there is no such replica, and errReplicasChanged if none is left while the request waits.
func (s *sendState) admit(ctx context.Context, row *projections.Row[domain.Deployment], ready []domain.Replica) (
	*Attempt, error) {
	ready = s.untried(ready)
	if len(ready) == 0 {
		return nil, nil
	}
	found, clock := s.router.balancers.of(row, s.c.Now)
	q := found.queue
	w := &waiter{queue: q, state: s, balancer: found.Balancer, clock: clock}
	if s.q.Prompt != nil {
		w.query.Prompt = s.q.Prompt(s.q.Addon)
	}
	w.request = admission.Request{Account: s.c.Principal.Account, Class: s.class, Weight: weightOf(s), Work: s.q.Work}
	begin := time.Now()
	if err := w.enter(ready, begin); err != nil {
		return nil, err
	}
	if w.admitted != nil {
		err := w.wait(ctx)
		s.remainingQueue -= time.Since(begin)
		if err != nil {
			return nil, err
		}
	}
	return w.attempt(), nil
}

// enter sends the request to a replica if one takes it now, and adds it to the queue otherwise.
// Then it sets w.admitted. An error refuses the request.
func (w *waiter) enter(ready []domain.Replica, begin time.Time) error {
	q, s := w.queue, w.state
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lastID++
	w.request.ID = q.lastID
	w.update(ready)
	if s.q.Answer > 0 {
		w.request.Answer = min(s.q.Answer, int64(q.answer))
	}
	choice := w.choose(w.at, nil)
	if w.request.Prompt = w.work(choice); q.admission.Len() == 0 && w.fits(choice) {
		if err := s.c.Admission.Decide(func() error { q.keepPromise(s); return nil }); err != nil {
			return err
		}
		q.admission.Start(&w.request, w.request.Prompt)
		w.send(choice)
		return nil
	}
	if s.arrival.IsZero() {
		s.arrival = begin
	}
	w.request.Arrival, w.request.Added = s.arrival.Sub(q.begin), begin.Sub(q.begin)
	if err := q.enter(w, w.request.Added); err != nil {
		return err
	}
	q.dispatch()
	return nil
}

func (s *sendState) untried(ready []domain.Replica) []domain.Replica {
	return slices.DeleteFunc(ready, func(r domain.Replica) bool { return s.tried[r.ID] })
}

// weightOf returns the queue weight of the caller's account.
func weightOf(s *sendState) int64 {
	account := s.c.Principal.Account
	if row, ok := s.c.World.View().Accounts.Get(domain.NewName(account, "accounts", account)); ok {
		return int64(max(1, row.State.QueueWeight))
	}
	return 1
}

// update sets the replicas that may answer the request, and what they have reported.
func (w *waiter) update(ready []domain.Replica) {
	q, live := w.queue, w.state.c.World.View().Live
	if len(q.numbered) > len(ready)+maxNumbered {
		q.forget()
	}
	w.ready = ready
	w.loads = slices.Grow(w.loads[:0], len(ready))[:0]
	w.at = w.clock()
	w.query.Addon = w.state.q.Addon
	w.query.Candidates = candidates(w.state.c, w.state.q, ready, w.state.router.balancers.start, w.at)
	for _, r := range ready {
		load := q.replicas[r.ID]
		if load == nil {
			load = &sentLoad{number: len(q.numbered)}
			q.replicas[r.ID], q.numbered = load, append(q.numbered, load)
		}
		reported, _ := live.Replica(q.deployment, r.ID)
		load.slots, load.reported = reported.Slots, reported.Active+reported.Queued
		w.loads = append(w.loads, load)
	}
	if session := w.state.q.Session; session != "" {
		w.query.Session = slices.MaxFunc(ready, func(a, b domain.Replica) int {
			return cmp.Compare(affinity(session, a.ID), affinity(session, b.ID))
		}).ID
	}
}

// forget removes the replicas to which no request is sent or waits to be sent.
func (q *queue) forget() {
	used := map[*sentLoad]bool{}
	for _, w := range q.waiting {
		for _, load := range w.loads {
			used[load] = true
		}
	}
	q.numbered = q.numbered[:0]
	for id, load := range q.replicas {
		if load.inFlight == 0 && !used[load] {
			delete(q.replicas, id)
			continue
		}
		load.number = len(q.numbered)
		q.numbered = append(q.numbered, load)
	}
}

// choose returns the best replica for the request. planned is nil or has the planned tokens of each
// replica by its number.
func (w *waiter) choose(at time.Duration, planned []int64) balance.Choice {
	q := w.queue
	w.query.Planned = nil
	if planned != nil {
		q.planned = q.planned[:0]
	}
	for i, load := range w.loads {
		candidate := &w.query.Candidates[i]
		candidate.Slots, candidate.Requests = load.slots, max(load.inFlight, load.reported)
		if planned != nil {
			q.planned = append(q.planned, planned[load.number])
		}
	}
	if planned != nil {
		w.query.Planned = q.planned
	}
	choice, _ := w.balancer.Choose(at, w.query)
	return choice
}

// work returns the number of tokens that a replica must process before it answers.
func (w *waiter) work(choice balance.Choice) int64 { return choice.Uncached + w.state.q.Work }

// fits reports whether the chosen replica takes the request now. A replica that has not reported
// its slots takes each request.
func (w *waiter) fits(choice balance.Choice) bool {
	load := w.loads[choice.Candidate]
	if load.slots <= 0 {
		return true
	}
	w.queue.admission.Prepare(&w.request)
	capacity := w.queue.admission.Capacity(&w.request, load.slots)
	return load.inFlight < capacity.Slots && load.pending < capacity.PendingTokens
}

// send records that the request is sent to the chosen replica.
func (w *waiter) send(choice balance.Choice) {
	w.choice, w.load = choice, w.loads[choice.Candidate]
	w.others = w.query.Candidates[choice.Candidate].Requests
	w.load.inFlight++
	if w.state.q.Answer > 0 { // other requests report no first token
		w.pending = choice.Uncached
		w.load.pending += w.pending
	}
	w.sent = w.balancer.Send(w.clock(), w.ready[choice.Candidate].ID, w.query.Prompt, choice)
	w.queue.counts.admitted[w.request.Class]++
	w.state.router.balancers.metrics.count(choice)
}

// attempt returns the Attempt of a request that was sent to a replica.
func (w *waiter) attempt() *Attempt {
	s, replica := w.state, w.ready[w.choice.Candidate]
	return &Attempt{Replica: replica, Addon: s.q.Addon, cached: -1, answer: -1, now: w.clock, sent: w.sent, ticket: w,
		placement: Placement{Node: request.ShowNode(s.c, replica.Node),
			Concurrent: s.c.Busy.Of(replicaKey(s.q.Deployment, replica.ID)) + 1,
			Route:      routeOf(s.c.Principal, s.q.Deployment, replica.ID, len(w.ready), w.others, w.choice)}}
}

// dispatch sends the waiting requests that replicas take now.
func (q *queue) dispatch() {
	for q.admission.Len() > 0 {
		var choice balance.Choice
		next, _ := q.admission.Next(len(q.numbered), func(r *admission.Request, planned []int64) admission.Placement {
			w := q.waiting[r.ID]
			choice = w.choose(w.clock(), planned)
			return admission.Placement{Replica: w.loads[choice.Candidate].number, Uncached: w.work(choice),
				Free: w.fits(choice)}
		})
		if next == nil {
			return
		}
		now := q.now()
		q.admission.Left(now, next)
		w := q.waiting[next.ID]
		delete(q.waiting, next.ID)
		w.send(choice)
		q.metrics.waited(next.Class, now-next.Added)
		close(w.admitted)
	}
}

// firstToken records that the replica has processed the request's prompt.
func (w *waiter) firstToken() {
	if w == nil {
		return
	}
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	w.begun = true
	if w.pending > 0 {
		w.load.pending -= w.pending
		w.pending = 0
		w.queue.dispatch()
	}
}

// end records that the request ended. cached and answer are the cached tokens of the prompt and the
// tokens of the answer; -1 if they are unknown.
func (w *waiter) end(cached, answer int64, failed bool) {
	if w == nil {
		return
	}
	q := w.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	w.load.inFlight--
	w.load.pending -= w.pending
	w.pending = 0
	prompt := w.work(w.choice)
	switch {
	case failed && !w.begun && answer <= 0: // the replica has done nothing for the account, or nothing that is known
		prompt, answer = 0, 0
	case cached > 0:
		prompt = max(0, w.query.Prompt.Tokens-cached)
	}
	if answer < 0 {
		answer = w.request.Answer
	}
	if !failed && w.state.q.Answer > 0 {
		q.answer += (float64(answer) - q.answer) / answerShare
	}
	q.admission.End(&w.request, prompt, answer)
	q.dispatch()
}

// wait waits until the request is sent to a replica. If it returns an error, the request is no
// longer in the queue.
func (w *waiter) wait(ctx context.Context) error {
	select {
	case <-w.admitted: // dispatch has sent it
		return nil
	default:
	}
	s := w.state
	timeout, renew := time.NewTimer(s.remainingQueue), time.NewTicker(renewInterval)
	defer timeout.Stop()
	defer renew.Stop()
	for {
		var err error
		select {
		case <-w.admitted:
			return nil
		case <-renew.C:
			if err = w.renew(); err == nil {
				continue
			}
		case <-s.c.Closing.Done():
			err = errStopping
		case <-ctx.Done():
			err = ctx.Err()
		case <-timeout.C:
			err = tooLong(s)
		}
		if w.leave() {
			return err
		}
		if ctx.Err() == nil {
			return nil
		}
		w.sent.Cancel(w.clock())
		w.end(-1, -1, true)
		return ctx.Err()
	}
}

// leave removes the request from the queue. It returns false if the request was sent to a replica.
func (w *waiter) leave() bool {
	q := w.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.load != nil {
		return false
	}
	q.admission.Remove(&w.request)
	delete(q.waiting, w.request.ID)
	q.dispatch() // the next request may go to a replica for which this one waited
	return true
}

// renew records a waiting request as a new one, so that its deployment is not scaled to zero, and
// finds its replicas again. It returns errReplicasChanged if there are none now.
func (w *waiter) renew() error {
	s := w.state
	s.c.World.Live().RecordRequest(s.q.Deployment, s.c.Now())
	found, err := s.readyReplicas(s.c.World.View())
	if err != nil || !found.usable() {
		return errReplicasChanged
	}
	ready := s.untried(found.ready)
	if len(ready) == 0 {
		return errReplicasChanged
	}
	q := w.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.load != nil {
		return nil
	}
	w.update(ready)
	if now := q.now(); now-q.renewed >= renewInterval { // once for all waiting requests
		q.renewed = now
		q.dispatch()
	}
	return nil
}
