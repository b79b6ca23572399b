package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/blobs"
	"anneal/blobs/operations"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/workers/protocol"
)

// A training replies to the requests of attempts that serve training runs. It sends the operations
// in the journal to the attempts, and stores their results in the journal.
//
// A request gets the outcome Stale unless it is from the current attempt of the job: an attempt
// that was declared lost but still runs is fenced off, and neither gets operations nor stores
// results.
type training struct {
	recorder
	requests *requests // replies to results and checkpoints
	polls    *requests // replies to long polls
	reports  *reports
	files    *assigner
	blobs    *blobs.Store
	journal  *operations.Store
	progress *serviceProgress
	logger   *slog.Logger
}

const (
	maxPolls      = 8192 // maximum number of long polls in progress
	maxSampleSize = protocol.MaxMessage * 3 / 4
)

func newTraining(o Options, r recorder, c *Coordinator, progress *serviceProgress) *training {
	polls := &requests{recorder: r, conn: o.Conn, logger: o.Logger, slots: make(chan struct{}, maxPolls)}
	return &training{recorder: r, requests: c.requests, polls: polls, reports: c.reports,
		files: c.heartbeats.assigner, blobs: o.Blobs, journal: o.Journal,
		progress: progress, logger: o.Logger}
}

// handlers returns the handlers of the requests, by the last part of their subject.
func (t *training) handlers() map[string]handler {
	return map[string]handler{
		protocol.TrainingRuns:        serveTraining(t, t.polls, protocol.TrainingHold, t.runs),
		protocol.TrainingPulls:       serveTraining(t, t.polls, protocol.TrainingHold, t.pull),
		protocol.TrainingSamples:     serveTraining(t, t.polls, protocol.TrainingHold, t.samples),
		protocol.TrainingBodies:      serveTraining(t, t.requests, handleTimeout, t.body),
		protocol.TrainingResults:     serveTraining(t, t.requests, handleTimeout, t.result),
		protocol.TrainingCheckpoints: serveTraining(t, t.requests, handleTimeout, t.checkpoint),
	}
}

// subscribe subscribes to the requests of all nodes.
func (t *training) subscribe(ctx context.Context) (all []*nats.Subscription, err error) {
	for message, handle := range t.handlers() {
		via := t.requests
		switch message {
		case protocol.TrainingRuns, protocol.TrainingPulls, protocol.TrainingSamples:
			via = t.polls
		}
		s, err := via.subscribe(ctx, protocol.TrainingSubject("*", message), queueGroup, handle)
		if err != nil {
			return all, err
		}
		all = append(all, s)
	}
	return all, nil
}

