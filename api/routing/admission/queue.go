// Package admission decides in which order the requests of a deployment are sent to its replicas. It
// has no clock and no I/O: the caller passes the time, as durations since any fixed point in time.
package admission

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Constants of the rules in docs/adr/0080.
const (
	agingRate    = 2000 // tokens by which a request gets ahead of shorter ones for each second that it waits
	answerWeight = 3    // an answer token costs as much as this many prompt tokens
	lookAhead    = 64   // maximum number of queued requests that one Next considers
	smallShare   = 80   // an account below this percentage of the mean number of requests in flight gets extraSlots
	extraSlots   = 4    // 1/extraSlots of a replica's slots more
	flowsKept    = 1024 // number of idle flows above which they are forgotten
	sharedAhead  = 1024 // prompt tokens that a replica gets ahead while several accounts use the deployment
	aloneAhead   = 4096 // the same while one account uses it
	smallAhead   = 8192 // the same for an account with few requests in flight
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
	Arrival time.Duration

	key     int64 // order among the requests of its flow
	charged int64 // what the flow paid for it
	flow    *flow
}

func (r *Request) cost(prompt, answer int64) int64 { return prompt + answerWeight*answer }

// A flow has the requests of one account in one class.
type flow struct {
	account  string
	class    Class
	weight   int64
	waiting  []*Request // in the order in which they are sent
	tag      int64      // virtual time at which the flow's next request begins
	inFlight int
}

// A Queue orders requests by start-time fair queueing: classes by their weights, in a class the
// accounts by their weights, and of one account the shortest first, unless a longer one waited.
type Queue struct {
	flows   map[string]*flow
	tags    [classes]int64 // virtual times of the classes
	now     int64          // virtual time between the classes
	virtual [classes]int64 // virtual time in each class
	count   int
	tokens  int64
	total   int // requests in flight
}

// NewQueue returns an empty Queue.
func NewQueue() *Queue { return &Queue{flows: map[string]*flow{}} }

// Len returns the number of waiting requests, and Tokens the sum of their prompt tokens.
func (q *Queue) Len() int      { return q.count }
func (q *Queue) Tokens() int64 { return q.tokens }

// Of returns how many requests of an account wait.
func (q *Queue) Of(account string) int {
	n := 0
	for class := range classes {
		if f := q.flows[flowKey(account, class)]; f != nil {
			n += len(f.waiting)
		}
	}
	return n
}

func flowKey(account string, class Class) string { return string(rune('0'+class)) + account }

func (q *Queue) flowOf(r *Request) *flow {
	key := flowKey(r.Account, r.Class)
	f := q.flows[key]
	if f == nil {
		if len(q.flows) >= flowsKept {
			q.forget(func(f *flow) bool { return f.tag <= q.virtual[f.class] })
		}
		if len(q.flows) >= flowsKept { // forgive what the others used beyond their shares
			q.forget(func(*flow) bool { return true })
		}
		f = &flow{account: r.Account, class: r.Class}
		q.flows[key] = f
	}
	f.weight = max(1, r.Weight)
	return f
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
	f := q.flowOf(r)
	r.flow, r.key = f, r.Prompt+int64(r.Arrival/time.Millisecond)*agingRate/1000
	at, _ := slices.BinarySearchFunc(f.waiting, r, order)
	f.waiting = slices.Insert(f.waiting, at, r)
	q.count++
	q.tokens += r.Prompt
}

func order(a, b *Request) int {
	return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.ID, b.ID))
}

// Remove removes a waiting request, such as one whose client has gone.
func (q *Queue) Remove(r *Request) {
	if at, ok := slices.BinarySearchFunc(r.flow.waiting, r, order); ok {
		r.flow.waiting = slices.Delete(r.flow.waiting, at, at+1)
		q.count--
		q.tokens -= r.Prompt
	}
}

// A Slot is a place on a replica that Place found for a request.
type Slot struct {
	Replica  int
	Uncached int64 // prompt tokens that the replica must process
	// Free reports whether the replica takes the request now. Otherwise it would be the best replica
	// for the request, but has too much work.
	Free bool
}

// Next returns the next request that a replica takes now, and removes it from the queue; nil if there
// is none. It offers the requests in their order to place, which returns the best replica for a
// request. planned has the prompt tokens that requests before it in the order will bring to each
// replica. A request whose best replica has too much work keeps waiting, and later requests go
// ahead of it to other replicas.
func (q *Queue) Next(replicas int, place func(r *Request, planned []int64) Slot) (*Request, Slot) {
	if q.count == 0 {
		return nil, Slot{}
	}
	planned := make([]int64, replicas)
	turn := q.plan()
	for range min(q.count, lookAhead) {
		r := turn.next()
		slot := place(r, planned)
		if slot.Free {
			q.Remove(r)
			q.charge(r, slot.Uncached)
			return r, slot
		}
		planned[slot.Replica] += slot.Uncached
	}
	return nil, Slot{}
}

// A turn goes through the waiting requests in their order without changing the queue.
type turn struct {
	flows []turnFlow
	tags  [classes]int64
}

type turnFlow struct {
	*flow
	at  int // index of its next request
	tag int64
}

func (q *Queue) plan() *turn {
	t := &turn{tags: q.tags}
	for class := range classes {
		t.tags[class] = max(t.tags[class], q.now)
	}
	for _, f := range q.flows {
		if len(f.waiting) > 0 {
			t.flows = append(t.flows, turnFlow{flow: f, tag: max(f.tag, q.virtual[f.class])})
		}
	}
	slices.SortFunc(t.flows, func(a, b turnFlow) int { return strings.Compare(a.account, b.account) })
	return t
}

// next returns the next request; there must be one.
func (t *turn) next() *Request {
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

// charge records that a request begins.
func (q *Queue) charge(r *Request, uncached int64) {
	f := r.flow
	f.tag, q.tags[f.class] = max(f.tag, q.virtual[f.class]), max(q.tags[f.class], q.now)
	q.virtual[f.class], q.now = f.tag, q.tags[f.class]
	r.charged = r.cost(uncached, r.Answer)
	q.pay(f, r.charged)
	f.inFlight++
	q.total++
}

func (q *Queue) pay(f *flow, cost int64) {
	f.tag += cost / f.weight
	q.tags[f.class] += cost / weights[f.class]
}

// End records that a request ended, and corrects what its account paid to the tokens that were
// processed and generated.
func (q *Queue) End(r *Request, prompt, answer int64) {
	q.pay(r.flow, r.cost(prompt, answer)-r.charged)
	r.flow.inFlight--
	q.total--
}

// active returns the number of accounts with waiting requests or requests in flight.
func (q *Queue) active() int {
	accounts := map[string]bool{}
	for _, f := range q.flows {
		if f.inFlight > 0 || len(f.waiting) > 0 {
			accounts[f.account] = true
		}
	}
	return len(accounts)
}

// A Capacity is what a replica may have to do when it takes a further request.
type Capacity struct {
	Ahead int64 // prompt tokens that were sent to it and have no first token
	Slots int   // requests in flight, of the number that it can serve concurrently
}

// Capacity returns the Capacity for a request. slots is the number of requests that a replica serves
// concurrently. Accounts with few requests in flight get more of both.
func (q *Queue) Capacity(r *Request, slots int) Capacity {
	active := q.active()
	switch {
	case active < 2:
		return Capacity{aloneAhead, slots}
	case r.flow.inFlight*active*100 < smallShare*q.total:
		return Capacity{smallAhead, slots + slots/extraSlots}
	}
	return Capacity{sharedAhead, slots}
}
