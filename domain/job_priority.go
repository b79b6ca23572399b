package domain

import "time"

// A JobPriority orders the jobs of one account in the queue. It does not change the order between
// accounts.
type JobPriority string

// Priorities of a job. The state of a job has "" instead of PriorityNormal.
const (
	PriorityLow    JobPriority = "PRIORITY_LOW"
	PriorityNormal JobPriority = "PRIORITY_NORMAL"
	PriorityHigh   JobPriority = "PRIORITY_HIGH"
)

// JobPriorities lists the priorities, the lowest first.
var JobPriorities = []string{string(PriorityLow), string(PriorityNormal), string(PriorityHigh)}

// Level returns the priority as a number, to compare priorities: -1 for LOW, 0 for NORMAL and 1 for
// HIGH.
func (p JobPriority) Level() int64 {
	switch p {
	case PriorityLow:
		return -1
	case PriorityHigh:
		return 1
	}
	return 0
}

// JobPrioritized records a change of the job's priority.
type JobPrioritized struct {
	Priority JobPriority `json:"priority"`
}

func (e JobPrioritized) Evolve(l *JobLife) {
	l.Priority = e.Priority
	if e.Priority == PriorityNormal {
		l.Priority = ""
	}
}

// SetJobPriority sets the queue priority of a job that has not ended.
type SetJobPriority struct{ Priority JobPriority }

func (c SetJobPriority) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	var v Violations
	v.Require(c.Priority != "", "priority", "is required: give one of %s", join(JobPriorities))
	oneOf(&v, "priority", string(c.Priority), JobPriorities...)
	switch err := v.Err(); {
	case !l.Exists():
		return nil, notFound("job")
	case err != nil:
		return nil, err
	case c.Priority == l.Priority || c.Priority == PriorityNormal && l.Priority == "":
		return nil, nil
	case l.Deleting() || l.State == JobCompletedState || l.State == JobEarlyStoppedState:
		return nil, precondition("JOB_STATE", "the job is %s: only a job that can still run has a priority", l.State)
	}
	return JobPrioritized(c), nil
}
