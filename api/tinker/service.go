// Package tinker serves the Tinker protocol at the direct routes of trainer jobs with serviceMode:
// users run the training loop in their own program. The package validates operations, stores them
// durably in the journal of their run (package blobs/operations), and returns their results, which
// an attempt of the job computes.
//
// Sessions, runs and checkpoints are recorded in the log. Sampling sessions are not stored: the ID
// of a sampling session contains its state.
package tinker

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"anneal/api/request"
	"anneal/blobs"
	"anneal/blobs/operations"
	"anneal/domain"
	"anneal/projections"
	protocol "anneal/tinker"
)

// Limits of a training service, besides those of package anneal/tinker and of package
// blobs/operations.
const (
	MaxLiveRuns = 1000   // maximum number of runs of a job that accept operations
	MaxRuns     = 10_000 // maximum number of runs of a job
	MaxSessions = 10_000 // maximum number of sessions of a job
)

// HoldTime is how long a poll waits for a result. Clients give up a poll after 45 s.
const HoldTime = 20 * time.Second

// ArchiveTime is how long the URL of an archive is valid.
const ArchiveTime = time.Hour

// metadataSize is the size of a result in bytes from which a poll with allow_metadata_only gets
// only the size.
const metadataSize = 4 << 20

// Options are the dependencies of a Service.
type Options struct {
	Journal *operations.Store
	Blobs   *blobs.Store
	// Touch records that a client uses the training service of a job, so that the job keeps its node.
	Touch   func(job domain.Name, at time.Time)
	Address string        // URL of the server, whose scheme is that of the URLs of archives
	Hold    time.Duration // how long a poll waits for a result; 0 stands for HoldTime
}

// A Service is the training service of all jobs.
type Service struct{ Options }

// NewService returns a service.
func NewService(o Options) *Service {
	o.Hold = cmp.Or(o.Hold, HoldTime)
	if o.Touch == nil {
		o.Touch = func(domain.Name, time.Time) {}
	}
	return &Service{o}
}

// A call is one request to the training service of a job.
type call struct {
	*request.Call
	*Service
	job  *projections.Row[domain.TrainerJob]
	body []byte // the decompressed body
}

type handler func(c *call) (any, error)

// handle returns the handler of an operation whose body has at most limit bytes. If h returns
// NotFound, it is called again with the newest state, because another control plane may have
// created the resource.
func (s *Service) handle(h handler, limit int) request.Handler {
	return func(rc *request.Call) (any, error) {
		c := &call{Call: rc, Service: s}
		if err := c.readBody(limit); err != nil {
			return nil, err
		}
		defer c.Conn.ReleaseBody()
		result, err := c.run(h)
		if domain.CodeOf(err) == domain.NotFound && request.CatchUp(rc) {
			result, err = c.run(h)
		}
		return result, err
	}
}

func (c *call) run(h handler) (any, error) {
	row, ok := projections.TableOf(c.View(), domain.TrainerJobs).Get(c.Direct)
	if !ok || !row.State.HasService() {
		return nil, request.NotFound("trainer job with serviceMode", c.Direct)
	}
	c.job = row
	return h(c)
}

func (c *call) readBody(limit int) error {
	if c.Request.Method == http.MethodGet || c.Request.Method == http.MethodDelete {
		return nil
	}
	raw, err := c.Conn.ReadBody(c.Request, int64(limit))
	if err == nil {
		c.body, err = protocol.ReadBody(strings.NewReader(string(raw)), c.Request.Header.Get("Content-Encoding"), limit)
	}
	return err
}

// decode decodes the JSON body of a request.
func decode[T any, P interface {
	*T
	protocol.Request
}](c *call) (T, error) {
	return protocol.Decode[T, P](c.body)
}

// Operations returns the operations, which are served at the host names of trainer jobs only.
func (s *Service) Operations() []request.Operation {
	all := slices.Concat(s.sessionOperations(), s.runOperations(), s.submitOperations(), s.futureOperations(),
		s.checkpointOperations(), s.refusedOperations())
	for i := range all {
		op := &all[i]
		op.Path, op.Tag, op.Hidden = "/"+strings.Trim(protocol.BasePath, "/")+"/"+op.Path, "training", true
		if op.Gate != request.Everyone {
			op.Gate = request.ToTraining
		}
	}
	return all
}

// wake starts the training service of the job unless it is running. It returns FailedPrecondition
// if the job cannot start it.
func (c *call) wake() error {
	c.Touch(c.job.Name, c.Now())
	if c.job.State.Serving && c.job.State.Live() {
		return nil
	}
	_, err := c.Do(domain.Intend(domain.TrainerJobs, c.job.Name, domain.Command[domain.TrainerJob](domain.StartService{})).
		Of(c.job.CreateEvent))
	return err
}

// ofJob reports whether a session or run belongs to the job of the request.
func (c *call) ofJob(job domain.Name, event string) bool {
	return job == c.job.Name && event == c.job.CreateEvent
}

// session returns the session with an ID.
func (c *call) session(id string) (*projections.Row[domain.TrainingSession], error) {
	if domain.ValidID(id) {
		row, ok := c.View().Sessions.Get(domain.NewName(c.Account, domain.TrainingSessions.Collection, id))
		if ok && c.ofJob(row.State.Job, row.State.JobEvent) {
			return row, nil
		}
	}
	return nil, request.NotFoundReason("SESSION_NOT_FOUND",
		"the training service of %s has no session %s: create a session first", c.job.Name, quote(id))
}

// trainingRun returns the run with an ID.
func (c *call) trainingRun(id string) (*projections.Row[domain.TrainingRun], error) {
	if domain.ValidID(id) {
		row, ok := c.View().Runs.Get(domain.NewName(c.Account, domain.TrainingRuns.Collection, id))
		if ok && c.ofJob(row.State.Job, row.State.JobEvent) {
			return row, nil
		}
	}
	return nil, request.NotFoundReason("RUN_NOT_FOUND",
		"the training service of %s has no run %s: create a model first, and list runs with GET %straining_runs", c.job.Name,
		quote(id), protocol.BasePath)
}

func (c *call) runLane(run domain.Name) operations.Lane {
	return operations.Lane{Account: c.Account, Job: c.job.CreateEvent, ID: run.ID()}
}

// modelName returns the name of a model in the protocol: ACCOUNT/ID.
func modelName(name domain.Name) string { return name.Account() + "/" + name.ID() }

// baseModel returns the base model of the job.
func (c *call) baseModel() (domain.Name, error) {
	name := domain.Name(c.job.State.TrainingConfig.BaseModel)
	if name == "" {
		return "", &domain.Error{Code: domain.FailedPrecondition, Reason: "NO_BASE_MODEL",
			Message: "the trainer job has no trainingConfig.baseModel: create a job with a base model"}
	}
	return name, nil
}

// checkBaseModel returns the base model of the job, and an error if the request names another one.
func (c *call) checkBaseModel(given string) (domain.Name, error) {
	name, err := c.baseModel()
	if err == nil && given != modelName(name) && given != string(name) {
		var v domain.Violations
		v.Add("base_model", "is %s: the trainer job trains %s; use that name, or the route of another job", quote(given),
			quote(modelName(name)))
		err = v.Err()
	}
	return name, err
}

// writeJSON writes a response with a status.
func writeJSON(w http.ResponseWriter, status int, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", protocol.ContentTypeJSON)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n'))
	return nil
}
