package api

import (
	"reflect"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"

	"anneal/domain"
	"anneal/projections"
)

// routeJobs routes what every kind of job can do beyond the generic
// operations.
func (s *Server) routeJobs(r chi.Router) {
	routeJob(s, r, supervisedJobs, func(j domain.SupervisedJob) domain.JobLife { return j.JobLife })
	routeJob(s, r, dpoJobs, func(j domain.DPOJob) domain.JobLife { return j.JobLife })
	routeJob(s, r, reinforcementJobs, func(j domain.ReinforcementJob) domain.JobLife { return j.JobLife })
	routeJob(s, r, trainerJobs, func(j domain.TrainerJob) domain.JobLife { return j.JobLife })
}

func routeJob[S domain.State, R any](s *Server, r chi.Router, res *resource[S, R], life func(S) domain.JobLife) {
	one := "/v1/accounts/{account}/" + res.kind.Collection + "/{id}"
	r.Post(one+":cancel", s.manage(toWrite, res.verb(func(c *call, row *projections.Row[S]) (any, error) {
		return empty, c.do(domain.IntendJob(row.Name, domain.CancelJob{}))
	})))
	r.Post(one+":resume", s.manage(toWrite, res.verb(func(c *call, row *projections.Row[S]) (any, error) {
		if err := c.mayWork(c.account); err != nil {
			return nil, err
		}
		if err := c.do(domain.IntendJob(row.Name, domain.ResumeJob{})); err != nil {
			return nil, err
		}
		return res.wire(c, row.Name)
	})))
	r.Get(one+":getMetricsFileEndpoint", s.manage(toRead, res.verb(func(c *call, row *projections.Row[S]) (any, error) {
		return metricsFile(c, row.Name)
	})))
	r.Get(one+"/checkpoints", s.manage(toRead, func(c *call) (any, error) {
		row, err := res.row(c)
		if err != nil {
			return nil, err
		}
		return listCheckpoints(c, row.Name, life(row.State))
	}))
}

// removeJob begins the removal of a job of any kind.
func removeJob[S domain.State](kind *domain.Kind[S]) func(*call, *projections.Row[S], *params) (domain.Command[S], error) {
	return func(_ *call, row *projections.Row[S], _ *params) (domain.Command[S], error) {
		return deleteJob[S]{kind, row.Name}, nil
	}
}

// deleteJob is domain.DeleteJob told of a whole job.
type deleteJob[S domain.State] struct {
	kind *domain.Kind[S]
	name domain.Name
}

func (d deleteJob[S]) Decide(state S, now time.Time) (domain.Event[S], error) {
	record, err := domain.IntendJob(d.name, domain.DeleteJob{}).Decide(state, now)
	if err != nil || record.Type == "" {
		return nil, err
	}
	return d.kind.Decode(record)
}

// metricsKey is where a job's metrics are stored, one JSON object a step.
func metricsKey(job domain.Name) string {
	return "jobs/" + job.Account() + "/" + job.Collection() + "/" + job.ID() + "/metrics.jsonl"
}

func metricsFile(c *call, job domain.Name) (any, error) {
	_, err := c.Blobs.Size(c.ctx, metricsKey(job))
	if domain.CodeOf(err) == domain.NotFound {
		f := domain.Faultf(domain.FailedPrecondition, "%s has no metrics yet: they appear within seconds of its first step; its state and jobProgress say how far it is", job)
		f.Reason = "NO_METRICS"
		return nil, f
	}
	if err != nil {
		return nil, err
	}
	url, err := c.Blobs.SignGet(c.ctx, metricsKey(job), c.Limits.SignedURL)
	return map[string]string{"signedUrl": url}, err
}

// Checkpoint is a place from which a job goes on, on the wire.
type Checkpoint struct {
	Name       string             `json:"name"`
	CreateTime time.Time          `json:"createTime"`
	Step       int                `json:"step"`
	Attempt    int                `json:"attempt"`
	Metrics    map[string]float64 `json:"metrics"`
}

type checkpointState struct{ domain.JobCheckpoint }

// Exists implements domain.State.
func (checkpointState) Exists() bool { return true }

var checkpointFields = projections.FieldsOf[Checkpoint]()

func listCheckpoints(c *call, job domain.Name, life domain.JobLife) (any, error) {
	p := readParams(c.r.URL)
	q, m := readQuery(c, p, reflect.TypeFor[Checkpoint]())
	q.DefaultOrder = "createTime"
	rows := func(yield func(*projections.Row[checkpointState]) bool) {
		for _, one := range life.Checkpoints {
			name := string(job) + "/checkpoints/" + strconv.Itoa(one.Attempt) + "-" + strconv.Itoa(one.Step)
			row := &projections.Row[checkpointState]{Name: domain.Name(name), State: checkpointState{one}, CreateTime: one.Time}
			if !yield(row) {
				return
			}
		}
	}
	render := func(row *projections.Row[checkpointState], out *Checkpoint) {
		at := row.State
		*out = Checkpoint{string(row.Name), at.Time.UTC(), at.Step, at.Attempt, at.Metrics}
		if out.Metrics == nil {
			out.Metrics = map[string]float64{}
		}
	}
	page, err := projections.List(rows, render, checkpointFields, q)
	if err := both(p.err(), err); err != nil {
		return nil, err
	}
	return listAnswer("checkpoints", page.Items, page.NextPageToken, page.TotalSize, m)
}
