package rest

import (
	"cmp"
	"fmt"
	"net/http"
	"time"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// A Queue determines the order in which waiting jobs and replicas start. schedulers.Places implements
// it.
type Queue interface {
	// Places returns a function that returns the position of a job, or of the first missing replica of
	// a deployment, in its queue, from 1, and the length of that queue. ok is false if it is in no
	// queue.
	Places(v *projections.View, now time.Time) func(resource domain.Name) (position, length int, ok bool)
}

// A JobQueue describes what a waiting job, or a deployment that lacks replicas, waits for, and its
// position in the queue.
type JobQueue struct {
	// Position and Length are 0 in responses to changes, and if the resource waits for something other
	// than capacity or quota.
	Position           int                 `json:"position,omitempty"`
	Length             int                 `json:"length,omitempty"`
	WaitingFor         string              `json:"waitingFor"`
	Since              *time.Time          `json:"since"`
	EstimatedStartTime *EstimatedStartTime `json:"estimatedStartTime,omitempty"`
	// NoEstimateReason is why a resource that waits for capacity has no EstimatedStartTime, and when
	// it will have one.
	NoEstimateReason string `json:"noEstimateReason,omitempty"`
}

// An EstimatedStartTime has percentiles of the estimated time at which a waiting job starts, or the
// missing replicas of a deployment are placed: Earliest is the 10th, Latest the 90th. The estimate is based on the
// waits of earlier ones in the same situation.
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
	if life.Queued() {
		q.setPlace(c, name)
	}
	if life.Wait != nil && c.View().Past == nil {
		q.estimateJob(c, name, life.Wait)
	}
	return q
}

// estimateJob sets the estimate of a job that waits for capacity: the recorded one, which was made
// when the wait began, or, if there is none or its interval has passed, one from the earlier waits that
// were longer than this one.
func (q *JobQueue) estimateJob(c *call, name domain.Name, wait *domain.JobWait) {
	if e := wait.Estimate; e != nil && !c.Time.After(wait.Time.Add(time.Duration(e.High)*time.Second)) {
		q.setEstimate(wait.Time, *e)
	} else {
		estimate, longer := c.View().Waits.EstimateAfter(wait.Situation, secondsSince(wait.Time, c.Time))
		q.estimate(wait.Time, estimate, longer, "jobs")
	}
	job, ok := c.View().Job(name)
	if ok && c.View().Feasibility(c.View().NeedOfJob(name.Account(), job.State.Spec())).Infeasible() {
		q.EstimatedStartTime, q.NoEstimateReason = nil, noNodes
	}
}

// noNodes is why there is no estimate if no node could run what waits.
const noNodes = "the nodes of the fleet could not run it even if they were empty: the status says what is missing"

// estimate sets the estimate of a wait from longer earlier waits or, if they are too few, the reason
// why there is none. what names the resources that waited.
func (q *JobQueue) estimate(begin time.Time, e domain.WaitEstimate, longer int, what string) {
	if longer >= domain.MinWaits {
		q.setEstimate(begin, e)
		return
	}
	q.NoEstimateReason = fmt.Sprintf("an estimate needs %d earlier %s that have waited for longer than this one has "+
		"until now, and there are %d", domain.MinWaits, what, longer)
}

func (q *JobQueue) setEstimate(begin time.Time, e domain.WaitEstimate) {
	at := func(seconds int64) *time.Time { return wire.Timestamp(begin.Add(time.Duration(seconds) * time.Second)) }
	q.EstimatedStartTime = &EstimatedStartTime{at(e.Low), at(e.Median), at(e.High)}
}

func secondsSince(begin, now time.Time) int64 { return int64(now.Sub(begin) / time.Second) }

// setPlace sets the position of a job or deployment in the queue. The position also depends on later
// events of other resources. So it is left out of responses to changes, which show the state right
// after the change, and of earlier states (asOf).
func (q *JobQueue) setPlace(c *call, name domain.Name) {
	if c.Queue != nil && c.View().Past == nil && c.Request.Method == http.MethodGet {
		q.Position, q.Length, _ = placeOf(c, name)
	}
}

// placeOf returns the position of a job or deployment in its queue, from 1, and the length of the
// queue. ok is false if it is in no queue. All positions in a response are computed from the same View.
func placeOf(c *call, name domain.Name) (position, length int, ok bool) {
	c.findPlaces.Do(func() { c.places = c.Queue.Places(c.View(), c.Time) }) // lists render rows concurrently
	return c.places(name)
}
