package coordinator

import (
	"context"
	"io"
	"log/slog"
	"strings"

	"anneal/blobs"
	"anneal/domain"
	"anneal/domain/weights"
	"anneal/projections"
	"anneal/workers/protocol"
)

// results records the results of attempts, and registers them as models.
type results struct {
	recorder
	blobs   *blobs.Store
	metrics *metricsFiles
	logger  *slog.Logger
}

// record records the results of an attempt. That event decides what follows: the model is
// registered and the job ends. The coordinator does so immediately; should it stop in between, a
// scheduler does.
func (r *results) record(
	ctx context.Context, node string, view *projections.View, j job, report protocol.Report,
) error {
	files, err := storedFiles(ctx, r.blobs, blobs.ResultFolder(j.Name, j.Event, report.Attempt), report)
	if err != nil {
		return err
	}
	progress, err := r.metrics.publish(ctx, j, files)
	if err != nil {
		return r.reject(ctx, node, j, err)
	}
	register, err := r.registration(ctx, view, j, report, files)
	if err == nil {
		err = requireFreeOutput(r.world.View(), j)
	}
	if err != nil {
		return r.reject(ctx, node, j, err)
	}
	name := domain.NewName(j.Name.Account(), "models", j.OutputModel)
	err = r.doJob(ctx, node, j, domain.StoreResults{JobOutcome: domain.JobOutcome{Attempt: report.Attempt,
		StoppedEarly: report.Result.StoppedEarly, Reason: truncate(report.Result.Reason), Output: name,
		Results: files, Model: domain.ModelRegistered(register), Progress: progress}})
	if err != nil {
		return r.reject(ctx, node, j, err)
	}
	done := domain.IntendFinish(j.Name, j.Waits, report.Attempt)
	for _, intent := range []domain.Intent{domain.Intend(domain.Models, name, register), done} {
		// The results are recorded: the scheduler completes the job, or fails it with the reason.
		if err := r.do(ctx, node, intent); err != nil {
			r.logger.Debug("completion of a job left to its scheduler", "job", j.Name, "error", err)
			return nil
		}
	}
	return nil
}

// reject fails a job whose results are not a valid model. It returns transient errors, and those
// of an attempt that is over.
func (r *results) reject(ctx context.Context, node string, j job, err error) error {
	switch domain.CodeOf(err) {
	case domain.AlreadyExists, domain.DataLoss, domain.InvalidArgument, domain.FailedPrecondition:
		if isStale(err) {
			return err
		}
		return r.doJob(ctx, node, j, domain.FailJob{Attempt: j.Life.Attempt, Status: domain.StatusOf(err)})
	}
	return err
}

// registration describes the model by its stored files and by the model that it was trained on.
func (r *results) registration(
	ctx context.Context, view *projections.View, j job, report protocol.Report, files domain.Files,
) (domain.RegisterModel, error) {
	source := j.BaseModel
	if source == "" {
		source = j.Adapter
	}
	from, err := readyModel(view, source)
	if err != nil {
		return domain.RegisterModel{}, err
	}
	register := domain.RegisterModel{Files: files, SourceJob: j.Name, CreatedBy: j.Life.CreatedBy}
	register.DisplayName = j.OutputModel
	register.ModelFacts = domain.ModelFacts{ModelType: from.State.ModelType,
		ParameterCount: from.State.ParameterCount, ContextLength: from.State.ContextLength,
		Embedding: from.State.Embedding, Attention: from.State.Attention}
	register.BaseModel = string(source)
	if report.Result.Adapter {
		register.Kind = domain.PEFTAddon
		if from.State.Kind == domain.PEFTAddon {
			register.BaseModel = from.State.BaseModel
		}
		return register, r.readAdapter(ctx, files, &register.ModelFacts)
	}
	register.Kind = domain.BaseModel
	return register, r.readModel(ctx, files, &register.ModelFacts)
}

func (r *results) openFiles(ctx context.Context, files domain.Files) weights.Folder {
	return weights.Folder{Sizes: files.Sizes, Open: func(name string, offset, length int64) (io.ReadCloser, error) {
		return r.blobs.Range(ctx, files.Folder+name, offset, length)
	}}
}

// readAdapter sets the properties that adapter_config.json and the headers of the weights hold.
func (r *results) readAdapter(ctx context.Context, files domain.Files, facts *domain.ModelFacts) error {
	stored := r.openFiles(ctx, files)
	config, err := stored.ReadAdapterConfig()
	if err != nil {
		return invalidModel("adapter_config.json", err)
	}
	facts.LoraRank, facts.LoraTargets = config.Rank, config.TargetModules()
	report, err := weights.CheckAdapter(stored, weights.Config{}, *facts)
	facts.Precision = report.Precision
	return err
}

// readModel sets the properties that config.json and the headers of the weights hold. Those that
// they lack keep the values of the model that was trained.
func (r *results) readModel(ctx context.Context, files domain.Files, facts *domain.ModelFacts) error {
	stored := r.openFiles(ctx, files)
	if _, err := stored.ReadConfig(); err != nil {
		return invalidModel("config.json", err)
	}
	report, err := weights.Check(stored)
	if err != nil {
		return err
	}
	for _, v := range report.Violations {
		if strings.HasSuffix(v.Field, ".safetensors") {
			return domain.Errorf(domain.DataLoss, "the engine wrote an invalid model: %s %s", v.Field, v.Description)
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

// invalidModel returns the error for a file of the engine that is no valid file of a model.
func invalidModel(file string, err error) error {
	if weights.IsBroken(err) {
		return domain.Errorf(domain.DataLoss, "the engine wrote an invalid model: %s %s", file, err)
	}
	return err
}