// serveTraining returns a handler that decodes a request, calls handle with a timeout, and sends
// the reply.
func serveTraining[Q, R any](t *training, via *requests, within time.Duration,
	handle func(ctx context.Context, node string, request Q) (R, error)) handler {
	return func(ctx context.Context, node string, m *nats.Msg) {
		var request Q
		if !via.decode(ctx, node, m, &request) {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		reply, err := handle(ctx, node, request)
		switch {
		case err == nil:
			via.respond(m, withOutcome(reply, protocol.Accepted, ""))
		case isStale(err):
			via.respond(m, withOutcome(reply, protocol.Stale, err.Error()))
		case errors.Is(err, errRunEnded):
			via.respond(m, withOutcome(reply, protocol.RunEnded, err.Error()))
		case errors.Is(err, errIncomplete): // sending the message again cannot help, another attempt can
			via.refuse(m, node, domain.Errorf(domain.Unavailable, "%v", err))
		case domain.CodeOf(err) == domain.InvalidArgument:
			via.refuse(m, node, err)
		default:
			t.logger.Info("cannot process a message of a training service", "node", node, "subject", m.Subject, "error", err)
			via.respond(m, withOutcome(reply, protocol.RetryLater, err.Error()))
		}
	}
}

// withOutcome sets the version, the outcome and the message of a reply.
func withOutcome(reply any, outcome, message string) any {
	switch r := reply.(type) {
	case protocol.TrainingRunsReply:
		r.Version, r.Outcome, r.Message = protocol.Version, outcome, message
		return r
	case protocol.TrainingOperations:
		r.Version, r.Outcome, r.Message = protocol.Version, outcome, message
		return r
	case protocol.TrainingBody:
		r.Version, r.Outcome, r.Message = protocol.Version, outcome, message
		return r
	}
	return protocol.TrainingReply{Version: protocol.Version, Outcome: outcome, Message: message}
}

var errRunEnded = errors.New("the training run was unloaded or deleted, or is corrupted")

// attempt returns the job of an attempt. It returns errStale unless the attempt is the current one,
// runs on the node and serves training runs.
func (t *training) attempt(ctx context.Context, node string, a protocol.TrainingAttempt) (
	*projections.View, job, error,
) {
	view, j, err := t.reports.currentJob(ctx, node, a.Job, a.Attempt, a.CreateTime, leads)
	if err == nil && !j.Service {
		err = errStale
	}
	return view, j, err
}

// run returns a live run of a job.
func (t *training) run(view *projections.View, j job, id string) (*projections.Row[domain.TrainingRun], error) {
	if !domain.ValidID(id) {
		return nil, domain.Errorf(domain.InvalidArgument, "the training run has the ID %.64q: it %s", id, domain.IDRule)
	}
	row, ok := view.Runs.Get(runName(j, id))
	if !ok || row.State.Job != j.Name || row.State.JobEvent != j.Event || !row.State.Live() {
		return nil, errRunEnded
	}
	return row, nil
}

func runName(j job, id string) domain.Name {
	return domain.NewName(j.Name.Account(), domain.TrainingRuns.Collection, id)
}

func laneOf(j job, id string, samples bool) operations.Lane {
	return operations.Lane{Account: j.Name.Account(), Job: j.Event, ID: id, Samples: samples}
}

var laneID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,255}$`)

// checkLaneID returns an error unless id has the form of the ID of a run or a sampling session.
func checkLaneID(id string) error {
	if !laneID.MatchString(id) {
		return domain.Errorf(domain.InvalidArgument, "%.64q is not the ID of a training run or a sampling session", id)
	}
	return nil
}

// runs waits until there are runs that the attempt must open or close.
func (t *training) runs(ctx context.Context, node string, request protocol.TrainingRunsRequest) (
	reply protocol.TrainingRunsReply, err error,
) {
	have := map[string]bool{}
	for _, id := range request.Have {
		have[id] = true
	}
	for {
		view, j, err := t.attempt(ctx, node, request.TrainingAttempt)
		if err != nil {
			return reply, err
		}
		if err := t.listRuns(ctx, view, j, have, &reply); err != nil {
			return reply, err
		}
		if len(reply.Open)+len(reply.Close) > 0 {
			return reply, nil
		}
		select {
		case <-t.world.Changed(view.Position):
		case <-ctx.Done():
			return reply, nil
		}
	}
}

func (t *training) listRuns(ctx context.Context, view *projections.View, j job, have map[string]bool,
	reply *protocol.TrainingRunsReply) error {
	space, live := draftSpace, map[string]bool{}
	for row := range view.Runs.In(j.Name.Account()) {
		id := row.Name.ID()
		if row.State.Job != j.Name || row.State.JobEvent != j.Event || !row.State.Live() {
			continue
		}
		live[id] = true
		if have[id] {
			continue
		}
		one := protocol.TrainingRun{ID: id, Config: engines.TrainRunConfig{Rank: row.State.Config.Rank,
			Alpha: row.State.Config.Alpha, Seed: row.State.Config.Seed, TrainAttn: row.State.Config.TrainAttn,
			TrainMLP: row.State.Config.TrainMLP, TrainUnembed: row.State.Config.TrainUnembed}}
		if last, ok := row.State.Newest(domain.TrainingCheckpointRecovery); ok {
			files, err := t.storedSet(ctx, last.Files)
			if domain.CodeOf(err) == domain.NotFound {
				reason := "the recovery checkpoint, from which the run would continue, is lost in the file store"
				if err := t.corrupt(ctx, string(j.Life.Nodes[0]), row.Name, reason, &last.Seq); err != nil {
					return err
				}
				continue
			}
			if err != nil {
				return err
			}
			one.State, one.Seq = files, last.Seq
		}
		data, err := protocol.Marshal(one)
		if err != nil {
			return err
		}
		if space -= len(data); space < 0 {
			break // the agent requests the others next
		}
		reply.Open = append(reply.Open, one)
	}
	for id := range have {
		if row, ok := view.Runs.Get(runName(j, id)); !live[id] && (!ok || !row.State.Live()) {
			reply.Close = append(reply.Close, id)
		}
	}
	return nil
}

// storedSet returns signed URLs for downloading stored files, or NotFound if one is lost.
func (t *training) storedSet(ctx context.Context, files domain.Files) (*protocol.FileSet, error) {
	stored, err := t.blobs.Files(ctx, files.Prefix)
	if err != nil {
		return nil, err
	}
	for name, size := range files.Sizes {
		if have, ok := stored.Sizes[name]; !ok || have != size {
			return nil, domain.Errorf(domain.NotFound, "the file store has lost %s%s", files.Prefix, name)
		}
	}
	return t.files.fileSet(ctx, files.Prefix, files)
}

// corrupt records that a run cannot continue. recovery is the number of the last operation in the recovery
// checkpoint by which that was found, or nil: see domain.CorruptTrainingRun.
func (t *training) corrupt(ctx context.Context, node string, run domain.Name, reason string, recovery *int64) error {
	err := t.do(ctx, node, domain.Intend(domain.TrainingRuns, run, domain.Command[domain.TrainingRun](
		domain.CorruptTrainingRun{Reason: truncate(reason), Recovery: recovery})))
	if err != nil && isRefused(err) {
		return nil // the run has ended, or continues from a newer checkpoint
	}
	if err == nil {
		t.logger.Error("a training run is corrupted", "run", run, "reason", reason)
	}
	return err
}

// pull waits for the next operation of a run.
func (t *training) pull(ctx context.Context, node string, request protocol.TrainingPull) (
	reply protocol.TrainingOperations, err error,
) {
	view, j, err := t.attempt(ctx, node, request.TrainingAttempt)
	if err != nil {
		return reply, err
	}
	row, err := t.run(view, j, request.Run)
	if err != nil {
		return reply, err
	}
	lane := laneOf(j, request.Run, false)
	operation, ok, err := t.journal.Next(ctx, lane, request.After)
	var result operations.Result
	done := false
	if err == nil && ok {
		result, done, err = t.journal.Result(ctx, lane, operation.Seq)
	}
	switch {
	case domain.CodeOf(err) == domain.DataLoss:
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handleTimeout)
		defer cancel()
		// An outdated request is for operations that a newer checkpoint contains. With errRunEnded, the agent
		// opens the run again, from the newest checkpoint.
		if err := t.corrupt(ctx, node, row.Name, err.Error(), &request.After); err != nil {
			return reply, err
		}
		return reply, errRunEnded
	case err != nil && ctx.Err() != nil, err == nil && !ok:
		return reply, nil // none within the time
	case err != nil:
		return reply, err
	}
	one := protocol.TrainingOperation{Lane: request.Run, Seq: operation.Seq, Done: done}
	one.Skip = done && result.Err != nil && result.Err.Reason != engines.TrainingDiverged
	if one.Skip {
		reply.Operations = []protocol.TrainingOperation{one}
		return reply, nil
	}
	if err := t.fill(ctx, j, &one, operation.Body, map[string]*protocol.FileSet{}); err != nil {
		return reply, err
	}
	reply.Operations = []protocol.TrainingOperation{one}
	return reply, nil
}

// fill sets the body of an operation, or the first part of it, and the files that it reads. sets
// caches file sets by prefix.
func (t *training) fill(ctx context.Context, j job, one *protocol.TrainingOperation, body []byte,
	sets map[string]*protocol.FileSet) error {
	one.Size = int64(len(body))
	one.Body = body[:min(len(body), protocol.MaxTrainingInline)]
	operation, err := engines.DecodeTrainOperation(body)
	if err != nil {
		return nil //nolint:nilerr // the agent reports that the operation is invalid
	}
	prefix := ""
	switch {
	case operation.Load != nil:
		prefix = operation.Load.Checkpoint
	case operation.Sample != nil:
		prefix = operation.Sample.Weights
	}
	if prefix == "" {
		return nil
	}
	set, known := sets[prefix]
	if !known {
		if set, err = t.checkpointSet(ctx, j, prefix); err != nil {
			return err
		}
		sets[prefix] = set
	}
	one.Files = set
	return nil
}

// checkpointSet returns the file set of the checkpoint whose files have the prefix; nil if there is
// none or it belongs to another account.
func (t *training) checkpointSet(ctx context.Context, j job, prefix string) (*protocol.FileSet, error) {
	if !strings.HasPrefix(prefix, blobs.JobRoot+j.Name.Account()+"/") || !strings.HasSuffix(prefix, "/") ||
		strings.Contains(prefix, "..") {
		return nil, nil
	}
	files, err := t.blobs.Files(ctx, prefix)
	if err != nil || len(files.Sizes) == 0 {
		return nil, err
	}
	return t.files.fileSet(ctx, prefix, files)
}

// samples waits until there are sampling operations that are not in progress in the attempt.
func (t *training) samples(ctx context.Context, node string, request protocol.TrainingSamplesPull) (
	reply protocol.TrainingOperations, err error,
) {
	_, j, err := t.attempt(ctx, node, request.TrainingAttempt)
	if err != nil {
		return reply, err
	}
	running := map[string]map[int64]bool{}
	for lane, seqs := range request.Running {
		running[lane] = map[int64]bool{}
		for _, seq := range seqs {
			running[lane][seq] = true
		}
	}
	account, sets := j.Name.Account(), map[string]*protocol.FileSet{}
	for {
		changed := t.journal.Changed(account, j.Event)
		pending, err := t.journal.Pending(ctx, account, j.Event)
		if err != nil {
			return reply, err
		}
		space := maxSampleSize
		for _, sample := range pending {
			if running[sample.Lane.ID][sample.Seq] {
				continue
			}
			one, err := t.sampleOperation(ctx, node, j, sample, sets)
			if err != nil {
				return reply, err
			}
			if one == nil {
				continue
			}
			size := len(one.Body)*4/3 + 512
			if one.Files != nil {
				size += len(one.Files.Files) * 1024
			}
			if space -= size; len(reply.Operations) >= request.Max || space < 0 && len(reply.Operations) > 0 {
				break
			}
			reply.Operations = append(reply.Operations, *one)
		}
		if len(reply.Operations) > 0 {
			return reply, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return reply, nil
		}
	}
}

// sampleOperation returns an operation of a sampling session; nil if it was deleted, or is damaged:
// then its result is the error.
func (t *training) sampleOperation(ctx context.Context, node string, j job, sample operations.PendingSample,
	sets map[string]*protocol.FileSet) (*protocol.TrainingOperation, error) {
	operation, err := t.journal.Operation(ctx, sample.Lane, sample.Seq)
	switch domain.CodeOf(err) {
	case domain.OK:
	case domain.NotFound:
		return nil, nil
	case domain.DataLoss:
		t.logger.Error("a stored sampling operation is damaged", "node", node, "session", sample.Lane.ID, "seq", sample.Seq)
		return nil, t.journal.Finish(ctx, sample.Lane, sample.Seq, operations.Result{Attempt: j.Life.Attempt,
			Err: asDomain(err)})
	default:
		return nil, err
	}
	one := &protocol.TrainingOperation{Lane: sample.Lane.ID, Seq: sample.Seq}
	return one, t.fill(ctx, j, one, operation.Body, sets)
}

// body returns a part of an operation.
func (t *training) body(ctx context.Context, node string, request protocol.TrainingBodyRequest) (
	reply protocol.TrainingBody, err error,
) {
	_, j, err := t.attempt(ctx, node, request.TrainingAttempt)
	if err != nil {
		return reply, err
	}
	if err := checkLaneID(request.Lane); err != nil {
		return reply, err
	}
	operation, err := t.journal.Operation(ctx, laneOf(j, request.Lane, request.Samples), request.Seq)
	if domain.CodeOf(err) == domain.NotFound {
		err = errRunEnded // its session was deleted
	}
	if err != nil {
		return reply, err
	}
	body := operation.Body
	if request.Offset < 0 || request.Offset >= int64(len(body)) {
		return reply, domain.Errorf(domain.InvalidArgument, "the operation has %d bytes: the offset %d is not in it",
			len(body), request.Offset)
	}
	body = body[request.Offset:]
	reply.Part = body[:min(len(body), protocol.MaxTrainingInline)]
	return reply, nil
}
