package rest

import (
	"cmp"
	"net/http"
	"time"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// A Queue knows the order in which waiting jobs start.
type Queue interface {
	// Places returns a function that returns the position of a waiting job, from 1, and how many jobs
	// wait in the same queue; false if the job does not wait in a queue.
	Places(v *projections.View, now time.Time) func(job domain.Name) (position, length int, ok bool)
}

// A JobQueue says where a waiting job is in the queue, and what it waits for.
type JobQueue struct {
	// Position and Length are 0 in responses to changes, and for a job that waits for something other
	// than capacity or quota.
	Position           int                 `json:"position,omitempty"`
	Length             int                 `json:"length,omitempty"`
	WaitingFor         string              `json:"waitingFor"`
	Since              *time.Time          `json:"since"`
	EstimatedStartTime *EstimatedStartTime `json:"estimatedStartTime,omitempty"`
}

// An EstimatedStartTime is the interval in which 80 % of the jobs start that began to wait in the same
// situation.
type EstimatedStartTime struct {
	Earliest *time.Time `json:"earliest"`
	Median   *time.Time `json:"median"`
	Latest   *time.Time `json:"latest"`
}

// addQueue is the hook resource.local of all kinds of jobs.
func addQueue[S domain.State, R any](c *call, row *projections.Row[S], out *R) {
	job, report := any(&row.State).(domain.Job), any(out).(interface{ report() *JobReport }).report()
	report.Queue = queueOf(c, row.Name, row.CreateTime, job.Life())
}

func (r *JobReport) report() *JobReport { return r }

// queueOf returns what a job waits for, or nil if it does not wait. Of other jobs it shows only the
// number, because they may belong to other accounts.
func queueOf(c *call, name domain.Name, created time.Time, life *domain.JobLife) *JobQueue {
	if life.State != domain.JobPendingState && (life.State != domain.JobValidatingState || !life.Held()) {
		return nil
	}
	since := *cmp.Or(life.QueueTime, life.Arrival, &created)
	q := &JobQueue{WaitingFor: cmp.Or(life.WaitsFor(), "the scheduler"), Since: wire.Timestamp(since)}
	// The response to a change shows the state that its event produced, and the position depends on
	// the events of other jobs. In an earlier state, no position is computed.
	if c.Queue != nil && life.Queued() && c.View().Past == nil && c.Request.Method == http.MethodGet {
		q.Position, q.Length, _ = placeOf(c, name)
	}
	if wait := life.Wait; wait != nil && wait.Estimate != nil {
		at := func(seconds int64) time.Time { return wait.Time.Add(time.Duration(seconds) * time.Second) }
		if latest := at(wait.Estimate.High); !latest.Before(c.Time) {
			q.EstimatedStartTime = &EstimatedStartTime{wire.Timestamp(at(wait.Estimate.Low)),
				wire.Timestamp(at(wait.Estimate.Median)), wire.Timestamp(latest)}
		}
	}
	return q
}

// placeOf returns the position of a job in its queue, from 1, and the length of the queue. All positions
// in one response are computed at the same time.
func placeOf(c *call, name domain.Name) (position, length int, ok bool) {
	if c.places == nil {
		c.places = c.Queue.Places(c.View(), c.Time)
	}
	return c.places(name)
}
