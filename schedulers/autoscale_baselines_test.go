package schedulers_test

import "math"

// knative is the autoscaler of Knative Serving with its defaults, and the slots of a replica as its
// container concurrency. Every 2 s it scales to the mean of 60 s, for 70 % of the slots. When the
// mean of 6 s needs twice the ready replicas, a panic mode of 60 s begins, in which it removes no
// replicas. It scales to zero after a grace period of 30 s.
type knative struct {
	inFlight []float64 // one sample a second
	panicked float64   // last time at which the mean of 6 s required panic mode
	peak     int       // the highest count of this panic mode
	idle     float64   // when the last request ended
	min      int
}

func newKnative(minReplicas int) *knative { return &knative{panicked: math.Inf(-1), min: minReplicas} }

func (k *knative) decide(r *replay, current int) int {
	const stable, panicWindow, grace = 60, 6, 30
	k.inFlight = append(k.inFlight, float64(r.inFlight()))
	if r.inFlight() > 0 {
		k.idle = r.now
	}
	if current == 0 {
		return min(1, r.inFlight())
	}
	if int(r.now)%2 != 0 {
		return current
	}
	target := 0.7 * float64(r.slots)
	need := func(window int) int {
		return int(math.Ceil(meanOf(k.inFlight, window)/target - 1e-9))
	}
	ready := 0
	for _, one := range r.serving() {
		if one.ready <= r.now {
			ready++
		}
	}
	steady, urgent := need(stable), need(panicWindow)
	if ready > 0 && meanOf(k.inFlight, panicWindow)/target >= 2*float64(ready) {
		k.panicked = r.now
	}
	if r.now-k.panicked <= stable {
		k.peak = max(k.peak, urgent, steady, current)
		return k.peak
	}
	k.peak = 0
	if steady == 0 && (k.min > 0 || r.now-k.idle < stable+grace) {
		steady = 1
	}
	return max(k.min, steady, current/2*min(1, steady)) // removes at most half of the replicas at once
}

// meanOf returns the mean of the last n samples.
func meanOf(samples []float64, n int) float64 {
	samples = samples[max(0, len(samples)-n):]
	sum := 0.0
	for _, x := range samples {
		sum += x
	}
	return sum / float64(max(len(samples), 1))
}

// hpa is the Kubernetes HorizontalPodAutoscaler with its defaults. Every 15 s it scales to 80 % of
// the slots, with a tolerance of 10 %. In one step it adds at most four replicas, or doubles their
// number if that is more. It scales down to the highest count of the last 300 s.
type hpa struct {
	wanted []int // counts of the last 300 s
	last   int
}

func (h *hpa) decide(r *replay, current int) int {
	const sync, tolerance, stabilization = 15, 0.1, 300
	if int(r.now)%sync != 0 || current == 0 {
		return max(current, h.last)
	}
	use := float64(r.inFlight()) / float64(current) / float64(r.slots) / 0.8
	want := current
	if math.Abs(use-1) > tolerance {
		want = int(math.Ceil(float64(current) * use))
	}
	want = max(1, min(want, max(2*current, current+4)))
	if h.wanted = append(h.wanted, want); len(h.wanted) > stabilization/sync {
		h.wanted = h.wanted[1:]
	}
	for _, earlier := range h.wanted {
		if want < current {
			want = min(current, max(want, earlier))
		}
	}
	h.last = want
	return want
}
