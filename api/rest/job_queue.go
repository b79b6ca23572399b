package rest

import (
	"cmp"
	"net/http"
	"time"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// A Queue determines the order in which waiting jobs start. schedulers.Places implements it.
type Queue interface {
	// Places returns a function that returns the position of a job in its queue, from 1, and the
	// length of that queue. ok is false if the job is in no queue.
	Places(v *projections.View, now time.Time) func(job domain.Name) (position, length int, ok bool)
}

// A JobQueue describes what a waiting job waits for, and its position in the queue.
type JobQueue struct {
	// Position and Length are 0 in responses to changes, and if the job waits for something other
	// than capacity or quota.
	Position           int                 `json:"position,omitempty"`
	Length             int                 `json:"length,omitempty"`
	WaitingFor         string              `json:"waitingFor"`
	Since              *time.Time          `json:"since"`
	EstimatedStartTime *EstimatedStartTime `json:"estimatedStartTime,omitempty"`
}

// An EstimatedStartTime has percentiles of the estimated time at which a waiting job starts:
// Earliest is the 10th, Latest the 90th. The estimate is based on the waits of earlier jobs in the
// same situation.
type EstimatedStartTime struct {
	Earliest *time.Time `json:"earliest"`
	Median   *time.Time `json:"median"`
	Latest   *time.Time `json:"latest"`
}

// addQueue sets the field queue of a job. It is the hook resource.local of all kinds of jobs.
func addQueue[S domain.State, R any](c *call, row *projections.Row[S], out *R) {
	job, report := any(&row.State).(domain.Job), any(out).(interface{ report() *JobReport }).report()
	report.Queue = queueOf(c, row.Name, row.CreateTime, job.Life())
}

func (r *JobReport) report() *JobReport { return r }

// queueOf returns what a job waits for; nil if it does not wait. It shows no names of other jobs,
// because they may belong to other accounts.
func queueOf(c *call, name domain.Name, created time.Time, life *domain.JobLife) *JobQueue {
	if life.State != domain.JobPendingState && (life.State != domain.JobValidatingState || !life.Held()) {
		return nil
	}
	since := *cmp.Or(life.QueueTime, life.Arrival, &created)
	q := &JobQueue{WaitingFor: cmp.Or(life.WaitsFor(), "the scheduler"), Since: wire.Timestamp(since)}
	// The place in the queue also depends on later events of other jobs. So it is left out of
	// responses to changes, which show the state right after the change, and of earlier states (asOf).
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

// placeOf returns the position of a job in its queue, from 1, and the length of the queue. ok is
// false if the job is in no queue. All positions in a response are computed from the same View.
func placeOf(c *call, name domain.Name) (position, length int, ok bool) {
	c.findPlaces.Do(func() { c.places = c.Queue.Places(c.View(), c.Time) }) // lists render rows concurrently
	return c.places(name)
}
