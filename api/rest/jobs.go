package rest

import (
	"reflect"
	"strconv"
	"time"

	"anneal/api/request"
	"anneal/blobs"
	"anneal/domain"
	"anneal/projections"
)

// jobOperations returns the operations that jobs have in addition to the generic operations of
// resources.
func jobOperations[S domain.State, R any](res *resource[S, R]) group {
	return func(s *Service) []request.Operation { return operationsOfJobs(s, res) }
}

func operationsOfJobs[S domain.State, R any](s *Service, res *resource[S, R]) []request.Operation {
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
	promote := func(c *call) (any, error) {
		row, err := res.row(c)
		if err != nil {
			return promoteCheckpoint(c, trainedJob{}, err)
		}
		return promoteCheckpoint(c, trainedJob{row.Name, row.CreateEvent, any(&row.State).(domain.Job)}, nil)
	}
	all := []request.Operation{
		{ID: "cancel" + one, Method: "POST", Path: path + ":cancel", Summary: "Cancel " + withArticle(res.noun),
			Permission:   request.Write,
			Description:  "The response is sent once the cancellation is recorded; the job stops shortly afterwards.",
			Body:         request.NoBody,
			BodyOptional: true, ReleasesResources: true, Response: request.NoBody, Handle: s.handle(cancel)},
		{ID: "resume" + one, Method: "POST", Path: path + ":resume", Summary: "Resume " + withArticle(res.noun) +
			" from its last checkpoint", Permission: request.Write,
			Body: request.NoBody, BodyOptional: true, Response: reflect.TypeFor[R](), Handle: s.handle(resume)},
		priorityOperation(s, res),
		{ID: "get" + one + "MetricsFileEndpoint", Method: "GET", Path: path + ":getMetricsFileEndpoint",
			Summary: "Get a signed URL of the metrics of " + withArticle(res.noun), Permission: request.Read,
			Description: "Each line of the file is a JSON object with the metrics of one " +
				"step.", Response: reflect.TypeFor[signedURL](),
			Handle: s.handle(res.verb(func(c *call, row *projections.Row[S]) (any, error) {
				return metricsFile(c, row.Name, row.CreateEvent, row.CreateTime)
			}))},
		{ID: "get" + one + "TrainerLogsEndpoint", Method: "GET", Path: path + ":getTrainerLogsEndpoint",
			Summary: "Get a signed URL of the log of " + withArticle(res.noun), Permission: request.Read,
			Description: "The file is a text with the progress of the job and the output of its trainer.",
			Response:    reflect.TypeFor[signedURL](),
			Handle: s.handle(res.verb(func(c *call, row *projections.Row[S]) (any, error) {
				return trainerLog(c, row.Name, row.CreateEvent, any(&row.State).(domain.Job).Life().Attempt)
			}))},
		{ID: "list" + one + "Checkpoints", Method: "GET", Path: path + "/checkpoints", Summary: "List the checkpoints of " +
			withArticle(res.noun), Permission: request.Read,
			Query: request.ListParameters, Response: request.PageType("checkpoints", reflect.TypeFor[Checkpoint]()),
			Handle: s.handle(checkpoints)},
		{ID: "promote" + one + "Checkpoint", Method: "POST", Path: path + "/checkpoints/{checkpoint}:promote",
			Summary:    "Promote a checkpoint of " + withArticle(res.noun) + " to a model",
			Permission: request.Write,
			Description: "The model in the response is READY. It remains when the job or the checkpoint is deleted. A job " +
				"keeps its last " + strconv.Itoa(domain.MaxCheckpoints) + " checkpoints.",
			Body: reflect.TypeFor[promotion](), Required: []string{"modelId"}, Response: reflect.TypeFor[Model](),
			Handle: s.handle(promote)},
	}
	return withTag(res.kind.Collection, all)
}

// jobDeadline returns the time at which a job that is created now will expire; nil if jobs do not
// expire.
func jobDeadline(c *call) *time.Time {
	if c.Limits.JobTime <= 0 {
		return nil
	}
	at := c.Time.Add(c.Limits.JobTime)
	return &at
}

// removeJob returns the hook resource.remove for a kind of job, which returns the command deleteJob.
func removeJob[S domain.State](kind *domain.Kind[S]) func(*call, *projections.Row[S],
	*request.Params) (domain.Command[S], error) {
	return func(_ *call, row *projections.Row[S], _ *request.Params) (domain.Command[S], error) {
		return deleteJob[S]{kind, row.Name}, nil
	}
}

// deleteJob adapts domain.DeleteJob, which is for all kinds of jobs, to a command of one kind.
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

// A signedURL is a URL from which a file can be read without an API key.
type signedURL struct {
	URL string `json:"signedUrl"`
}

func metricsFile(c *call, job domain.Name, event string, createTime time.Time) (any, error) {
	key := blobs.MetricsFile(job, event)
	_, err := c.Uploads.Blobs.Size(c.Ctx, key)
	if domain.CodeOf(err) == domain.NotFound {
		key = blobs.EarlierMetricsFile(job, createTime)
		_, err = c.Uploads.Blobs.Size(c.Ctx, key)
	}
	if domain.CodeOf(err) == domain.NotFound {
		f := domain.Errorf(domain.FailedPrecondition,
			"%s has no metrics yet: they are available some seconds after its first step; state and jobProgress show its "+
				"progress",
			job)
		f.Reason = "NO_METRICS"
		return nil, f
	}
	if err != nil {
		return nil, err
	}
	url, err := c.Uploads.Blobs.SignGet(c.Ctx, key, c.Limits.SignedURL)
	return signedURL{url}, err
}
