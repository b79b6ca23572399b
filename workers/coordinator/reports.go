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
	errStale      = errors.New("the attempt is not the job's current one on this node")
)

// handle records what a node reports of an attempt.
func (r *reports) handle(ctx context.Context, node string, m *nats.Msg) {
	var report protocol.Report
	if !r.requests.decode(ctx, node, m, &report) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	err := r.record(ctx, node, report)
	if err != nil {
		r.logger.Info("report not recorded", "node", node, "job", report.Job, "attempt", report.Attempt,
			"kind", report.Kind, "error", err)
	}
	r.reply(m, err, func(outcome, message string) any {
		return protocol.ReportReply{Version: protocol.Version, Outcome: outcome, Message: message,
			Position: r.world.Position()}
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

// reply replies with the outcome that err means, or refuses an invalid request.
func (r *reports) reply(m *nats.Msg, err error, with func(outcome, message string) any) {
	switch {
	case err == nil:
		r.requests.respond(m, with(protocol.Accepted, ""))
	case errors.Is(err, errIncomplete):
		r.requests.respond(m, with(protocol.Incomplete, err.Error()))
	case isStale(err):
		r.requests.respond(m, with(protocol.Stale, err.Error()))
	case domain.CodeOf(err) == domain.InvalidArgument:
		r.requests.respond(m, protocol.Refusal{Version: protocol.Version, Refused: protocol.ErrorOf(err)})
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

// currentJob returns the job whose current attempt the node runs. The world catches up with the
// log before the attempt counts as stale: another coordinator may have assigned it.
func (r *reports) currentJob(
	ctx context.Context, node string, name domain.Name, attempt int, created time.Time,
) (*projections.View, job, error) {
	current := func() (*projections.View, job, bool) {
		view := r.world.View()
		j, ok := jobNamed(view, name)
		return view, j, ok && j.CreateTime.Equal(created) && assignedTo(j, nodeName(node), attempt)
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

func (r *reports) record(ctx context.Context, node string, report protocol.Report) error {
	switch {
	case len(report.Sizes) > protocol.MaxFiles:
		return domain.Errorf(domain.InvalidArgument,
			"a checkpoint or result has %d files: the limit is %d", len(report.Sizes), protocol.MaxFiles)
	case report.Step < 0:
		return domain.Errorf(domain.InvalidArgument, "step %d of a checkpoint is negative", report.Step)
	}
	view, j, err := r.currentJob(ctx, node, report.Job, report.Attempt, report.CreateTime)
	if err != nil {
		return err
	}
	canceling := j.Life.State == domain.JobCancellingState
	switch {
	case report.Kind == protocol.ReportCheckpoint:
		return r.recordCheckpoint(ctx, node, j, report)
	// An attempt that is being canceled has stopped, whatever else it reports.
	case report.Kind == protocol.ReportStopped, canceling:
		return r.doJob(ctx, node, j, domain.ConfirmCancel{Attempt: report.Attempt})
	case report.Kind == protocol.ReportWriting:
		return r.doJob(ctx, node, j, domain.WriteResults{Attempt: report.Attempt})
	case report.Kind == protocol.ReportCompleted && report.Result != nil:
		return r.results.record(ctx, node, view, j, report)
	case report.Kind == protocol.ReportFailed && report.Error != nil:
		return r.recordFailure(ctx, node, j, report)
	}
	return domain.Errorf(domain.InvalidArgument, "unknown report kind %q", report.Kind)
}

// recordFailure fails the job when its user must correct something, and otherwise re-queues it.
func (r *reports) recordFailure(ctx context.Context, node string, j job, report protocol.Report) error {
	message := truncate(report.Error.Message)
	if message == "" {
		message = "the attempt failed on node " + node + " without a reason"
	}
	switch report.Error.Code {
	case domain.InvalidArgument, domain.FailedPrecondition, domain.DataLoss:
		status := domain.Status{Code: report.Error.Code.String(), Message: message}
		return r.doJob(ctx, node, j, domain.FailJob{Attempt: report.Attempt, Status: status})
	}
	return r.doJob(ctx, node, j, domain.RequeueJob{Attempt: report.Attempt, Reason: message})
}

// recordCheckpoint records a checkpoint whose files are stored completely, and updates the job's
// metrics file.
func (r *reports) recordCheckpoint(ctx context.Context, node string, j job, report protocol.Report) error {
	directory := blobs.CheckpointFolder(j.Name, j.Event, report.Attempt, report.Step)
	files, err := storedFiles(ctx, r.blobs, directory, report)
	if err != nil {
		return err
	}
	progress, err := r.results.metrics.publish(ctx, j, files)
	if err != nil {
		r.logger.Warn("metrics file not updated before the next checkpoint", "job", j.Name, "error", err)
	}
	checkpoint := domain.JobCheckpoint{Step: report.Step, Attempt: report.Attempt, Files: files,
		Metrics: limitValues(report.Metrics)}
	return r.doJob(ctx, node, j, domain.RecordCheckpoint{JobCheckpoint: checkpoint, Progress: progress})
}

// storedFiles returns the files of a report; errIncomplete when one is missing or has another size.
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
		return domain.Files{}, fmt.Errorf("%w: the report names none", errIncomplete)
	}
	files := domain.Files{Folder: directory, Sizes: maps.Clone(report.Sizes), Sums: maps.Clone(report.Sums)}
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
	_, j, err := r.currentJob(ctx, node, request.Job, request.Attempt, request.CreateTime)
	if err != nil {
		return nil, err
	}
	directory := blobs.ResultFolder(j.Name, j.Event, request.Attempt)
	if request.For == protocol.ForCheckpoint {
		directory = blobs.CheckpointFolder(j.Name, j.Event, request.Attempt, request.Step)
	}
	if len(request.Sizes) > protocol.MaxFiles || request.Step < 0 ||
		request.For != protocol.ForCheckpoint && request.For != protocol.ForResults {
		return nil, domain.Errorf(domain.InvalidArgument,
			"invalid upload: 1 to %d files of a checkpoint or of results can be stored", protocol.MaxFiles)
	}
	urls := map[string]string{}
	for name, size := range request.Sizes {
		// A limit of 0 means no limit, so an empty file may grow to one byte; storedFiles detects it.
		urls[name], err = r.blobs.SignPut(ctx, directory+name, max(size, 1), uploadWithin)
		if err != nil {
			return nil, err
		}
	}
	return urls, nil
}
