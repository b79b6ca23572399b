package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"anneal/blobs"
	"anneal/domain"
	"anneal/domain/weights"
	"anneal/projections"
	"anneal/workers/protocol"
)

// results records the results of attempts and creates models from them.
type results struct {
	recorder
	blobs   *blobs.Store
	metrics *metricsFiles
	logger  *slog.Logger
}

// record records the results of an attempt. Then it creates the output model and completes the job.
// A scheduler does that instead when this process stops before, or when the job requests that its
// model is loaded. stored reports whether the files in the report were stored.
func (r *results) record(
	ctx context.Context, node string, view *projections.View, j job, report protocol.Report,
) (stored bool, err error) {
	files, err := resultFiles(ctx, r.blobs, j, report)
	if err != nil {
		return false, err
	}
	var register domain.RegisterModel
	progress, refused := r.metrics.publish(ctx, j, files)
	if refused == nil {
		register, refused = r.registration(ctx, view, j, report, files)
	}
	if refused == nil {
		refused = requireFreeOutput(r.world.View(), j)
	}
	if err := files.flush(ctx); domain.CodeOf(err) == domain.InvalidArgument {
		return false, err
	} else if err != nil { // the agent then uploads the files, which succeeds or fails with advice for the user
		return false, fmt.Errorf("%w: %v", errIncomplete, err)
	}
	if refused != nil {
		return true, r.reject(ctx, node, j, refused)
	}
	name := domain.NewName(j.Name.Account(), "models", j.OutputModel)
	store := domain.IntendJob(j.Name, domain.StoreResults{JobOutcome: domain.JobOutcome{Attempt: report.Attempt,
		StoppedEarly: report.Result.StoppedEarly, Reason: truncate(report.Result.Reason), Output: name,
		Results: files.Files, Model: domain.ModelRegistered(register), Progress: progress}}).Of(j.Event)
	if err := r.complete(ctx, node, j, report.Attempt, store, domain.Intend(domain.Models, name, register)); err != nil {
		return true, r.reject(ctx, node, j, err)
	}
	return true, nil
}

// complete records the results of a job with the intent store, creates the output model and
// completes the job, with one fsync. It returns the error of recording the results. If a later step
// fails, a scheduler completes the job or fails it with the reason.
func (r *results) complete(ctx context.Context, node string, j job, attempt int, store, register domain.Intent) error {
	steps := []domain.Intent{store, register}
	if j.Life.Options == nil || !j.Life.Options.LoadAddon {
		steps = append(steps, domain.IntendFinish(j.Name, j.Waits, attempt).Of(j.Event))
	}
	errs := r.doAll(ctx, node, steps...)
	if err := errors.Join(errs[1:]...); err != nil && errs[0] == nil {
		r.logger.Debug("cannot complete a job whose results are recorded: a scheduler completes "+
			"it", "job", j.Name, "error", err)
	}
	return errs[0]
}

// reject fails a job whose results cannot become a model. err is the reason. When err is transient
// or says that the attempt is over, reject returns err and does not fail the job.
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

// registration returns the command that creates the output model. Its metadata are read from the
// stored files. Missing metadata are taken from the model that was trained.
func (r *results) registration(
	ctx context.Context, view *projections.View, j job, report protocol.Report, files fileSource,
) (domain.RegisterModel, error) {
	source := j.BaseModel
	if source == "" {
		source = j.Adapter
	}
	from, err := readyModel(view, source)
	if err != nil {
		return domain.RegisterModel{}, err
	}
	register := domain.RegisterModel{Files: files.Files, SourceJob: j.Name, CreatedBy: j.Life.CreatedBy}
	register.DisplayName = j.OutputModel
	register.BaseModel = string(source)
	register.Kind = domain.BaseModel
	if report.Result.Adapter {
		register.Kind = domain.PEFTAddon
		if from.State.Kind == domain.PEFTAddon {
			register.BaseModel = from.State.BaseModel
		}
	}
	stored := weights.Directory{Sizes: files.Sizes, Open: func(name string, offset, length int64) (io.ReadCloser, error) {
		return files.open(ctx, name, offset, length)
	}}
	register.ModelMetadata, err = weights.TrainedMetadata(stored, report.Result.Adapter, from.State.ModelMetadata)
	return register, err
}
