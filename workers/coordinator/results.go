package coordinator

import (
	"context"
	"io"
	"strings"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/domain/weights"
	"anneal/projections"
	"anneal/workers/protocol"
)

const (
	uploadWithin = 12 * time.Hour
)

// complete records what the attempt left. That event says all that follows:
// the model is registered and the job ends. The desk does so at once; should it
// stop in between, a scheduler does.
func (d *Coordinator) complete(ctx context.Context, node string, view *projections.View, j job, r protocol.Report) error {
	files, err := d.arrived(ctx, blobs.ResultFolder(j.Name, j.Event, r.Attempt), r)
	if err != nil {
		return err
	}
	progress, err := d.publishMetrics(ctx, j, files)
	if err != nil {
		return d.refuseResults(ctx, node, j, err)
	}
	register, err := d.registration(ctx, view, j, r, files)
	if err == nil {
		err = free(d.World.View(), j)
	}
	if err != nil {
		return d.refuseResults(ctx, node, j, err)
	}
	name := domain.NewName(j.Name.Account(), "models", j.OutputModel)
	err = d.tell(ctx, node, j, domain.StoreResults{JobOutcome: domain.JobOutcome{Attempt: r.Attempt, StoppedEarly: r.Result.StoppedEarly, Reason: short(r.Result.Reason),
		Output: name, Results: files, Model: domain.ModelRegistered(register), Progress: progress}})
	if err != nil {
		return d.refuseResults(ctx, node, j, err)
	}
	done := domain.IntendFinish(j.Name, j.Waits, r.Attempt)
	for _, intent := range []domain.Intent{domain.Intend(domain.Models, name, register), done} {
		if err := d.do(ctx, node, intent); err != nil { // the results are recorded: the scheduler does the rest, or says why not
			d.log.Debug("the end of a job is left to its scheduler", "job", j.Name, "error", err)
			return nil
		}
	}
	return nil
}

// refuseResults ends a job whose results can be no model. Trouble that may
// pass, and that the attempt is over, are handed on.
func (d *Coordinator) refuseResults(ctx context.Context, node string, j job, err error) error {
	switch domain.CodeOf(err) {
	case domain.AlreadyExists, domain.DataLoss, domain.InvalidArgument, domain.FailedPrecondition:
		if over(err) {
			return err
		}
		return d.tell(ctx, node, j, domain.FailJob{Attempt: j.Life.Attempt, Status: domain.StatusOf(err)})
	}
	return err
}

// registration describes the model by what its stored files say, and by what
// it was made from.
func (d *Coordinator) registration(ctx context.Context, view *projections.View, j job, r protocol.Report, files domain.Files) (domain.RegisterModel, error) {
	source := j.BaseModel
	if source == "" {
		source = j.Adapter
	}
	from, err := ready(view, source)
	if err != nil {
		return domain.RegisterModel{}, err
	}
	register := domain.RegisterModel{Files: files, SourceJob: j.Name, CreatedBy: j.Life.CreatedBy}
	register.DisplayName = j.OutputModel
	register.ModelFacts = domain.ModelFacts{ModelType: from.State.ModelType, ParameterCount: from.State.ParameterCount, ContextLength: from.State.ContextLength, Embedding: from.State.Embedding, Attention: from.State.Attention}
	register.BaseModel = string(source)
	if r.Result.Adapter {
		register.Kind = domain.PEFTAddon
		if from.State.Kind == domain.PEFTAddon {
			register.BaseModel = from.State.BaseModel
		}
		return register, d.adapterFacts(ctx, files, &register.ModelFacts)
	}
	register.Kind = domain.BaseModel
	return register, d.modelFacts(ctx, files, &register.ModelFacts)
}

// left is the files that an attempt stored.
func (d *Coordinator) left(ctx context.Context, files domain.Files) weights.Folder {
	return weights.Folder{Sizes: files.Sizes, Open: func(name string, offset, length int64) (io.ReadCloser, error) {
		return d.Blobs.Range(ctx, files.Folder+name, offset, length)
	}}
}

// adapterFacts are what an adapter_config.json and the header of the weights
// say.
func (d *Coordinator) adapterFacts(ctx context.Context, files domain.Files, facts *domain.ModelFacts) error {
	folder := d.left(ctx, files)
	config, err := folder.ReadAdapterConfig()
	if err != nil {
		return noModel("adapter_config.json", err)
	}
	facts.LoraRank, facts.LoraTargets = config.Rank, config.TargetModules()
	report, err := weights.CheckAdapter(folder, weights.Config{}, *facts)
	facts.Precision = report.Precision
	return err
}

// modelFacts are what a config.json and the headers of the weights say. What
// they leave out stays as it was in the model that was trained.
func (d *Coordinator) modelFacts(ctx context.Context, files domain.Files, facts *domain.ModelFacts) error {
	folder := d.left(ctx, files)
	if _, err := folder.ReadConfig(); err != nil {
		return noModel("config.json", err)
	}
	report, err := weights.Check(folder)
	if err != nil {
		return err
	}
	for _, v := range report.Violations {
		if strings.HasSuffix(v.Field, ".safetensors") {
			return domain.Errorf(domain.DataLoss, "the engine left no model: %s %s", v.Field, v.Description)
		}
	}
	facts.Precision = report.Precision
	if report.ModelType != "" {
		facts.ModelType = report.ModelType
	}
	if report.ContextLength > 0 {
		facts.ContextLength = report.ContextLength
	}
	if report.ParameterCount > 0 {
		facts.ParameterCount = report.ParameterCount
	}
	return nil
}

// noModel is why a file that an engine left is none of a model's.
func noModel(file string, err error) error {
	if weights.IsBroken(err) {
		return domain.Errorf(domain.DataLoss, "the engine left no model: %s %s", file, err)
	}
	return err
}
