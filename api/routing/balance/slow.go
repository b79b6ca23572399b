package balance

import (
	"slices"
	"time"
)

// Constants of the rules for slow replicas.
const (
	refreshInterval = time.Second            // how often the speeds of the replicas are compared
	lagShare        = 8                      // a measured lag counts for 1/lagShare of the new estimate
	lagForgotten    = 32                     // 1/lagForgotten of a lag is forgotten in each interval without a request
	minLagSamples   = 4                      // fewer measurements do not make a replica slow
	maxLagWork      = 250 * time.Millisecond // requests with more work ahead of them do not measure the lag
	minLag          = 50 * time.Millisecond  // a replica is slow if its lag exceeds twice the median and this time
	slowOne         = 256                    // value of replicaState.slow that stands for 1
	maxSlow         = 8 * slowOne
)

// slowness is how slow a replica is, compared with the others of its deployment.
type slowness struct {
	lag      time.Duration // average time from the predicted to the measured first token of short requests
	samples  int           // number of measurements of lag
	measured bool          // a request has measured the replica in this interval
	slow     int64         // factor of its tokens in slowOne-ths: how much longer it takes for one than the median
	late     time.Duration // lag beyond that of the median; 0 unless the replica is slow
}

// extra returns the delay of a replica because it is slower than the others, in prompt tokens.
func (r *replicaState) extra(tokens int64) int64 {
	return tokens*(r.slowness.slow-slowOne)/slowOne + r.tokensIn(r.slowness.late)
}

// measureLag records the time to the first token of a request that waited for no slot and no addon.
func (r *replicaState) measureLag(expected, took time.Duration) {
	p := &r.slowness
	p.measured = true
	if expected > maxLagWork {
		return
	}
	lag := max(0, took-expected)
	if p.samples++; p.samples == 1 {
		p.lag = lag
		return
	}
	p.lag += (lag - p.lag) / lagShare
}

// refresh compares the replicas once in each interval. A replica is slow if its rate is less than
// two thirds of the median, or its lag more than twice the median and minLag. A replica without
// requests becomes less slow with time, so that it is tried again.
func (b *Balancer) refresh(now time.Duration) {
	if now < b.refreshAt {
		return
	}
	b.refreshAt = now + refreshInterval
	rates, lags := b.buffer[:0], make([]time.Duration, 0, len(b.index))
	for _, at := range b.index {
		r := &b.replicas[at]
		rates = append(rates, r.rate)
		if r.slowness.samples >= minLagSamples {
			lags = append(lags, r.slowness.lag)
		}
		for addon, begun := range r.loads {
			if now-begun > addonSendKept {
				delete(r.loads, addon)
			}
		}
	}
	if b.buffer = rates; len(rates) == 0 {
		return
	}
	slices.Sort(rates)
	slices.Sort(lags)
	// of two replicas the faster one is the reference
	rate := rates[len(rates)/2]
	for _, at := range b.index {
		r := &b.replicas[at]
		p := &r.slowness
		if p.slow, p.late = slowOne, 0; 3*r.rate < 2*rate {
			p.slow = min(rate*slowOne/r.rate, maxSlow)
		}
		if len(lags) > 1 && p.samples >= minLagSamples {
			if reference := lags[(len(lags)-1)/2]; p.lag > 2*reference+minLag {
				p.late = p.lag - reference
			}
		}
		r.slow = p.late > 0 || p.slow != slowOne
		if !p.measured {
			p.lag -= p.lag / lagForgotten
			if p.slow > slowOne {
				r.setRate(r.rate + (rate-r.rate)/(2*lagForgotten))
			}
		}
		p.measured = false
	}
}
