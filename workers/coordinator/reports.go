package coordinator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/blobs"
	"anneal/domain"
	"anneal/projections"
	"anneal/workers/protocol"
)

const uploadWithin = 12 * time.Hour // how long signed upload URLs are valid

// reports handles the reports of attempts, and signs URLs for uploading their files.
type reports struct {
	recorder
	requests *requests
	blobs    *blobs.Store
	results  *results
	progress *serviceProgress
	logger   *slog.Logger
}

var (
	errIncomplete = errors.New("upload the files of the attempt, because some are missing in the file store or truncated")
	errStale      = errors.New("the attempt is no longer the current one of its job on this node")
)

// handle records a report of an attempt and replies to it.
func (r *reports) handle(ctx context.Context, node string, m *nats.Msg) {
	var report protocol.Report
	if !r.requests.decode(ctx, node, m, &report) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	stored, err := r.record(ctx, node, report)
	if err != nil {
		r.logger.Info("cannot record the report of an attempt", "node", node, "job", report.Job, "attempt", report.Attempt,
			"kind", report.Kind, "error", err)
	}
	r.reply(m, err, func(outcome, message string) any {
		return protocol.ReportReply{Version: protocol.Version, Outcome: outcome, Message: message,
			Position: r.world.Position(), LogStored: stored && len(report.Files) > 0}
	})
}

// handleSign replies with signed URLs for uploading files of an attempt.
func (r *reports) handleSign(ctx context.Context, node string, m *nats.Msg) {
	var request protocol.SignRequest
	if !r.requests.decode(ctx, node, m, &request) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	urls, prefix, err := r.uploadURLs(ctx, node, request)
	r.reply(m, err, func(outcome, message string) any {
		return protocol.SignReply{Version: protocol.Version, Outcome: outcome, Message: message, URLs: urls, Prefix: prefix}
	})
}

// reply replies to m. When err says that the request is invalid, it replies with err. Otherwise it
// derives the outcome from err, passes it to render, and replies with the message that render
// returns.
func (r *reports) reply(m *nats.Msg, err error, render func(outcome, message string) any) {
	switch {
	case err == nil:
		r.requests.respond(m, render(protocol.Accepted, ""))
	case errors.Is(err, errIncomplete):
		r.requests.respond(m, render(protocol.Incomplete, err.Error()))
	case isStale(err):
		r.requests.respond(m, render(protocol.Stale, err.Error()))
	case domain.CodeOf(err) == domain.InvalidArgument:
		r.requests.respond(m, protocol.ErrorReply{Version: protocol.Version, Refused: protocol.ErrorOf(err)})
	default:
		r.requests.respond(m, render(protocol.RetryLater, err.Error()))
	}
}

// isStale reports whether err says that the attempt is over.
func isStale(err error) bool {
	if errors.Is(err, errStale) {
		return true
	}
	var failure *domain.Error
	return errors.As(err, &failure) &&
		(failure.Reason == "STALE_ATTEMPT" || failure.Reason == "JOB_STATE" || failure.Reason == "NOT_FOUND")
}

// currentJob returns the job of a report, if the attempt is the job's current one and allowed
// returns true for the node. Otherwise it returns errStale, but only after the world has caught up
// with the log, because another control plane may have just assigned the attempt.
func (r *reports) currentJob(
	ctx context.Context, node string, name domain.Name, attempt int, created time.Time, allowed runs,
) (*projections.View, job, error) {
	current := func() (*projections.View, job, bool) {
		view := r.world.View()
		j, ok := jobNamed(view, name)
		return view, j, ok && j.CreateTime.Equal(created) && allowed(view, j, nodeName(node), attempt)
	}
	if view, j, ok := current(); ok {
		return view, j, nil
	}
	if err := r.catchUp(ctx); err != nil {
		return nil, job{}, err
	}
	if view, j, ok := current(); ok {
		return view, j, nil
	}
	return nil, job{}, errStale
}

// record records a report. stored reports whether the files in the report were stored.
func (r *reports) record(ctx context.Context, node string, report protocol.Report) (stored bool, err error) {
	switch {
	case max(len(report.Sizes), len(report.Files)) > protocol.MaxFiles:
		return false, domain.Errorf(domain.InvalidArgument, "the checkpoint or the results have %d files: at most %d are "+
			"allowed",
			max(len(report.Sizes), len(report.Files)), protocol.MaxFiles)
	case report.Step < 0:
		return false, domain.Errorf(domain.InvalidArgument, "the report has step %d: it must be at least 0",
			report.Step)
	}
	view, j, err := r.currentJob(ctx, node, report.Job, report.Attempt, report.CreateTime, reporter(report.Kind))
	if err != nil {
		return false, err
	}
	if j.Life.Nodes[0] != nodeName(node) && j.Life.Stopping() {
		return false, nil // the leader of the gang reports that the attempt has stopped
	}
	canceling := j.Life.State == domain.JobCancellingState
	switch {
	case report.Kind == protocol.ReportCheckpoint:
		return false, r.recordCheckpoint(ctx, node, j, report)
	// Any other report of an attempt that is being canceled means that it has stopped. An attempt that
	// is being paused may still complete.
	case report.Kind == protocol.ReportStopped, canceling:
		return false, r.doJob(ctx, node, j, j.Life.ConfirmStop(report.Attempt))
	case report.Kind == protocol.ReportIdle:
		return false, r.stopService(ctx, node, j, report.Attempt)
	case report.Kind == protocol.ReportWriting:
		return false, r.doJob(ctx, node, j, domain.WriteResults{Attempt: report.Attempt})
	case report.Kind == protocol.ReportCompleted && report.Result != nil:
		return r.results.record(ctx, node, view, j, report)
	case report.Kind == protocol.ReportFailed && report.Error != nil:
		return false, r.recordFailure(ctx, node, j, report)
	}
	return false, domain.Errorf(domain.InvalidArgument,
		"the report has the unknown kind %q, or lacks its result or error", report.Kind)
}

