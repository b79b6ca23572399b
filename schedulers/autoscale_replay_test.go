package schedulers_test

import (
	"container/heap"
	"fmt"
	"time"

	"anneal/domain"
	"anneal/projections/live"
	"anneal/schedulers"
)

// A request of a trace: when it arrives and how long it takes once it has a slot, in seconds from
// the beginning of the trace.
type request struct{ arrival, service float64 }

// A replay simulates one deployment under a trace with a virtual clock. A queue of requests waits
// for the slots of ready replicas. A removed replica accepts no more requests, and ends when its
// last request has ended.
type replay struct {
	slots     int
	coldStart float64 // seconds from the placement of a replica until it is ready
	requests  []request

	now        float64
	next       int // the next request to arrive
	queue      []request
	ends       completions
	replicas   []*simulated // in order of their start
	arrived    int          // requests since the last report
	completed  int          // requests that ended since the last report
	replicaSec float64      // seconds of all replicas, starting and draining ones included
	violations int          // seconds in which the head of the queue has waited for more than 2 s
	cold       int          // requests that arrived while no replica was ready
}

// simulated is one replica.
type simulated struct {
	id       string
	ready    float64 // when it becomes ready
	busy     int     // occupied slots
	draining bool
}

type completion struct {
	at float64
	on *simulated
}

type completions []completion

func (c completions) Len() int           { return len(c) }
func (c completions) Less(i, j int) bool { return c[i].at < c[j].at }
func (c completions) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c *completions) Push(x any)        { *c = append(*c, x.(completion)) }
func (c *completions) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

// An autoscaler decides every second how many replicas the replayed deployment should have.
type autoscaler interface {
	decide(r *replay, current int) int
}

// warmUp is the time in seconds at the beginning of a trace in which violations do not count.
const warmUp = 300

// run replays the trace. minReplicas are ready at its beginning.
func (r *replay) run(a autoscaler, minReplicas int, end float64) {
	started := 0
	start := func(ready float64) {
		started++
		r.replicas = append(r.replicas, &simulated{id: fmt.Sprintf("r%d", started), ready: ready})
	}
	for range minReplicas {
		start(0)
	}
	for ; r.now <= end; r.now++ {
		r.serve()
		current := len(r.serving())
		want := a.decide(r, current)
		for range want - current {
			start(r.now + r.coldStart)
		}
		for i := current; i > want; i-- {
			r.dispensable().draining = true
		}
		if r.now > warmUp && len(r.queue) > 0 && r.now-r.queue[0].arrival > 2 {
			r.violations++
		}
		kept := r.replicas[:0]
		for _, one := range r.replicas {
			if !one.draining || one.busy > 0 {
				kept = append(kept, one)
			}
		}
		r.replicas = kept
		r.replicaSec += float64(len(r.replicas))
		if len(r.replicas) == 0 { // nothing happens before the next request
			if r.next == len(r.requests) {
				return
			}
			r.now = max(r.now, float64(int(r.requests[r.next].arrival))-1)
		}
	}
}

// serving returns the replicas that are not draining.
func (r *replay) serving() (all []*simulated) {
	for _, one := range r.replicas {
		if !one.draining {
			all = append(all, one)
		}
	}
	return all
}

// dispensable returns the replica to remove first: the newest.
func (r *replay) dispensable() *simulated {
	all := r.serving()
	return all[len(all)-1]
}

// serve simulates the arrival, start and end of requests until now.
func (r *replay) serve() {
	r.dispatch(r.now)
	for {
		arrives := r.next < len(r.requests) && r.requests[r.next].arrival <= r.now
		ends := len(r.ends) > 0 && r.ends[0].at <= r.now
		switch {
		case ends && (!arrives || r.ends[0].at <= r.requests[r.next].arrival):
			done := heap.Pop(&r.ends).(completion)
			done.on.busy--
			r.completed++
			r.dispatch(done.at)
		case arrives:
			one := r.requests[r.next]
			r.next++
			r.arrived++
			r.queue = append(r.queue, one)
			if r.freest(one.arrival, 1<<30) == nil {
				r.cold++
			}
			r.dispatch(one.arrival)
		default:
			return
		}
	}
}

// dispatch gives waiting requests to the ready replicas with the most free slots.
func (r *replay) dispatch(at float64) {
	for len(r.queue) > 0 {
		best := r.freest(at, r.slots)
		if best == nil {
			return
		}
		best.busy++
		heap.Push(&r.ends, completion{at + r.queue[0].service, best})
		r.queue = r.queue[1:]
	}
}

// freest returns the ready replica with the fewest requests below a limit; nil if there is none.
func (r *replay) freest(at float64, limit int) (best *simulated) {
	for _, one := range r.replicas {
		if !one.draining && one.ready <= at && one.busy < limit && (best == nil || one.busy < best.busy) {
			best = one
		}
	}
	return best
}

// inFlight returns the number of requests that wait or are served.
func (r *replay) inFlight() int { return len(r.queue) + len(r.ends) }

const replayed = domain.Name("accounts/acme/deployments/replayed")

// ours decides as Autoscale does, on the samples that its control plane would have: the node of
// each replica reports every two seconds and, while requests are queued, every second.
type ours struct {
	policy  domain.Scaling
	status  *live.Status
	desired int
	held    time.Time
	decided float64
}

func newOurs(policy domain.Scaling) *ours {
	return &ours{policy: policy, status: live.NewStatus(noon), desired: policy.Min, held: noon}
}

func (o *ours) decide(r *replay, _ int) int {
	now := noon.Add(time.Duration(r.now * float64(time.Second)))
	if r.arrived > 0 {
		o.status.RecordRequest(replayed, now)
	}
	if o.desired == 0 { // the gateway wakes the deployment
		o.desired, o.held = min(1, len(r.queue)), now
	}
	since := r.now - o.decided
	if len(r.queue) == 0 && since < 2 {
		return o.desired
	}
	o.decided = r.now
	waiting := len(r.queue)
	for _, one := range r.serving() {
		load := live.ReplicaLoad{Active: one.busy, Time: now}
		if one.ready <= r.now {
			load.Ready, load.Slots = true, r.slots
			load.Queued, waiting = waiting, 0
			load.RequestsPerSecond, r.arrived = float64(r.arrived)/since, 0
			load.CompletedPerSecond, r.completed = float64(r.completed)/since, 0
		}
		o.status.Load(replayed, one.id, load)
	}
	o.desired = schedulers.Scale(o.policy, o.desired, o.held, o.status.View().Loads(replayed), now).Replicas
	return o.desired
}
