package coordinator

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"

	"anneal/blobs"
	"anneal/blobs/operations"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/workers/protocol"
)

// keepResults is the minimum time for which results of operations are kept, so that clients can
// request them again.
const keepResults = time.Hour

// result stores the result of an operation.
func (t *training) result(ctx context.Context, node string, request protocol.TrainingResult) (
	reply protocol.TrainingReply, err error,
) {
	view, j, err := t.attempt(ctx, node, request.TrainingAttempt)
	if err != nil {
		return reply, err
	}
	t.world.Live().TouchTraining(j.Name, t.now())
	result := operations.Result{Attempt: request.Attempt, Body: request.Body, Time: t.now()}
	if request.Error != nil {
		result.Err = asDomain(request.Error.Err())
	}
	if request.Upload > 0 {
		key := trainingResultKey(j, request.Attempt, request.Upload)
		if result.Body, err = t.readResult(ctx, key); err != nil {
			return reply, err
		}
		defer func() {
			if err == nil {
				t.remove(ctx, key)
			}
		}()
	}
	if err := checkLaneID(request.Lane); err != nil {
		return reply, err
	}
	lane := laneOf(j, request.Lane, request.Samples)
	if request.Samples {
		return reply, t.finish(ctx, j, lane, request.Seq, result)
	}
	row, err := t.run(view, j, request.Lane)
	if err != nil {
		return reply, err
	}
	if request.Seq == 0 {
		return reply, t.opened(ctx, node, row, lane, request, result)
	}
	if request.Saved != nil && result.Err == nil {
		if result, err = t.saved(ctx, node, j, row, request, result); err != nil {
			return reply, err
		}
	}
	if err := t.finish(ctx, j, lane, request.Seq, result); err != nil {
		return reply, err
	}
	if request.Unloaded {
		return reply, t.doRun(ctx, node, row.Name, domain.UnloadTrainingRun{})
	}
	return reply, nil
}

// finish stores the result of an operation, and records that the attempt makes progress.
func (t *training) finish(ctx context.Context, j job, lane operations.Lane, seq int64, result operations.Result) error {
	err := t.journal.Finish(ctx, lane, seq, result)
	if domain.CodeOf(err) == domain.NotFound { // the session was deleted, or the operation was trimmed
		return nil
	}
	if err == nil {
		t.progress.record(j)
	}
	return err
}

// asDomain converts an error to a domain.Error.
func asDomain(err error) *domain.Error {
	if failure, ok := err.(*domain.Error); ok {
		return failure
	}
	return &domain.Error{Code: domain.Unknown, Message: err.Error()}
}

func (t *training) doRun(ctx context.Context, node string, run domain.Name,
	command domain.Command[domain.TrainingRun]) error {
	return t.do(ctx, node, domain.Intend(domain.TrainingRuns, run, command))
}

// opened records that an attempt has opened a run, or that it cannot. The client gets the outcome
// as the result of operation 0 of the run.
func (t *training) opened(ctx context.Context, node string, row *projections.Row[domain.TrainingRun],
	lane operations.Lane, request protocol.TrainingResult, result operations.Result) error {
	switch {
	case request.Opened != nil:
		err := t.doRun(ctx, node, row.Name, domain.OpenTrainingRun{Attempt: request.Attempt,
			BaseHash: request.Opened.BaseHash, Kernel: request.Opened.Kernel})
		if err != nil && isRefused(err) && !isStale(err) { // the run cannot continue on this base model
			return t.corrupt(ctx, node, row.Name, err.Error(), nil)
		}
		if err != nil {
			return err
		}
		return t.journal.Finish(ctx, lane, 0, result)
	case result.Err == nil:
		return domain.Errorf(domain.InvalidArgument, "the report of a training run says neither that it is open nor why not")
	case result.Err.Code == domain.DataLoss, row.State.Opening != nil: // an earlier attempt has opened the run
		return t.corrupt(ctx, node, row.Name, result.Err.Message, nil)
	}
	if err := t.journal.Finish(ctx, lane, 0, result); err != nil {
		return err
	}
	return t.doRun(ctx, node, row.Name, domain.UnloadTrainingRun{})
}

