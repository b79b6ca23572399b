package coordinator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/blobs"
	"anneal/domain"
	"anneal/projections"
	"anneal/workers/protocol"
)

// report records what a node says has happened to an attempt.
func (d *Coordinator) report(node string, m *nats.Msg) {
	var report protocol.Report
	if !d.read(node, m, &report) {
		return
	}
	ctx, cancel := context.WithTimeout(d.ctx, handleWithin)
	defer cancel()
	err := d.record(ctx, node, report)
	if err != nil {
		d.log.Info("a report is not recorded", "node", node, "job", report.Job, "attempt", report.Attempt, "kind", report.Kind, "error", err)
	}
	d.answer(m, err, func(verdict, message string) any {
		return protocol.ReportReply{Version: protocol.Version, Outcome: verdict, Message: message, Position: d.World.Position()}
	})
}

var (
	errIncomplete = errors.New("stored files are missing or cut")
	errStale      = errors.New("the attempt is not the job's current one on this node")
)

// answer answers a question about an attempt with the verdict that err means,
// or refuses a question that makes no sense.
func (d *Coordinator) answer(m *nats.Msg, err error, with func(verdict, message string) any) {
	switch {
	case err == nil:
		d.respond(m, with(protocol.Accepted, ""))
	case errors.Is(err, errIncomplete):
		d.respond(m, with(protocol.Incomplete, err.Error()))
	case over(err):
		d.respond(m, with(protocol.Stale, err.Error()))
	case domain.CodeOf(err) == domain.InvalidArgument:
		d.respond(m, protocol.Refusal{Version: protocol.Version, Refused: protocol.ErrorOf(err)})
	default:
		d.respond(m, with(protocol.RetryLater, err.Error()))
	}
}

// over tells whether err is the domain's word that the attempt is over.
func over(err error) bool {
	var fault *domain.Error
	if errors.Is(err, errStale) {
		return true
	}
	return errors.As(err, &fault) && (fault.Reason == "STALE_ATTEMPT" || fault.Reason == "JOB_STATE" || fault.Reason == "NOT_FOUND")
}

// current is the job whose current attempt the node carries out. Before it
// says that there is none it makes sure that it knows the newest facts: this
// desk may lag behind the one that gave the order.
func (d *Coordinator) current(ctx context.Context, node string, name domain.Name, attempt int, made time.Time) (*projections.View, job, error) {
	view := d.World.View()
	if j, ok := jobNamed(view, name); ok && j.CreateTime.Equal(made) && given(j, nodeName(node), attempt) {
		return view, j, nil
	}
	last, err := d.Log.Last(ctx)
	if err != nil {
		return nil, job{}, err
	}
	if err := d.World.WaitFor(ctx, last.Position); err != nil {
		return nil, job{}, err
	}
	view = d.World.View()
	if j, ok := jobNamed(view, name); ok && j.CreateTime.Equal(made) && given(j, nodeName(node), attempt) {
		return view, j, nil
	}
	return nil, job{}, errStale
}

func (d *Coordinator) record(ctx context.Context, node string, r protocol.Report) error {
	switch {
	case len(r.Sizes) > protocol.MaxFiles:
		return domain.Errorf(domain.InvalidArgument, "a checkpoint or a result has at most %d files, not %d", protocol.MaxFiles, len(r.Sizes))
	case r.Step < 0:
		return domain.Errorf(domain.InvalidArgument, "the step of a checkpoint is not negative: %d", r.Step)
	}
	view, j, err := d.current(ctx, node, r.Job, r.Attempt, r.CreateTime)
	if err != nil {
		return err
	}
	cancelling := j.Life.State == domain.JobCancellingState
	switch {
	case r.Kind == protocol.ReportCheckpoint:
		return d.checkpoint(ctx, node, j, r)
	// Whatever else became of an attempt that is being cancelled, it has stopped.
	case r.Kind == protocol.ReportStopped, cancelling:
		return d.tell(ctx, node, j, domain.ConfirmCancel{Attempt: r.Attempt})
	case r.Kind == protocol.ReportWriting:
		return d.tell(ctx, node, j, domain.WriteResults{Attempt: r.Attempt})
	case r.Kind == protocol.ReportCompleted && r.Result != nil:
		return d.complete(ctx, node, view, j, r)
	case r.Kind == protocol.ReportFailed && r.Error != nil:
		return d.fail(ctx, node, j, r)
	}
	return domain.Errorf(domain.InvalidArgument, "a report of kind %q is not understood", r.Kind)
}