// recordFailure records a failed attempt. It fails the job when the user must correct something,
// and requeues it otherwise.
func (r *reports) recordFailure(ctx context.Context, node string, j job, report protocol.Report) error {
	message := truncate(report.Error.Message)
	if message == "" {
		message = "the attempt failed on node " + node + " and gave no reason"
	}
	switch report.Error.Code {
	case domain.InvalidArgument, domain.FailedPrecondition, domain.DataLoss:
		status := domain.Status{Code: report.Error.Code.String(), Message: message}
		return r.doJob(ctx, node, j, domain.FailJob{Attempt: report.Attempt, Status: status})
	}
	return r.doJob(ctx, node, j, domain.RequeueJob{Attempt: report.Attempt, Reason: message,
		Preempted: report.Preempted || j.Service && r.progress.made(r.world.View(), j)})
}

// recordCheckpoint records a checkpoint whose files are all stored, and updates the metrics file of
// the job.
func (r *reports) recordCheckpoint(ctx context.Context, node string, j job, report protocol.Report) error {
	directory := blobs.CheckpointPrefix(j.Name, j.Event, report.Attempt, report.Step)
	files, err := storedFiles(ctx, r.blobs, directory, report)
	if err != nil {
		return err
	}
	progress, err := r.results.metrics.publish(ctx, j, fileSource{Files: files, store: r.blobs})
	if err != nil {
		r.logger.Warn("cannot update the metrics file of a job: trying again with the next "+
			"checkpoint", "job", j.Name, "error", err)
	}
	checkpoint := domain.JobCheckpoint{Step: report.Step, Attempt: report.Attempt, Files: files,
		Metrics: limitValues(report.Metrics)}
	return r.doJob(ctx, node, j, domain.RecordCheckpoint{JobCheckpoint: checkpoint, Progress: progress})
}

// storedFiles returns the files that a report lists. It returns errIncomplete when the report lists
// no files, or when the store lacks one of them or has it with another size.
func storedFiles(
	ctx context.Context, store *blobs.Store, directory string, report protocol.Report,
) (domain.Files, error) {
	stored, err := store.Files(ctx, directory)
	if err != nil {
		return domain.Files{}, err
	}
	for name, size := range report.Sizes {
		if have, ok := stored.Sizes[name]; !ok || have != size {
			return domain.Files{}, fmt.Errorf("%w: %s has %d of %d bytes", errIncomplete, name, have, size)
		}
	}
	if len(report.Sizes) == 0 {
		return domain.Files{}, fmt.Errorf("%w: the report lists no files", errIncomplete)
	}
	files := domain.Files{Prefix: directory, Sizes: maps.Clone(report.Sizes), Sums: maps.Clone(report.Sums)}
	maps.DeleteFunc(files.Sums, func(name, sum string) bool {
		_, stored := files.Sizes[name]
		return !stored || !isSHA256(sum)
	})
	return files, nil
}

// isSHA256 reports whether text is a SHA-256 sum in lower-case hexadecimal.
func isSHA256(text string) bool {
	sum, err := hex.DecodeString(text)
	return err == nil && len(sum) == sha256.Size && strings.ToLower(text) == text
}

// uploadURLs returns signed URLs for uploading files, and for protocol.ForTraining, where the files
// will be stored.
func (r *reports) uploadURLs(
	ctx context.Context, node string, request protocol.SignRequest,
) (urls map[string]string, prefix string, err error) {
	_, j, err := r.currentJob(ctx, node, request.Job, request.Attempt, request.CreateTime, leads)
	if err != nil {
		return nil, "", err
	}
	switch request.For {
	case protocol.ForTraining, protocol.ForTrainingResult:
		return r.trainingURLs(ctx, j, request)
	case protocol.ForRollouts:
		urls, err = r.rolloutsURL(ctx, j, request)
		return urls, "", err
	case protocol.ForLog:
		url, err := signLog(ctx, r.blobs, j)
		return map[string]string{protocol.LogFile: url}, "", err
	}
	urls, err = r.fileURLs(ctx, j, request)
	return urls, "", err
}

// fileURLs returns signed URLs for uploading a checkpoint or results.
func (r *reports) fileURLs(ctx context.Context, j job, request protocol.SignRequest) (map[string]string, error) {
	directory := blobs.ResultPrefix(j.Name, j.Event, request.Attempt)
	if request.For == protocol.ForCheckpoint {
		directory = blobs.CheckpointPrefix(j.Name, j.Event, request.Attempt, request.Step)
	}
	if len(request.Sizes) > protocol.MaxFiles || request.Step < 0 ||
		request.For != protocol.ForCheckpoint && request.For != protocol.ForResults {
		return nil, domain.Errorf(domain.InvalidArgument,
			"cannot sign an upload of %d files for %.64q at step %d: it must have at most %d files, be for a checkpoint or "+
				"results, and have a step of at least 0",
			len(request.Sizes), request.For, request.Step, protocol.MaxFiles)
	}
	urls := map[string]string{}
	for name, size := range request.Sizes {
		// SignPut takes a limit of 0 as unlimited, so an empty file gets the limit 1.
		url, err := r.blobs.SignPut(ctx, directory+name, max(size, 1), uploadWithin)
		if err != nil {
			return nil, err
		}
		urls[name] = url
	}
	return urls, nil
}
