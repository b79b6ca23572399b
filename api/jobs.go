package api

import (
	"reflect"
	"strconv"
	"time"

	"anneal/api/request"
	"anneal/blobs"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/query"
)

// jobOperations are what every kind of job can do beyond the generic ones.
func jobOperations[S domain.State, R any](s *Server, res *resource[S, R]) []request.Operation {
	one, path := res.singular(), request.CollectionPath+res.kind.Collection+"/{id}"
	cancel := res.verb(func(c *call, row *projections.Row[S]) (any, error) {
		_, err := c.Do(domain.IntendJob(row.Name, domain.CancelJob{}))
		return request.Empty, err
	})
	resume := res.verb(func(c *call, row *projections.Row[S]) (any, error) {
		if err := c.RequireActive(c.Account); err != nil {
			return nil, err
		}
		result, err := c.Do(domain.IntendJob(row.Name, domain.ResumeJob{}))
		if err != nil {
			return nil, err
		}
		return res.reply(c, result)
	})
	checkpoints := func(c *call) (any, error) {
		row, err := res.row(c)
		if err != nil {
			return nil, err
		}
		return listCheckpoints(c, row.Name, any(&row.State).(domain.Job).Life())
	}
	all := []request.Operation{
		{ID: "cancel" + one, Method: "POST", Path: path + ":cancel", Summary: "Cancel " + res.aNoun(), Permission: request.Write,
			Description: "It answers once that is recorded; the job then stops within moments.", Body: request.NoBody, BodyOptional: true, ReleasesResources: true, Response: request.NoBody, Handle: s.handle(cancel)},
		{ID: "resume" + one, Method: "POST", Path: path + ":resume", Summary: "Go on with " + res.aNoun() + " from its last checkpoint", Permission: request.Write,
			Body: request.NoBody, BodyOptional: true, Response: reflect.TypeFor[R](), Handle: s.handle(resume)},
		{ID: "get" + one + "MetricsFileEndpoint", Method: "GET", Path: path + ":getMetricsFileEndpoint", Summary: "Get a URL of the metrics of " + res.aNoun(), Permission: request.Read,
			Description: "The file has one JSON object for each step.", Response: reflect.TypeFor[signedURL](), Handle: s.handle(res.verb(func(c *call, row *projections.Row[S]) (any, error) {
				return metricsFile(c, row.Name, row.CreateEvent, row.CreateTime)
			}))},
		{ID: "list" + one + "Checkpoints", Method: "GET", Path: path + "/checkpoints", Summary: "List the checkpoints of " + res.aNoun(), Permission: request.Read,
			Query: request.ListParameters, Response: request.PageType("checkpoints", reflect.TypeFor[Checkpoint]()), Handle: s.handle(checkpoints)},
	}
	for i := range all {
		all[i].Tag = res.kind.Collection
	}
	return all
}

// jobDeadline is when a job that is created now expires; nil is never.
func (c *call) jobDeadline() *time.Time {
	if c.server.Limits.JobTime <= 0 {
		return nil
	}
	at := c.Time.Add(c.server.Limits.JobTime)
	return &at
}

// removeJob begins the removal of a job of any kind.
func removeJob[S domain.State](kind *domain.Kind[S]) func(*call, *projections.Row[S], *request.Params) (domain.Command[S], error) {
	return func(_ *call, row *projections.Row[S], _ *request.Params) (domain.Command[S], error) {
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

// A signedURL leads to a file without a key.
type signedURL struct {
	URL string `json:"signedUrl"`
}

func metricsFile(c *call, job domain.Name, event string, made time.Time) (any, error) {
	key := blobs.MetricsFile(job, event)
	_, err := c.server.Blobs.Size(c.Ctx, key)
	if domain.CodeOf(err) == domain.NotFound {
		key = blobs.EarlierMetricsFile(job, made)
		_, err = c.server.Blobs.Size(c.Ctx, key)
	}
	if domain.CodeOf(err) == domain.NotFound {
		f := domain.Errorf(domain.FailedPrecondition, "%s has no metrics yet: they appear within seconds of its first step; its state and jobProgress say how far it is", job)
		f.Reason = "NO_METRICS"
		return nil, f
	}
	if err != nil {
		return nil, err
	}
	url, err := c.server.Blobs.SignGet(c.Ctx, key, c.server.Limits.SignedURL)
	return signedURL{url}, err
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

var checkpointFields = fieldsOf[Checkpoint]()

func listCheckpoints(c *call, job domain.Name, life *domain.JobLife) (any, error) {
	p := c.Params()
	q, m := request.ReadListQuery(c.Call, p, reflect.TypeFor[Checkpoint]())
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
	page, err := query.List(rows, render, checkpointFields, q)
	if err := request.JoinErrors(p.Err(), err); err != nil {
		return nil, err
	}
	return request.ListResponse("checkpoints", page.Items, page.NextPageToken, page.TotalSize, m)
}
