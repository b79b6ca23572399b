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

const uploadWithin = 12 * time.Hour // validity of signed URLs for uploads

// reports handles the reports of attempts, and signs the URLs for their uploads.
type reports struct {
	recorder
	requests *requests
	blobs    *blobs.Store
	results  *results
	logger   *slog.Logger
}

var (
	errIncomplete = errors.New("stored files are missing or truncated")
	errStale      = errors.New("the attempt is not the current attempt of the job on this node")
)

// handle records a report of an attempt.
func (r *reports) handle(ctx context.Context, node string, m *nats.Msg) {
	var report protocol.Report
	if !r.requests.decode(ctx, node, m, &report) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	stored, err := r.record(ctx, node, report)
	if err != nil {
		r.logger.Info("report not recorded", "node", node, "job", report.Job, "attempt", report.Attempt,
			"kind", report.Kind, "error", err)
	}
	r.reply(m, err, func(outcome, message string) any {
		return protocol.ReportReply{Version: protocol.Version, Outcome: outcome, Message: message,
			Position: r.world.Position(), LogStored: stored && len(report.Files) > 0}
	})
}

// handleSign returns signed URLs for the files of an attempt.
func (r *reports) handleSign(ctx context.Context, node string, m *nats.Msg) {
	var request protocol.SignRequest
	if !r.requests.decode(ctx, node, m, &request) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	urls, err := r.uploadURLs(ctx, node, request)
	r.reply(m, err, func(outcome, message string) any {
		return protocol.SignReply{Version: protocol.Version, Outcome: outcome, Message: message, URLs: urls}
	})
}

// reply replies with the outcome that corresponds to err, or with the error when err means that the
// request is invalid. The argument with is a function that returns the message for an outcome.
func (r *reports) reply(m *nats.Msg, err error, with func(outcome, message string) any) {
	switch {
	case err == nil:
		r.requests.respond(m, with(protocol.Accepted, ""))
	case errors.Is(err, errIncomplete):
		r.requests.respond(m, with(protocol.Incomplete, err.Error()))
	case isStale(err):
		r.requests.respond(m, with(protocol.Stale, err.Error()))
	case domain.CodeOf(err) == domain.InvalidArgument:
		r.requests.respond(m, protocol.ErrorReply{Version: protocol.Version, Refused: protocol.ErrorOf(err)})
	default:
		r.requests.respond(m, with(protocol.RetryLater, err.Error()))
	}
}

// isStale reports whether err means that the attempt is over.
func isStale(err error) bool {
	if errors.Is(err, errStale) {
		return true
	}
	var failure *domain.Error
	return errors.As(err, &failure) &&
		(failure.Reason == "STALE_ATTEMPT" || failure.Reason == "JOB_STATE" || failure.Reason == "NOT_FOUND")
}

// currentJob returns the job if the attempt is the current attempt of the job and the node is
// allowed to act for it, otherwise errStale. The world catches up with the log before the attempt counts as
// stale, because another coordinator may have assigned the attempt.
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

// record records a report. stored reports whether the files of the report are stored.
func (r *reports) record(ctx context.Context, node string, report protocol.Report) (stored bool, err error) {
	switch {
	case max(len(report.Sizes), len(report.Files)) > protocol.MaxFiles:
		return false, domain.Errorf(domain.InvalidArgument, "a checkpoint or result has %d files: the limit is %d",
			max(len(report.Sizes), len(report.Files)), protocol.MaxFiles)
	case report.Step < 0:
		return false, domain.Errorf(domain.InvalidArgument, "the report has step %d: a step must not be negative",
			report.Step)
	}
	view, j, err := r.currentJob(ctx, node, report.Job, report.Attempt, report.CreateTime, reporter(report.Kind))
	if err != nil {
		return false, err
	}
	if j.Life.Nodes[0] != nodeName(node) && j.Life.Stopping() {
		return false, nil // the leader reports that the attempt has stopped
	}
	canceling := j.Life.State == domain.JobCancellingState
	switch {
	case report.Kind == protocol.ReportCheckpoint:
		return false, r.recordCheckpoint(ctx, node, j, report)
	// Any other report of an attempt that is being canceled means that the attempt has stopped. An
	// attempt that is being paused may still complete.
	case report.Kind == protocol.ReportStopped, canceling:
		return false, r.doJob(ctx, node, j, j.Life.ConfirmStop(report.Attempt))
	case report.Kind == protocol.ReportWriting:
		return false, r.doJob(ctx, node, j, domain.WriteResults{Attempt: report.Attempt})
	case report.Kind == protocol.ReportCompleted && report.Result != nil:
		return r.results.record(ctx, node, view, j, report)
	case report.Kind == protocol.ReportFailed && report.Error != nil:
		return false, r.recordFailure(ctx, node, j, report)
	}
	return false, domain.Errorf(domain.InvalidArgument,
		"report kind %q is unknown, or the report lacks the result or the error", report.Kind)
}

