package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"anneal/domain"
	"anneal/domain/weights"
	"anneal/engines"
	"anneal/tracing"
	"anneal/workers/protocol"
)

// An attempt is one execution of a job on this node.
type attempt struct {
	agent      *Agent
	assignment protocol.TrainAssignment
	log        *slog.Logger
	dir        string             // directory for the files of the attempt
	life       context.Context    // context of all goroutines of the attempt
	end        context.CancelFunc // cancels the context life
	// context of the trainer; when it is canceled, the trainer saves a checkpoint and returns
	work     context.Context
	halt     context.CancelCauseFunc
	outbox   *outbox
	rollouts *rollouts
	joblog   *jobLog
	done     chan struct{} // closed when all goroutines of the attempt have returned

	span tracing.Span

	deviceReport sync.Once

	mu      sync.Mutex
	phase   string
	metrics metrics
	service *trainingService // serves the runs of the job; nil before it has started, and for other attempts
}

func newAttempt(a *Agent, life context.Context, assignment protocol.TrainAssignment) *attempt {
	life, span := startAttemptSpan(life, assignment)
	t := &attempt{
		span: span, agent: a, assignment: assignment, log: a.log.With("attempt", assignment.ID()), phase: protocol.Preparing,
		done: make(chan struct{}),
		dir: filepath.Join(a.workDir(), strings.ReplaceAll(assignment.ID(), "/",
			"_")), metrics: metrics{acked: assignment.ResumeStep, step: assignment.ResumeStep},
	}
	t.life, t.end = context.WithCancel(life)
	t.work, t.halt = context.WithCancelCause(t.life)
	t.outbox, t.rollouts, t.joblog = newOutbox(t), newRollouts(t), newJobLog(t, life)
	return t
}

