package domain

import "time"

type JobQueued struct {
	Time time.Time `json:"time,omitzero"` // when the job was queued; zero in events of earlier versions
}

func (e JobQueued) Evolve(l *JobLife) {
	l.State, l.Wait, l.QueueTime = JobPendingState, nil, timeOf(e.Time)
	if l.Arrival == nil {
		l.Arrival = timeOf(e.Time)
	}
}

// arrive sets the queue times of a job that enters the queue as a new job, at the given time.
// Preempted and requeued jobs keep their Arrival instead.
func (l *JobLife) arrive(now time.Time) {
	l.Arrival, l.QueueTime, l.Wait = timeOf(now), timeOf(now), nil
}

// timeOf returns a pointer to the time of an event; nil for an event of an earlier version, which
// has none.
func timeOf(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}

type JobStarted struct {
	Attempt   int       `json:"attempt"`
	Nodes     []Name    `json:"nodes"`
	Resources Resources `json:"takes"`
	Time      time.Time `json:"time"`

	EvaluatorRevision int `json:"evaluatorRevision,omitempty"`
}

func (e JobStarted) Evolve(l *JobLife) {
	if l.Arrival == nil && l.State != JobPendingState { // the job did not have to wait in the queue
		l.Arrival = &e.Time
	}
	l.State, l.Status, l.Attempt, l.Nodes, l.Resources, l.StartTime = JobRunningState, StatusOf(nil), e.Attempt, e.Nodes,
		e.Resources, &e.Time
	l.Promised, l.QueueTime, l.Wait = false, nil, nil
	l.EvaluatorRevision = e.EvaluatorRevision
}

type JobRequeued struct {
	Attempt int       `json:"attempt"`
	Reason  string    `json:"reason"`
	Counted bool      `json:"counted"`
	Orphan  bool      `json:"orphan,omitempty"`
	Time    time.Time `json:"time"`
}

func (e JobRequeued) Evolve(l *JobLife) {
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

// worked adds to Work the seconds from the previous checkpoint, or from the start of the attempt,
// to end.
func (l *JobLife) worked(end time.Time) {
	if l.StartTime == nil {
		return
	}
	since := *l.StartTime
	if last, ok := l.LastCheckpoint(); ok && last.Time.After(since) {
		since = last.Time
	}
	l.Work += int64(max(0, end.Sub(since)).Seconds())
}
