// Package admission decides in which order the requests of a deployment are sent to its replicas.
// It has no clock and no I/O: the caller passes the time, as durations since any fixed point in
// time.
package admission

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Constants of the rules in docs/adr/0080.
const (
	agingRate    = 2000 // each second of waiting outweighs this many prompt tokens in the order of an account
	answerWeight = 3    // an answer token costs as much as this many prompt tokens
	lookAhead    = 64   // maximum number of waiting requests that one call of Next considers
	smallShare   = 80   // percentage of the mean number of requests in flight below which an account is small
	extraSlots   = 4    // a small account gets 1/extraSlots more slots on each replica
	maxFlows     = 1024 // number of flows from which idle ones are removed
	// Numbers of pending prompt tokens from which a replica takes no further request:
	sharedPending = 1024 // while several accounts use the deployment
	alonePending  = 4096 // while one account uses it
	smallPending  = 8192 // from a small account while several use it
)

// A Class is a class of requests. Classes share a deployment by their weights, so that no class
// starves.
type Class int

// The classes.
const (
	Interactive Class = iota
	Batch
	classes
)

// weights are the shares of the classes.
var weights = [classes]int64{Interactive: 9, Batch: 1}

// A Request is a request that waits to be sent to a replica.
type Request struct {
	ID      uint64
	Account string
	Class   Class
	Weight  int64 // share of the account; 0 means 1
	Prompt  int64 // estimated prompt tokens that no replica has cached
	Answer  int64 // expected tokens of the answer
	Work    int64 // part of Prompt that stands for other work than that on a text, such as on a recording
	Arrival time.Duration
	Added   time.Duration // when Add is called; later than Arrival if the request returns
	Body    uint64        // hash by which a request is known that is sent again; 0 if it has none

	key     int64 // sort key in its flow
	charged int64 // cost that its flow was charged
	flow    *flow
}

// text returns the number of prompt tokens of a text, which waits in memory.
func (r *Request) text() int64 { return r.Prompt - r.Work }

func (r *Request) cost(prompt, answer int64) int64 { return prompt + answerWeight*answer }

// A flow has the requests of one account in one class.
type flow struct {
	account  string
	class    Class
	weight   int64
	waiting  []*Request // in the order in which they are sent
	tag      int64      // virtual start time of the flow's next request
	cost     int64      // sum of the costs of waiting
	tokens   int64      // sum of their prompt tokens of texts
	inFlight int
}

// A Queue orders requests by start-time fair queueing: classes by their weights, in a class the
// accounts by their weights, and in an account the shortest request first. A request gains on
// shorter ones while it waits.
type Queue struct {
	flows   map[flowKey]*flow
	tags    [classes]int64 // virtual start time of the next request of each class
	now     int64          // virtual time of the queueing of classes
	virtual [classes]int64 // virtual time of the queueing of accounts in each class
	count   int            // number of waiting requests
	tokens  int64          // sum of their prompt tokens of texts
	total   int            // number of requests in flight
	active  map[string]*activity
	weight  int64 // sum of the weights of active
	rate    rate
}

// An activity is an account with waiting requests or requests in flight.
type activity struct {
	flows  int // number of its flows that have some
	weight int64
}

// NewQueue returns an empty Queue.
func NewQueue() *Queue { return &Queue{flows: map[flowKey]*flow{}, active: map[string]*activity{}} }

// Len returns the number of waiting requests, and Tokens the sum of their prompt tokens of texts.
func (q *Queue) Len() int      { return q.count }
func (q *Queue) Tokens() int64 { return q.tokens }

// InFlight returns the number of requests in flight.
func (q *Queue) InFlight() int { return q.total }

// Waiting returns the number of waiting requests of an account, and the sum of their prompt tokens
// of texts.
func (q *Queue) Waiting(account string) (requests int, tokens int64) {
	for class := range classes {
		if f := q.flows[flowKey{account, class}]; f != nil {
			requests, tokens = requests+len(f.waiting), tokens+f.tokens
		}
	}
	return requests, tokens
}

