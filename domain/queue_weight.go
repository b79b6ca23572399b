package domain

import "time"

// MaxQueueWeight is the maximum weight of an account in the queue of jobs.
const MaxQueueWeight = 1000

// QueueWeightSet is separate from AccountUpdated, because AccountUpdated replaces the whole
// AccountSpec: a control plane of an earlier version, which does not know the weight, would reset it.
type QueueWeightSet struct {
	QueueWeight int `json:"queueWeight"`
}

func (e QueueWeightSet) Evolve(a *Account) { a.QueueWeight = e.QueueWeight }

// SetQueueWeight sets the weight of an account in the queue of jobs.
type SetQueueWeight struct{ QueueWeight int }

func (c SetQueueWeight) Decide(a Account, _ time.Time) (Event[Account], error) {
	var v Violations
	v.Require(c.QueueWeight >= 1 && c.QueueWeight <= MaxQueueWeight, "queueWeight",
		"is %d: it must be from 1 to %d", c.QueueWeight, MaxQueueWeight)
	switch err := v.Err(); {
	case err != nil:
		return nil, err
	case !a.Exists():
		return nil, notFound("account")
	case max(1, a.QueueWeight) == c.QueueWeight:
		return nil, nil
	}
	return QueueWeightSet(c), nil
}