// recordFailure fails the job when the error requires a correction by the user, and otherwise
// re-queues the job.
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
		Preempted: report.Preempted})
}

// recordCheckpoint records a checkpoint whose files are stored completely, and updates the job's
// metrics file.
func (r *reports) recordCheckpoint(ctx context.Context, node string, j job, report protocol.Report) error {
	directory := blobs.CheckpointPrefix(j.Name, j.Event, report.Attempt, report.Step)
	files, err := storedFiles(ctx, r.blobs, directory, report)
	if err != nil {
		return err
	}
	progress, err := r.results.metrics.publish(ctx, j, fileSource{Files: files, store: r.blobs})
	if err != nil {
		r.logger.Warn("metrics file not updated before the next checkpoint", "job", j.Name, "error", err)
	}
	checkpoint := domain.JobCheckpoint{Step: report.Step, Attempt: report.Attempt, Files: files,
		Metrics: limitValues(report.Metrics)}
	return r.doJob(ctx, node, j, domain.RecordCheckpoint{JobCheckpoint: checkpoint, Progress: progress})
}

// storedFiles returns the files of a report. It returns errIncomplete when the report lists no
// files, or a file is missing in the store or has another size than the report states.
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

// isSHA256 reports whether a text is a SHA-256 sum in lower-case hexadecimal.
func isSHA256(text string) bool {
	sum, err := hex.DecodeString(text)
	return err == nil && len(sum) == sha256.Size && strings.ToLower(text) == text
}

func (r *reports) uploadURLs(
	ctx context.Context, node string, request protocol.SignRequest,
) (map[string]string, error) {
	_, j, err := r.currentJob(ctx, node, request.Job, request.Attempt, request.CreateTime, leads)
	if err != nil {
		return nil, err
	}
	if request.For == protocol.ForRollouts {
		return r.rolloutsURL(ctx, j, request)
	}
	if request.For == protocol.ForLog {
		url, err := signLog(ctx, r.blobs, j)
		return map[string]string{protocol.LogFile: url}, err
	}
	directory := blobs.ResultPrefix(j.Name, j.Event, request.Attempt)
	if request.For == protocol.ForCheckpoint {
		directory = blobs.CheckpointPrefix(j.Name, j.Event, request.Attempt, request.Step)
	}
	if len(request.Sizes) > protocol.MaxFiles || request.Step < 0 ||
		request.For != protocol.ForCheckpoint && request.For != protocol.ForResults {
		return nil, domain.Errorf(domain.InvalidArgument,
			"invalid upload of %d files for %.64q at step %d: must have at most %d files, be for a checkpoint or results, and "+
				"have a step of at least 0",
			len(request.Sizes), request.For, request.Step, protocol.MaxFiles)
	}
	urls := map[string]string{}
	for name, size := range request.Sizes {
		// SignPut does not limit the size when the limit is 0, so the limit for an empty file is 1.
		urls[name], err = r.blobs.SignPut(ctx, directory+name, max(size, 1), uploadWithin)
		if err != nil {
			return nil, err
		}
	}
	return urls, nil
}