// saved records the checkpoint that an operation has saved, and returns the result of the
// operation. If the checkpoint is refused, for example because its name is taken, the result
// contains the error.
func (t *training) saved(ctx context.Context, node string, j job, row *projections.Row[domain.TrainingRun],
	request protocol.TrainingResult, result operations.Result) (operations.Result, error) {
	saved := request.Saved
	checkpoint, err := t.checkpointOf(ctx, j, request.Lane, request.Attempt, request.Seq, saved)
	if err != nil {
		return result, err
	}
	checkpoint.Name, checkpoint.Ephemeral = saved.Save.Name, saved.Save.Ephemeral
	if saved.Save.TTLSeconds > 0 {
		expiry := t.now().Add(time.Duration(saved.Save.TTLSeconds) * time.Second)
		checkpoint.ExpireTime = &expiry
	}
	err = t.doRun(ctx, node, row.Name, domain.SaveTrainingCheckpoint{TrainingCheckpoint: checkpoint,
		Overwrite: saved.Save.Overwrite})
	switch {
	case err == nil:
	case isRefused(err) && !isStale(err):
		result.Err = asDomain(err)
		return result, nil
	default:
		return result, err
	}
	// An earlier attempt may have recorded the checkpoint before it could store the result.
	if now, ok := t.world.View().Runs.Get(row.Name); ok {
		if recorded, ok := now.State.Checkpoint(checkpoint.Kind, checkpoint.Name); ok && recorded.Seq == request.Seq {
			checkpoint = recorded
		}
	}
	result.Body, err = engines.TrainOperationResult{Saved: &engines.TrainSaved{Name: checkpoint.Name,
		Files: checkpoint.Files, Steps: checkpoint.Steps}}.Encode()
	return result, err
}

// checkpointOf returns the checkpoint that an attempt has uploaded. It returns errIncomplete if
// files are missing.
func (t *training) checkpointOf(ctx context.Context, j job, run string, attempt int, seq int64,
	saved *protocol.SavedTraining) (checkpoint domain.TrainingCheckpoint, err error) {
	prefix, err := checkpointPrefix(j, run, attempt, saved.Checkpoint)
	if err != nil {
		return checkpoint, err
	}
	files, err := storedFiles(ctx, t.blobs, prefix, protocol.Report{Sizes: saved.Sizes, Sums: saved.Sums})
	return domain.TrainingCheckpoint{Kind: saved.Kind, Name: saved.Checkpoint, Seq: seq, Steps: saved.Steps, Files: files,
		Attempt: attempt, Time: t.now()}, err
}

// checkpoint records a recovery checkpoint, and deletes the operations up to it from the journal.
func (t *training) checkpoint(ctx context.Context, node string, request protocol.TrainingCheckpoint) (
	reply protocol.TrainingReply, err error,
) {
	view, j, err := t.attempt(ctx, node, request.TrainingAttempt)
	if err != nil {
		return reply, err
	}
	row, err := t.run(view, j, request.Run)
	if err != nil {
		return reply, err
	}
	if request.Saved.Kind != domain.TrainingCheckpointRecovery {
		return reply, domain.Errorf(domain.InvalidArgument, "the checkpoint is of the kind %.64q: it must be %s",
			request.Saved.Kind, domain.TrainingCheckpointRecovery)
	}
	checkpoint, err := t.checkpointOf(ctx, j, request.Run, request.Attempt, request.Seq, &request.Saved)
	if err != nil {
		return reply, err
	}
	if last, ok := row.State.Newest(domain.TrainingCheckpointRecovery); ok && last.Seq > request.Seq {
		return reply, nil
	}
	if err := t.doRun(ctx, node, row.Name, domain.SaveTrainingCheckpoint{TrainingCheckpoint: checkpoint}); err != nil {
		return reply, err
	}
	return reply, t.journal.Trim(ctx, laneOf(j, request.Run, false), request.Seq, t.now().Add(-keepResults))
}