// A flowKey identifies a flow.
type flowKey struct {
	account string
	class   Class
}

func (q *Queue) flowOf(r *Request) *flow {
	key := flowKey{r.Account, r.Class}
	f := q.flows[key]
	if f == nil {
		if len(q.flows) >= maxFlows {
			q.forget(func(f *flow) bool { return f.tag <= q.virtual[f.class] })
		}
		if len(q.flows) >= maxFlows { // this forgets how much they used beyond their shares
			q.forget(func(*flow) bool { return true })
		}
		f = &flow{account: r.Account, class: r.Class}
		q.flows[key] = f
	}
	f.weight = max(1, r.Weight)
	if a := q.active[r.Account]; a != nil {
		q.weight += f.weight - a.weight
		a.weight = f.weight
	}
	return f
}

// activate records that a flow is no longer idle, and deactivate that it is.
func (q *Queue) activate(f *flow) {
	a := q.active[f.account]
	if a == nil {
		a = &activity{weight: f.weight}
		q.active[f.account] = a
		q.weight += a.weight
	}
	a.flows++
}

func (q *Queue) deactivate(f *flow) {
	a := q.active[f.account]
	if a.flows--; a.flows == 0 {
		q.weight -= a.weight
		delete(q.active, f.account)
	}
}

// forget removes the idle flows for which match returns true.
func (q *Queue) forget(match func(*flow) bool) {
	for key, f := range q.flows {
		if len(f.waiting) == 0 && f.inFlight == 0 && match(f) {
			delete(q.flows, key)
		}
	}
}

// Add adds a request to the queue.
func (q *Queue) Add(r *Request) {
	if q.count == 0 {
		q.rate.last = max(q.rate.last, r.Added)
	}
	f := q.flowOf(r)
	r.flow, r.key = f, r.Prompt+int64(r.Arrival/time.Millisecond)*agingRate/1000
	if f.idle() {
		q.activate(f)
	}
	at, _ := slices.BinarySearchFunc(f.waiting, r, order)
	f.waiting = slices.Insert(f.waiting, at, r)
	q.count++
	q.tokens += r.text()
	f.tokens += r.text()
	f.cost += r.cost(r.Prompt, r.Answer)
}

func order(a, b *Request) int {
	return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.ID, b.ID))
}

// Remove removes a waiting request, such as one whose client has gone.
func (q *Queue) Remove(r *Request) {
	if at, ok := slices.BinarySearchFunc(r.flow.waiting, r, order); ok {
		r.flow.waiting = slices.Delete(r.flow.waiting, at, at+1)
		q.count--
		q.tokens -= r.text()
		r.flow.tokens -= r.text()
		r.flow.cost -= r.cost(r.Prompt, r.Answer)
		if r.flow.idle() {
			q.deactivate(r.flow)
		}
	}
}

// A Placement is the best replica for a request.
type Placement struct {
	Replica  int
	Uncached int64 // prompt tokens that the replica must process
	// Free reports whether the replica takes the request now. Otherwise the replica has too much work.
	Free bool
}

// Next returns the next request that a replica takes now, and removes it from the queue; nil if
// there is none. It calls place with the requests in their order. place returns the best of the
// replicas, which are numbered from 0. planned[i] is the number of prompt tokens that earlier
// requests in the order will add to replica i. A request whose best replica has too much work keeps
// waiting, and later requests are sent to other replicas before it.
func (q *Queue) Next(replicas int, place func(r *Request, planned []int64) Placement) (*Request, Placement) {
	if q.count == 0 {
		return nil, Placement{}
	}
	planned := make([]int64, replicas)
	requests := q.iterate()
	for range min(q.count, lookAhead) {
		r := requests.next()
		placement := place(r, planned)
		if placement.Free {
			q.Remove(r)
			q.begin(r, placement.Uncached)
			return r, placement
		}
		planned[placement.Replica] += placement.Uncached
	}
	return nil, Placement{}
}

