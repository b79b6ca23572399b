package rest

import (
	"cmp"
	"io"
	"reflect"
	"time"

	"github.com/google/uuid"

	"anneal/api/request"
	"anneal/api/upload"
	"anneal/blobs"
	"anneal/domain"
	"anneal/domain/weights"
	"anneal/projections"
	"anneal/projections/query"
)

// Checkpoint is the wire type of a checkpoint of a job.
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
		for _, one := range life.AllCheckpoints() {
			name := string(job) + "/checkpoints/" + one.ID()
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

// A promotion is the request body of the promotion of a checkpoint.
type promotion struct {
	ModelID string `json:"modelId"`
}

// A trainedJob is a job of any kind whose checkpoints can be promoted.
type trainedJob struct {
	name  domain.Name
	event string // ID of the event that created the job
	state domain.Job
}

// promoteCheckpoint creates a model from a checkpoint. It copies the checkpoint's files, because
// the job deletes its checkpoints: it counts their size against the storage quota, copies them, and
// then records the event that refers to the copies. missing is the error to return if the job does
// not exist.
func promoteCheckpoint(c *call, job trainedJob, missing error) (any, error) {
	var given promotion
	p := c.Params()
	unread := p.ReadVerb(&given)
	if given.ModelID != "" || unread == nil && len(p.Violations) == 0 {
		p.Violations.Require(domain.ValidID(given.ModelID), "modelId", "%s", domain.IDRule)
	}
	name := domain.NewName(c.Account, domain.Models.Collection, given.ModelID)
	// If an earlier attempt of this request has created the model, respond with the model, even if
	// the job was deleted since.
	if unread == nil && p.Err() == nil {
		if again, err := recordedRow(c, models, name); again != nil || err != nil {
			if err != nil {
				return nil, err
			}
			return models.rendered(c, again), nil
		}
	}
	if err := cmp.Or(missing, unread); err != nil {
		return nil, err
	}
	at, found := job.checkpoint(c.PathValue("checkpoint"))
	if !found {
		return nil, request.NotFound("checkpoint", job.name+"/checkpoints/"+domain.Name(c.PathValue("checkpoint")))
	}
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if _, exists := c.View().Models.Get(name); exists {
		return nil, modelExists(name)
	}
	// the name must not be reserved by any job, not even this one
	c.requireUnreserved(&p.Violations, "modelId", name, "")
	if err := p.Err(); err != nil {
		return nil, err
	}
	command, err := promoted(c, job, at, given.ModelID)
	if err != nil {
		return nil, err
	}
	stored := at.Model()
	in := c.Uploads.NewIntake(c.Call, blobs.PromotedPrefix(job.name, job.event, uuid.NewString()),
		upload.Limit{Files: len(stored.Sizes), Bytes: stored.Bytes()}).Counting(domain.Files{})
	defer in.Release()
	if err := in.Take(stored); err != nil {
		return nil, lostCheckpoint(err, at, job.name)
	}
	command.Files = domain.Files{Prefix: in.Files.Prefix, Sizes: stored.Sizes, Sums: stored.Sums}
	result, err := in.Commit(domain.Intend(domain.Models, name, domain.Command[domain.Model](command)))
	if domain.CodeOf(err) == domain.AlreadyExists { // another request has created the model in the meantime
		err = modelExists(name)
	}
	if err != nil {
		return nil, err
	}
	return models.reply(c, result)
}

// modelExists returns the error of a promotion whose modelId is the ID of an existing model.
func modelExists(name domain.Name) error {
	f := domain.Errorf(domain.AlreadyExists, "modelId: %s already exists: choose another ID, or delete that model first",
		name)
	f.Reason = "ALREADY_EXISTS"
	return f
}

func (j trainedJob) checkpoint(id string) (domain.JobCheckpoint, bool) {
	for _, one := range j.state.Life().AllCheckpoints() {
		if one.ID() == id {
			return one, true
		}
	}
	return domain.JobCheckpoint{}, false
}

// promoted returns the command that creates the model of a checkpoint. The caller sets the names of
// the copied files in the command.
func promoted(c *call, job trainedJob, at domain.JobCheckpoint, id string) (domain.RegisterModel, error) {
	stored := at.Model()
	if len(stored.Sizes) == 0 {
		f := domain.Errorf(domain.FailedPrecondition,
			"checkpoint %s of %s contains no model that engines can serve: use the model that the job creates when it "+
				"ends", at.ID(), job.name)
		f.Reason = "NO_MODEL_IN_CHECKPOINT"
		return domain.RegisterModel{}, f
	}
	spec := job.state.Spec()
	source := spec.Model()
	from, ok := c.View().Models.Get(source)
	if !ok {
		f := domain.Errorf(domain.FailedPrecondition, "the model %s, which %s trains, was deleted, so the checkpoint "+
			"cannot be served: promote a checkpoint of another job", source, job.name)
		f.Reason = "BASE_MODEL_DELETED"
		return domain.RegisterModel{}, f
	}
	register := domain.RegisterModel{SourceJob: job.name, CreatedBy: string(c.Principal.Key),
		ModelSpec: domain.ModelSpec{DisplayName: id, Kind: domain.BaseModel, BaseModel: string(source)}}
	if _, adapter := stored.Sizes[weights.AdapterConfigFile]; adapter {
		register.Kind = domain.PEFTAddon
		if from.State.Kind == domain.PEFTAddon {
			register.BaseModel = from.State.BaseModel
		}
	}
	files := weights.Directory{Sizes: stored.Sizes, Open: func(name string, offset, length int64) (io.ReadCloser, error) {
		return c.Uploads.Blobs.Range(c.Ctx, stored.Prefix+name, offset, length)
	}}
	var err error
	register.ModelMetadata, err = weights.TrainedMetadata(files, register.Kind == domain.PEFTAddon,
		from.State.ModelMetadata)
	if err != nil {
		return register, lostCheckpoint(err, at, job.name)
	}
	return register, nil
}

// lostCheckpoint returns the error of a promotion during which the job has deleted the checkpoint.
func lostCheckpoint(err error, at domain.JobCheckpoint, job domain.Name) error {
	if domain.CodeOf(err) == domain.NotFound {
		return request.NotFound("checkpoint", job+"/checkpoints/"+domain.Name(at.ID()))
	}
	return err
}