// stop stops the attempt. When why is errUnwanted, the attempt is no longer assigned: it stops at
// once and reports nothing; otherwise the trainer saves a last checkpoint and the end is reported.
func (t *attempt) stop(why error) {
	t.halt(why)
	if errors.Is(why, errUnwanted) {
		t.end()
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.phase == protocol.Training || t.phase == protocol.Preparing {
		t.phase = protocol.Stopping
	}
}

// state returns the state of the attempt for the next heartbeat, with at most maxRows rows of
// metrics. more reports that the next heartbeat should be sent immediately, because further rows
// are left.
func (t *attempt) state(maxRows int) (listed protocol.Attempt, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rows, more := t.metrics.unacknowledged(maxRows)
	return protocol.Attempt{Job: t.assignment.Job, Attempt: t.assignment.Attempt, CreateTime: t.assignment.CreateTime,
		Phase: t.phase, Step: t.metrics.step, Steps: t.metrics.steps, Acked: t.metrics.acked, Rows: rows}, more
}

func (t *attempt) acknowledge(step int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.metrics.acknowledge(step)
}

func (t *attempt) enter(phase string) {
	t.mu.Lock()
	if t.work.Err() == nil || phase == protocol.Lost {
		t.phase = phase
	}
	t.mu.Unlock()
	t.agent.requestHeartbeat()
}

// run executes the attempt and reports its end. It first waits for the earlier attempts of its job
// in earlier, and then for its devices, each for at most releaseTimeout. recordErr is the error of
// recording on disk that the attempt is started; if it is not nil, the attempt fails.
//
// After the end, heartbeats list the attempt as lost until the coordinator no longer assigns it. If
// the report of the end did not arrive, the coordinator therefore requeues the job.
func (t *attempt) run(earlier []*attempt, recordErr error) {
	defer t.agent.requestHeartbeat()
	defer close(t.done)
	defer t.enter(protocol.Lost)
	defer os.RemoveAll(t.dir)
	defer t.end()
	var result engines.TrainResult
	err := cmp.Or(diskError(recordErr), t.awaitEarlier(earlier))
	if err == nil {
		t.log.Info("attempt started", "resumeStep", t.assignment.ResumeStep)
		t.joblog.logf("attempt %d started, continuing after step %d", t.assignment.Attempt, t.assignment.ResumeStep)
		if t.assignment.Serve {
			err = serveRuns(t)
		} else {
			result, err = t.train()
		}
	}
	unwanted := t.life.Err() != nil
	t.joblog.ended(err, result.Files != nil)
	if err == nil {
		t.outbox.discard()
		t.rollouts.flush()
		if err = t.deliver(result); err != nil {
			t.joblog.ended(err, false)
		}
	} else {
		t.outbox.flush()
		t.rollouts.flush()
	}
	t.reportEnd(err)
	endSpan(t, err)
	t.joblog.close(unwanted)
}

// reportEnd reports how the attempt ended. It reports nothing when the attempt is no longer
// assigned, or when the node shuts down, because the last heartbeat then reports the end of all
// attempts.
func (t *attempt) reportEnd(err error) {
	why := context.Cause(t.work)
	switch {
	case err == nil:
		t.log.Info("attempt ended")
	case t.life.Err() != nil, errors.Is(why, errLeaving):
		t.log.Info("attempt interrupted", "reason", err)
	case errors.Is(why, errCancelled):
		t.log.Info("attempt canceled")
		// This report fails only if the coordinator no longer assigns the attempt.
		_, _ = t.report(t.life, protocol.Report{Kind: protocol.ReportStopped})
	case errors.Is(why, errIdle):
		t.log.Info("attempt stopped, because the training service is idle")
		_, _ = t.report(t.life, protocol.Report{Kind: protocol.ReportIdle})
	case isDeviceFailure(why):
		t.reportDevice(why)
	default:
		t.log.Error("attempt failed", "error", err)
		_, _ = t.report(t.life, t.failure(err))
	}
}

// failure returns the report of a failed attempt. When the node caused the failure, the report says
// so, and the failure does not count toward the job's maximum number of failures.
func (t *attempt) failure(err error) protocol.Report {
	return protocol.Report{Kind: protocol.ReportFailed, Error: t.errorOf(err),
		Preempted: isDeviceFailure(err) || isNotReleased(err)}
}

// loseDevice stops the attempt after one of its devices failed. It reports the failure immediately,
// because a program that uses the device may hang. No checkpoint is saved, because the results of a
// failed device may be wrong.
func (t *attempt) loseDevice(err error) {
	t.stop(err)
	t.reportDevice(err)
}

// reportDevice reports the failure of the attempt's device, once.
func (t *attempt) reportDevice(err error) {
	t.deviceReport.Do(func() {
		t.log.Error("stopping an attempt, because a device that it uses has failed", "error", err)
		_, _ = t.report(t.life, t.failure(err))
	})
}

// errorOf returns err as an error for the user, with secrets and paths of this machine removed.
func (t *attempt) errorOf(err error) *protocol.Error {
	const maxMessage = 2000 // maximum length of the message in bytes
	e := protocol.ErrorOf(err)
	e.Message = truncate(t.joblog.redact(e.Message), maxMessage)
	return e
}

// train downloads the input files and runs the trainer.
func (t *attempt) train() (result engines.TrainResult, err error) {
	if t.agent.options.Engine.Trainer == nil {
		engine := t.agent.options.Engine
		why := cmp.Or(engine.Missing["train"], fmt.Sprintf("the engine %s cannot train", engine.Name))
		return result, domain.Errorf(domain.Unavailable, "the node cannot train: %s", why)
	}
	req, release, err := t.prepare()
	defer release()
	if err == nil {
		var leave func()
		req.Gang, leave, err = t.joinGang()
		defer leave()
	}
	if err == nil {
		var closed func()
		req.Evaluation, closed, err = t.openEvaluation()
		defer closed()
	}
	if err != nil {
		return result, err
	}
	var free func()
	req.Devices, free, err = t.acquireDevices()
	defer free()
	if err != nil {
		return result, err
	}
	t.agent.devices.use(req.Devices, t.assignment.ID(), t.loseDevice)
	t.enter(protocol.Training)
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("the engine panicked: %v", cause)
		}
	}()
	if t.helps() {
		return result, t.assist(t.agent.options.Engine.Trainer, req)
	}
	if result, err = trainInSpan(t, req); err != nil {
		return result, err
	}
	if config := result.Files[weights.AdapterConfigFile]; config != nil {
		config, err = nameBase(config, t.assignment.BaseModel)
		result.Files[weights.AdapterConfigFile] = config
		return result, err
	}
	return result, t.nameBase(result.Dir)
}

