package queue_test

import (
	"slices"

	"anneal/domain"
	history "anneal/projections/waits"
)

// An estimates collects how well the waits of a simulation are estimated at the arrival of jobs.
type estimates struct {
	history *history.History
	made    map[*simulated]estimate
	starts  []start // of the last hour
	units   int64   // of starts

	queued, covered int
	widths          []int64
}

type estimate struct {
	situation domain.QueueSituation
	interval  *domain.WaitEstimate
}

type start struct{ at, units int64 }

// watch estimates the wait of every job that still waits after the pass of its arrival.
func (e *estimates) watch(s *simulator) {
	e.history, e.made = history.New(), map[*simulated]estimate{}
	s.arrived = func(j *simulated, now int64) {
		e.forget(now)
		ahead, waits := s.queue.Ahead(j.ID, now)
		if !waits {
			return
		}
		situation, _ := s.queue.Situation(j.ID, now, ahead, e.units)
		one := estimate{situation: situation}
		if interval, ok := e.history.Estimate(situation); ok {
			one.interval = &interval
		}
		e.made[j] = one
	}
	s.started = func(j *simulated, now int64) {
		e.starts, e.units = append(e.starts, start{now, j.size()}), e.units+j.size()
		one, ok := e.made[j]
		if !ok {
			return
		}
		wait := now - j.Arrival
		if i := one.interval; i != nil {
			e.queued++
			e.widths = append(e.widths, i.High-i.Low)
			if i.Low <= wait && wait <= i.High {
				e.covered++
			}
		}
		e.history.Observe(one.situation, one.interval, wait)
	}
}

func (e *estimates) forget(now int64) {
	for len(e.starts) > 0 && e.starts[0].at < now-3600 {
		e.units -= e.starts[0].units
		e.starts = e.starts[1:]
	}
}

// coverage returns the percentage of the waits inside of their intervals.
func (e *estimates) coverage() float64 { return 100 * float64(e.covered) / float64(max(1, e.queued)) }

// width returns the median width of the intervals in minutes.
func (e *estimates) width() float64 {
	slices.Sort(e.widths)
	return float64(e.widths[len(e.widths)/2]) / 60
}