var checkpointID = regexp.MustCompile(`^[0-9]{1,10}-[0-9]{1,19}-[a-z]{1,16}$`)

// checkpointPrefix returns the prefix of a checkpoint with the ID ATTEMPT-SEQ-KIND, so that
// attempts never write the same files.
func checkpointPrefix(j job, run string, attempt int, id string) (string, error) {
	own := strconv.Itoa(attempt) + "-"
	if !domain.ValidID(run) || !checkpointID.MatchString(id) || id[:min(len(id), len(own))] != own {
		return "", domain.Errorf(domain.InvalidArgument, "the checkpoint %.64q of the training run %.64q of attempt %d "+
			"has an invalid ID", id, run, attempt)
	}
	return blobs.TrainingCheckpointPrefix(j.Name.Account(), j.Event, run, id), nil
}

// trainingURLs returns signed URLs for the uploads of an attempt that serves training runs, and for
// a checkpoint, the prefix of its files.
func (r *reports) trainingURLs(ctx context.Context, j job, request protocol.SignRequest) (
	urls map[string]string, prefix string, err error,
) {
	if !j.Service {
		return nil, "", errStale
	}
	urls = map[string]string{}
	if request.For == protocol.ForTrainingResult {
		name := protocol.TrainingResultFile
		if size, ok := request.Sizes[name]; !ok || len(request.Sizes) != 1 || size <= 0 || size > protocol.MaxTrainingResult {
			return nil, "", domain.Errorf(domain.InvalidArgument, "a result of an operation must be one file of at most %d "+
				"bytes",
				protocol.MaxTrainingResult)
		}
		urls[name], err = r.blobs.SignPut(ctx, trainingResultKey(j, request.Attempt, request.Upload), request.Sizes[name],
			uploadWithin)
		return urls, "", err
	}
	if len(request.Sizes) > protocol.MaxFiles {
		return nil, "", domain.Errorf(domain.InvalidArgument, "the checkpoint has %d files: at most %d are allowed",
			len(request.Sizes), protocol.MaxFiles)
	}
	if prefix, err = checkpointPrefix(j, request.Run, request.Attempt, request.Checkpoint); err != nil {
		return nil, "", err
	}
	for name, size := range request.Sizes {
		if urls[name], err = r.blobs.SignPut(ctx, prefix+name, max(size, 1), uploadWithin); err != nil {
			return nil, "", err
		}
	}
	return urls, prefix, nil
}

// trainingResultKey returns the key under which an attempt uploads a long result before it is
// stored in the journal.
func trainingResultKey(j job, attempt, upload int) string {
	return blobs.TransientPrefix(j.Name.Account(), fmt.Sprintf("training-%s-%d-%d", j.Event, attempt, upload)) +
		protocol.TrainingResultFile
}

func (t *training) readResult(ctx context.Context, key string) ([]byte, error) {
	content, err := t.blobs.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	body, err := io.ReadAll(io.LimitReader(content, protocol.MaxTrainingResult+1))
	if err == nil && len(body) > protocol.MaxTrainingResult {
		err = domain.Errorf(domain.InvalidArgument, "the result of an operation has more than %d bytes",
			protocol.MaxTrainingResult)
	}
	return body, err
}

// remove deletes an uploaded result after it was stored in the journal. If that fails, the
// reconciler deletes it.
func (t *training) remove(ctx context.Context, key string) {
	if err := t.blobs.Delete(ctx, key); err != nil {
		t.logger.Debug("cannot delete an uploaded result: the reconciler deletes it", "error", err)
	}
}