// nameBase writes the ID of the base model into the adapter's configuration in dir, if there is
// one. The trainer itself only knows the directory of the base model on this node.
func (t *attempt) nameBase(dir string) error {
	path := filepath.Join(dir, weights.AdapterConfigFile)
	config, err := os.ReadFile(path)
	if dir == "" || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	named, err := nameBase(config, t.assignment.BaseModel)
	if err != nil || bytes.Equal(named, config) {
		return err
	}
	return os.WriteFile(path, named, 0o600)
}

// nameBase returns an adapter's configuration with the ID of its base model. It returns config
// unchanged when base is "".
func nameBase(config []byte, base domain.Name) ([]byte, error) {
	if base == "" {
		return config, nil
	}
	named, err := weights.SetBaseModel(config, base.ID(), base.ID())
	if err != nil || named == nil {
		return config, err
	}
	return named, nil
}

// prepare downloads the files of the attempt, except the evaluator's code. release releases the
// files in the cache; it is never nil.
func (t *attempt) prepare() (req engines.TrainRequest, release func(), err error) {
	var held []func()
	release = func() {
		for _, free := range held {
			free()
		}
	}
	req = engines.TrainRequest{Method: t.assignment.Method, Settings: t.assignment.Settings, Seed: t.assignment.Seed,
		WorkDir: filepath.Join(t.dir, "work"), Parallelism: t.cores(), OnRollouts: t.rollouts.add, Log: t.joblog}
	acquire := func(files *protocol.FileSet) (string, error) {
		if files == nil {
			return "", nil
		}
		dir, free, err := t.agent.cache.acquire(t.work, *files)
		if err == nil {
			held = append(held, free)
		}
		return dir, err
	}
	if req.BaseDir, err = acquire(&t.assignment.Base); err != nil {
		return req, release, fmt.Errorf("download the base model: %w", err)
	}
	if req.AdapterDir, err = acquire(t.assignment.Adapter); err != nil {
		return req, release, fmt.Errorf("adapter: %w", err)
	}
	var dir string
	if !t.helps() {
		if dir, err = acquire(&t.assignment.Data); err != nil {
			return req, release, fmt.Errorf("dataset: %w", err)
		}
		req.DataFiles = paths(dir, &t.assignment.Data)
	}
	if dir, err = acquire(t.assignment.Eval); err != nil {
		return req, release, fmt.Errorf("download the evaluation dataset: %w", err)
	}
	req.EvalFiles = paths(dir, t.assignment.Eval)
	if t.assignment.Resume != nil {
		req.ResumeDir = filepath.Join(t.dir, "resume")
		if err := t.agent.files.download(t.work, *t.assignment.Resume, req.ResumeDir); err != nil {
			return req, release, fmt.Errorf("checkpoint: %w", err)
		}
		if err := t.readMetrics(req.ResumeDir); err != nil {
			return req, release, fmt.Errorf("checkpoint: %w", err)
		}
		t.rollouts.read(req.ResumeDir)
	}
	return req, release, nil
}

// helps reports whether this node only computes for another node of the gang, which leads the
// attempt.
func (t *attempt) helps() bool { return t.assignment.Gang != nil && t.assignment.Gang.Rank > 0 }

// cores returns the number of CPU cores that the attempt may use.
func (t *attempt) cores() int { return max(1, int(t.assignment.CPUMilli/1000)) }

func paths(dir string, files *protocol.FileSet) []string {
	if files == nil {
		return nil
	}
	var all []string
	for _, file := range files.Files {
		all = append(all, filepath.Join(dir, file.Name))
	}
	return all
}

// A watcher receives the metrics and checkpoints of the trainer for an attempt.
type watcher struct{ *attempt }

// Step implements engines.TrainWatcher.
func (w watcher) Step(row engines.Metrics) {
	w.mu.Lock()
	w.metrics.add(row)
	w.mu.Unlock()
	w.joblog.step(row)
}

// Checkpoint implements engines.TrainWatcher. It copies the files of the checkpoint and uploads the
// copy in the background, so that training continues when the store or the coordinator is
// unreachable.
func (w watcher) Checkpoint(_ context.Context, step int, dir string) error {
	if w.life.Err() != nil || isDeviceFailure(context.Cause(w.work)) {
		return errUnwanted
	}
	if err := w.nameBase(filepath.Join(dir, domain.CheckpointModel)); err != nil {
		return err
	}
	return w.outbox.put(step, dir)
}
