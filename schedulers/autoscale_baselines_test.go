package schedulers_test

import "math"

// knative is the autoscaler of Knative Serving with its defaults for a container concurrency of all
// slots: 70 % of them in the mean over 60 s, decided every 2 s; panic mode for 60 s when the mean
// over 6 s needs twice the ready replicas, in which nothing is removed; 30 s of grace before zero.
type knative struct {
	inFlight []float64 // one sample a second
	panicked float64   // when panic mode last had a reason
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
	return max(k.min, steady, current/2*min(1, steady)) // at most half of the replicas go at once
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

// hpa is the Kubernetes HorizontalPodAutoscaler with its defaults: 80 % of the slots, every 15 s, a
// tolerance of 10 %, four more or twice as many replicas at once, and the highest count of the last
// 300 s before it removes any.
type hpa struct {
	wanted []int // of the last 300 s
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
