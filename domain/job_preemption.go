package domain

import "time"

// JobPreempting requests that the running attempt of a job saves a checkpoint and stops, so that
// the job can continue on other nodes.
type JobPreempting struct {
	Attempt int       `json:"attempt"`
	Reason  string    `json:"reason"`
	Time    time.Time `json:"time"`
	Queue   bool      `json:"queue,omitempty"` // the job is preempted for another job in the queue
}

func (e JobPreempting) Evolve(l *JobLife) {
	l.Pausing, l.Preempting = &JobPause{e.Reason, e.Time}, true
	if e.Queue {
		l.Preemptions++
	}
	l.Status = Status{Unavailable.String(), e.Reason}
}

// PreemptJob moves a job to other nodes: its attempt saves a checkpoint and stops, and the job is
// queued again. The attempt does not count as a failure. PreemptJob records nothing if the attempt
// is already stopping.
type PreemptJob struct {
	Attempt int
	Reason  string
	Queue   bool `json:",omitempty"` // the job is preempted for another job in the queue; increases Preemptions
}

func (c PreemptJob) Decide(l JobLife, now time.Time) (Event[JobLife], error) {
	if l.Exists() && l.Attempt == c.Attempt && (l.State == JobReQueueingState || l.Pausing != nil) {
		return nil, nil
	}
	if err := l.fence(c.Attempt); err != nil {
		return nil, err
	}
	if err := l.must(JobRunningState, JobIdleState, JobWritingResultsState); err != nil {
		return nil, err
	}
	return JobPreempting{c.Attempt, c.Reason, now, c.Queue}, l.mustLackResults()
}