// An iterator yields the waiting requests in their order without changing the queue.
type iterator struct {
	flows []iteratorFlow
	tags  [classes]int64
}

// An iteratorFlow is the state of an iterator in one flow.
type iteratorFlow struct {
	*flow
	at  int // index of its next request
	tag int64
}

func (q *Queue) iterate() *iterator {
	t := &iterator{tags: q.tags}
	for class := range classes {
		t.tags[class] = max(t.tags[class], q.now)
	}
	for _, f := range q.flows {
		if len(f.waiting) > 0 {
			t.flows = append(t.flows, iteratorFlow{flow: f, tag: max(f.tag, q.virtual[f.class])})
		}
	}
	slices.SortFunc(t.flows, func(a, b iteratorFlow) int { return strings.Compare(a.account, b.account) })
	return t
}

// next returns the next request; there must be one.
func (t *iterator) next() *Request {
	best := -1
	for i, f := range t.flows {
		if f.at == len(f.waiting) {
			continue
		}
		if best < 0 || cmp.Or(cmp.Compare(t.tags[f.class], t.tags[t.flows[best].class]),
			cmp.Compare(f.class, t.flows[best].class), cmp.Compare(f.tag, t.flows[best].tag)) < 0 {
			best = i
		}
	}
	f := &t.flows[best]
	r := f.waiting[f.at]
	f.at++
	cost := r.cost(r.Prompt, r.Answer)
	f.tag += cost / f.weight
	t.tags[f.class] += cost / weights[f.class]
	return r
}

// begin records that a request was sent to a replica, and charges its cost to its flow.
func (q *Queue) begin(r *Request, uncached int64) {
	f := r.flow
	f.tag, q.tags[f.class] = max(f.tag, q.virtual[f.class]), max(q.tags[f.class], q.now)
	q.virtual[f.class], q.now = f.tag, q.tags[f.class]
	r.charged = r.cost(uncached, r.Answer)
	q.charge(f, r.charged)
	if f.idle() {
		q.activate(f)
	}
	f.inFlight++
	q.total++
}

// charge charges a cost to a flow and to its class.
func (q *Queue) charge(f *flow, cost int64) {
	f.tag += cost / f.weight
	q.tags[f.class] += cost / weights[f.class]
}

// Start records that a request is sent to a replica without waiting. No request may wait.
func (q *Queue) Start(r *Request, uncached int64) {
	r.flow = q.flowOf(r)
	q.begin(r, uncached)
}

// Prepare sets the account of a request that is not in the queue, for Capacity.
func (q *Queue) Prepare(r *Request) { r.flow = q.flowOf(r) }

// End records that a request ended, and changes the cost that its flow was charged to that of the
// prompt tokens that were processed and of the answer tokens that were generated.
func (q *Queue) End(r *Request, prompt, answer int64) {
	q.charge(r.flow, r.cost(prompt, answer)-r.charged)
	r.flow.inFlight--
	q.total--
	if r.flow.idle() {
		q.deactivate(r.flow)
	}
}

func (f *flow) idle() bool { return f.inFlight == 0 && len(f.waiting) == 0 }

// A Capacity is the load from which a replica takes no further request.
type Capacity struct {
	PendingTokens int64 // prompt tokens of requests that were sent to the replica and have no first token
	Slots         int   // requests in flight on the replica
}

// Capacity returns the Capacity for a request. slots is the number of requests that a replica
// serves concurrently. Small accounts, those with few requests in flight for their weight, get a
// higher Capacity for interactive requests; batch requests never do, because they would get more
// than their share.
func (q *Queue) Capacity(r *Request, slots int) Capacity {
	switch {
	case len(q.active) < 2:
		return Capacity{alonePending, slots}
	case r.Class == Interactive && int64(r.flow.inFlight)*q.weight*100 < smallShare*int64(q.total)*r.flow.weight:
		return Capacity{smallPending, slots + slots/extraSlots}
	}
	return Capacity{sharedPending, slots}
}
