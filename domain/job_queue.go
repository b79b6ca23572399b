package domain

import "time"

type JobQueued struct {
	Time time.Time `json:"time,omitzero"` // zero in events of earlier versions
}

func (e JobQueued) Evolve(l *JobLife) {
	l.State = JobPendingState
	if l.Arrival == nil {
		l.arrive(e.Time)
	}
}

// arrive records when the job entered the queue. The time of a preempted or requeued job stays.
func (l *JobLife) arrive(at time.Time) {
	l.Arrival = nil
	if !at.IsZero() {
		l.Arrival = &at
	}
}

type JobHeld struct {
	Status   Status `json:"status"`
	Promised bool   `json:"promised,omitempty"`
}

func (e JobHeld) Evolve(l *JobLife) { l.Status, l.Promised = e.Status, l.Promised || e.Promised }

type JobRequeued struct {
	Attempt int       `json:"attempt"`
	Reason  string    `json:"reason"`
	Counted bool      `json:"counted"`
	Orphan  bool      `json:"orphan,omitempty"`
	Time    time.Time `json:"time"`
}

func (e JobRequeued) Evolve(l *JobLife) {
	if l.Preempting {
		l.Preemptions++
	}
	l.end(e.Time)
	l.State, l.Status = JobReQueueingState, Status{Unavailable.String(), e.Reason}
	if e.Counted {
		l.Failures++
	}
	if e.Orphan {
		if l.Orphans == 0 {
			l.OrphanTime = &e.Time
		}
		l.Orphans++
	}
}

// worked adds the seconds since the previous checkpoint or the start of the attempt to Work.
func (l *JobLife) worked(until time.Time) {
	if l.StartTime == nil {
		return
	}
	since := *l.StartTime
	if last, ok := l.LastCheckpoint(); ok && last.Time.After(since) {
		since = last.Time
	}
	l.Work += int64(max(0, until.Sub(since)).Seconds())
}
