package rest

import (
	"fmt"
	"strings"
	"time"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// addServing sets the fields of out that differ between servers. It is the hook resource.local of
// deployments.
func addServing(c *call, row *projections.Row[domain.Deployment], out *Deployment) {
	addHandle(c, row, out)
	if lacksReplicas(row) {
		addReplicaQueue(c, row, out)
	}
}

// lacksReplicas reports whether a deployment has fewer replicas than desired.
func lacksReplicas(row *projections.Row[domain.Deployment]) bool {
	return row.State.Live() && !row.State.Short.Desired.IsZero()
}

// addReplicaQueue sets out.Queue of a deployment that lacks replicas, and appends it to the message of
// the status if they wait for capacity.
func addReplicaQueue(c *call, row *projections.Row[domain.Deployment], out *Deployment) {
	d, v, since := &row.State, c.View(), row.State.Short.Since()
	q := &JobQueue{Since: wire.Timestamp(since)}
	out.Queue = q
	need := projections.ForAccount(v, row.Name.Account(), v.NeedOf(d))
	switch model, ok := v.Models.Get(domain.Name(d.BaseModel)); {
	case ok && model.State.State != domain.ModelReady:
		q.WaitingFor = fmt.Sprintf("the model %s, which is not READY", d.BaseModel)
		return
	case d.Failures > 0:
		q.WaitingFor = "the next attempt to start a replica, after the last one failed"
		return
	case out.Status.Code == domain.OK.String():
		q.WaitingFor = "the scheduler"
		q.setPlace(c, row.Name)
		return
	case len(d.Replicas) >= d.MaxReplicas():
		q.WaitingFor = "capacity for which nothing else waits: " + need.String()
		q.NoEstimateReason = "replicas above maxReplicaCount have no place in the queue"
	default:
		q.WaitingFor = domain.HeldForCapacity + ": " + need.String()
		q.setPlace(c, row.Name)
		q.estimateReplica(c, d, need, since)
	}
	if v.Past == nil {
		out.Status.Message += "; " + q.text(d)
	}
}

// estimateReplica sets the estimate of the time at which a deployment no longer lacks replicas within
// its minimum or, if it lacks none of these, no replicas at all, from the earlier waits of deployments
// that were longer than this one.
func (q *JobQueue) estimateReplica(c *call, d *domain.Deployment, need domain.Need, since time.Time) {
	v := c.View()
	if v.Past != nil {
		return
	}
	if v.Feasibility(need).Infeasible() {
		q.NoEstimateReason = noNodes
		return
	}
	estimate, longer := v.Waits.EstimateReplica(!d.Short.Minimum.IsZero(), d.AcceleratorCount,
		secondsSince(since, c.Time))
	q.estimate(since, estimate, longer, "deployments")
}

// text returns the queue as a part of a status message.
func (q *JobQueue) text(d *domain.Deployment) string {
	at := func(t *time.Time) string { return t.UTC().Format(time.RFC3339) }
	since, placed := d.Short.Since(), "the missing replicas are"
	if !d.Short.Minimum.IsZero() {
		placed = "the missing replicas within minReplicaCount are"
	}
	parts := []string{"waiting since " + at(&since)}
	if q.Position > 0 {
		parts = append(parts, fmt.Sprintf("position %d of %d in the queue", q.Position, q.Length))
	}
	if e := q.EstimatedStartTime; e != nil {
		parts = append(parts, fmt.Sprintf("%s placed between %s and %s with a probability of 80 %%", placed,
			at(e.Earliest), at(e.Latest)))
	}
	if q.NoEstimateReason != "" {
		parts = append(parts, "no estimate: "+q.NoEstimateReason)
	}
	return strings.Join(parts, ", ")
}
