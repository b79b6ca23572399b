package admission

import (
	"fmt"
	"slices"
	"time"
)

// Limits of what waits in a Queue.
const (
	MaxWaiting        = 4096     // requests
	MaxAccountWaiting = 1024     // requests of one account
	MaxWaitingTokens  = 16 << 20 // prompt tokens of texts, about 64 MB
	MaxAccountTokens  = MaxWaitingTokens / 4
)

// Constants of predictions.
const (
	rateWindow  = 10 * time.Second // time after which measurements of the rate count half
	minMeasured = time.Second      // time that a rate must cover
)

// A rate measures how much cost leaves a queue in which requests wait.
type rate struct {
	cost float64
	time time.Duration // in which requests waited
	last time.Duration // when the last request left, or the first began to wait
}

// left records that a request left the queue at the time now. waited reports whether requests had
// waited since the last call of left or restart.
func (r *rate) left(now time.Duration, cost int64) {
	r.cost, r.time, r.last = r.cost+float64(cost), r.time+max(0, now-r.last), now
	if r.time > rateWindow {
		r.cost, r.time = r.cost/2, r.time/2
	}
}

// timeOf returns the time in which the queue works off a cost. It returns false if the rate is not
// known.
func (r *rate) timeOf(cost int64, now time.Duration) (time.Duration, bool) {
	measured := r.time + max(0, now-r.last)
	if r.cost == 0 || measured < minMeasured {
		return 0, false
	}
	return time.Duration(float64(cost) / r.cost * float64(measured)), true
}

// Full returns which limit allows no further request like r to wait; "" if r may wait.
func (q *Queue) Full(r *Request) string {
	requests, tokens := q.Waiting(r.Account)
	switch {
	case q.count >= MaxWaiting:
		return fmt.Sprintf("%d requests wait, which is the maximum", q.count)
	case requests >= MaxAccountWaiting:
		return fmt.Sprintf("%d requests of %s wait, which is the maximum for an account", requests, r.Account)
	case tokens+r.text() > MaxAccountTokens:
		return fmt.Sprintf("the waiting requests of %s and this one have %d prompt tokens, and the maximum for an account "+
			"is %d", r.Account, tokens+r.text(), MaxAccountTokens)
	case q.tokens+r.text() > MaxWaitingTokens:
		return fmt.Sprintf("the waiting requests and this one have %d prompt tokens, and the maximum is %d",
			q.tokens+r.text(), MaxWaitingTokens)
	}
	return ""
}

// Left records that the request r, which Next returned, left the queue at the time now.
func (q *Queue) Left(now time.Duration, r *Request) { q.rate.left(now, r.charged) }

// A backlog is what waits or was promised in one flow.
type backlog struct {
	weight, cost int64
}

// PredictWait predicts how long r, which waits, will wait from the time now on. It returns false if
// nothing is known about the rate of the queue.
//
// The requests of r's flow that are sent before r, and the promises to its account, cost X. Until
// they are served, another flow is served its backlog and its promises, but at most its share: X
// times the ratio of the weights of the two flows. The weight of a flow is that of its class,
// divided among the accounts with a backlog in the class by their weights.
func (q *Queue) PredictWait(now time.Duration, r *Request, promises *Promises, wall time.Time) (time.Duration, bool) {
	backlogs, sums := map[flowKey]*backlog{}, [classes]int64{}
	add := func(key flowKey, weight, cost int64) {
		b := backlogs[key]
		if b == nil {
			b = &backlog{weight: weight}
			backlogs[key] = b
			sums[key.class] += weight
		}
		b.cost += cost
	}
	own := flowKey{r.Account, r.Class}
	add(own, r.flow.weight, q.before(r))
	for key, f := range q.flows {
		if key != own && len(f.waiting) > 0 {
			add(key, f.weight, f.cost)
		}
	}
	promises.expected(wall, add)
	first := backlogs[own]
	total := first.cost
	for key, b := range backlogs {
		if key != own {
			ratio := float64(weights[key.class]*b.weight*sums[own.class]) /
				float64(weights[own.class]*first.weight*sums[key.class])
			total += min(b.cost, int64(float64(first.cost)*ratio))
		}
	}
	return q.rate.timeOf(total, now)
}

// before returns the cost of the requests of r's flow that are sent before r, which waits too.
func (q *Queue) before(r *Request) (sum int64) {
	at, _ := slices.BinarySearchFunc(r.flow.waiting, r, order)
	for _, other := range r.flow.waiting[:at] {
		sum += other.cost(other.Prompt, other.Answer)
	}
	return sum
}