func (d *Coordinator) tell(ctx context.Context, node string, j job, command domain.Command[domain.JobLife]) error {
	return d.do(ctx, node, domain.IntendJob(j.Name, command))
}

// fail ends the job when its user must mend something, and has it tried again
// when not.
func (d *Coordinator) fail(ctx context.Context, node string, j job, r protocol.Report) error {
	message := short(r.Error.Message)
	if message == "" {
		message = "the attempt failed on node " + node + " without a reason"
	}
	switch r.Error.Code {
	case domain.InvalidArgument, domain.FailedPrecondition, domain.DataLoss:
		return d.tell(ctx, node, j, domain.FailJob{Attempt: r.Attempt, Status: domain.Status{Code: r.Error.Code.String(), Message: message}})
	}
	return d.tell(ctx, node, j, domain.RequeueJob{Attempt: r.Attempt, Reason: message})
}

// checkpoint records a checkpoint whose files are all there, and brings the
// job's metrics file up to it.
func (d *Coordinator) checkpoint(ctx context.Context, node string, j job, r protocol.Report) error {
	folder := blobs.CheckpointFolder(j.Name, j.Event, r.Attempt, r.Step)
	files, err := d.arrived(ctx, folder, r)
	if err != nil {
		return err
	}
	progress, err := d.publishMetrics(ctx, j, files)
	if err != nil {
		d.log.Warn("the metrics file waits for the next checkpoint", "job", j.Name, "error", err)
	}
	command := domain.RecordCheckpoint{JobCheckpoint: domain.JobCheckpoint{Step: r.Step, Attempt: r.Attempt, Files: files, Metrics: figures(r.Metrics)}, Progress: progress}
	return d.tell(ctx, node, j, command)
}

// arrived is the stored files that a node says it stored; errIncomplete when
// one is not there as it should be.
func (d *Coordinator) arrived(ctx context.Context, folder string, r protocol.Report) (domain.Files, error) {
	there, err := d.Blobs.Files(ctx, folder)
	if err != nil {
		return domain.Files{}, err
	}
	for name, size := range r.Sizes {
		if have, ok := there.Sizes[name]; !ok || have != size {
			return domain.Files{}, fmt.Errorf("%w: %s should have %d bytes and has %d", errIncomplete, name, size, have)
		}
	}
	if len(r.Sizes) == 0 {
		return domain.Files{}, fmt.Errorf("%w: none was named", errIncomplete)
	}
	files := domain.Files{Folder: folder, Sizes: maps.Clone(r.Sizes), Sums: maps.Clone(r.Sums)}
	maps.DeleteFunc(files.Sums, func(name, sum string) bool {
		_, stored := files.Sizes[name]
		return !stored || !isSum(sum)
	})
	return files, nil
}

// isSum tells whether a text is a SHA-256 sum in hexadecimal.
func isSum(text string) bool {
	sum, err := hex.DecodeString(text)
	return err == nil && len(sum) == sha256.Size && strings.ToLower(text) == text
}

// sign answers where an attempt may store files.
func (d *Coordinator) sign(node string, m *nats.Msg) {
	var request protocol.SignRequest
	if !d.read(node, m, &request) {
		return
	}
	ctx, cancel := context.WithTimeout(d.ctx, handleWithin)
	defer cancel()
	urls, err := d.uploads(ctx, node, request)
	d.answer(m, err, func(verdict, message string) any {
		return protocol.SignReply{Version: protocol.Version, Outcome: verdict, Message: message, URLs: urls}
	})
}

func (d *Coordinator) uploads(ctx context.Context, node string, r protocol.SignRequest) (map[string]string, error) {
	_, j, err := d.current(ctx, node, r.Job, r.Attempt, r.CreateTime)
	if err != nil {
		return nil, err
	}
	folder := blobs.ResultFolder(j.Name, j.Event, r.Attempt)
	if r.For == protocol.ForCheckpoint {
		folder = blobs.CheckpointFolder(j.Name, j.Event, r.Attempt, r.Step)
	}
	if len(r.Sizes) > protocol.MaxFiles || r.Step < 0 || r.For != protocol.ForCheckpoint && r.For != protocol.ForResults {
		return nil, domain.Errorf(domain.InvalidArgument, "1 to %d files of a checkpoint or of results can be stored at once", protocol.MaxFiles)
	}
	urls := map[string]string{}
	for name, size := range r.Sizes {
		// A limit of 0 is none, so an empty file may grow to one byte; arrived finds it.
		if urls[name], err = d.Blobs.SignPut(ctx, folder+name, max(size, 1), uploadWithin); err != nil {
			return nil, err
		}
	}
	return urls, nil
}
