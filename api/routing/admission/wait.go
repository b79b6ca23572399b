package admission

import "time"

// Limits of what waits in a Queue.
const (
	MaxWaiting        = 4096     // requests
	MaxAccountWaiting = 1024     // requests of one account
	MaxWaitingTokens  = 16 << 20 // prompt tokens, about 64 MB of text
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

// Full reports whether the limits allow no further request like r to wait.
func (q *Queue) Full(r *Request) bool {
	return q.count >= MaxWaiting || q.tokens+r.Prompt > MaxWaitingTokens || q.Waiting(r.Account) >= MaxAccountWaiting
}

// Left records that the request r, which Next returned, left the queue at the time now.
func (q *Queue) Left(now time.Duration, r *Request) { q.rate.left(now, r.charged) }

// ahead returns the cost of the waiting requests that are sent before r, which waits too.
func (q *Queue) ahead(r *Request) int64 {
	sum, requests := int64(0), q.iterate()
	for range q.count {
		other := requests.next()
		if other == r {
			break
		}
		sum += other.cost(other.Prompt, other.Answer)
	}
	return sum
}

// share returns how many times as long a cost of the flow f takes as if the flow had the queue for
// itself.
func (q *Queue) share(f *flow) float64 {
	own, sum, classSum := float64(f.weight), 0.0, 0.0
	var busy [classes]bool
	for _, other := range q.flows {
		if other != f && len(other.waiting) == 0 {
			continue
		}
		if busy[other.class] = true; other.class == f.class {
			sum += float64(other.weight)
		}
	}
	for class, b := range busy {
		if b {
			classSum += float64(weights[class])
		}
	}
	return sum / own * classSum / float64(weights[f.class])
}

// PredictWait predicts how long r, which waits, will wait from the time now on. promised is the cost of
// requests of r's account that were promised to be admitted. It returns false if nothing is known about
// the rate of the queue.
func (q *Queue) PredictWait(now time.Duration, r *Request, promised int64) (time.Duration, bool) {
	return q.rate.timeOf(q.ahead(r)+int64(float64(promised)*q.share(r.flow)), now)
}

// Cost returns the cost of a request that Add has not charged yet.
func (r *Request) Cost() int64 { return r.cost(r.Prompt, r.Answer) }
