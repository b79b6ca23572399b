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
	"anneal/workers/protocol"
)

// An attempt is a running attempt of a job.
type attempt struct {
	agent      *Agent
	assignment protocol.TrainAssignment
	log        *slog.Logger
	dir        string             // directory of the attempt's work in progress
	life       context.Context    // context of all goroutines of the attempt
	end        context.CancelFunc // cancels life
	work       context.Context    // context of the training; when work is canceled, the trainer saves a checkpoint
	halt       context.CancelCauseFunc
	outbox     *outbox
	rollouts   *rollouts
	joblog     *jobLog
	done       chan struct{} // closed when all goroutines of the attempt have ended

	deviceReport sync.Once

	mu      sync.Mutex
	phase   string
	metrics metrics
}

func newAttempt(a *Agent, life context.Context, assignment protocol.TrainAssignment) *attempt {
	t := &attempt{
		agent: a, assignment: assignment, log: a.log.With("attempt", assignment.ID()), phase: protocol.Preparing,
		done: make(chan struct{}),
		dir: filepath.Join(a.workDir(), strings.ReplaceAll(assignment.ID(), "/",
			"_")), metrics: metrics{acked: assignment.ResumeStep, step: assignment.ResumeStep},
	}
	t.life, t.end = context.WithCancel(life)
	t.work, t.halt = context.WithCancelCause(t.life)
	t.outbox, t.rollouts, t.joblog = newOutbox(t), newRollouts(t), newJobLog(t, life)
	return t
}

// stop ends the attempt: immediately and without a report when why is errUnwanted, otherwise after
// a last checkpoint.
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

// state returns the state of the attempt for the next heartbeat, with at most maxRows metric rows.
// more reports whether further rows should be sent immediately.
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

// run runs the attempt and reports how it ended. The attempt waits for the earlier attempts of its job
// and then for its devices, each within releaseTimeout. If recordErr, the error of recording the start,
// is not nil, the attempt fails. After the attempt has ended, heartbeats list the attempt as lost until
// the coordinator does not keep it any more. A coordinator that has received no report of the end then
// requeues the job.
func (t *attempt) run(before []*attempt, recordErr error) {
	defer t.agent.requestHeartbeat()
	defer close(t.done)
	defer t.enter(protocol.Lost)
	defer os.RemoveAll(t.dir)
	defer t.end()
	var result engines.TrainResult
	err := cmp.Or(diskError(recordErr), t.awaitEarlier(before))
	if err == nil {
		t.log.Info("attempt started", "resumeStep", t.assignment.ResumeStep)
		t.joblog.logf("attempt %d started on node %s after step %d", t.assignment.Attempt, t.agent.options.Node,
			t.assignment.ResumeStep)
		result, err = t.train()
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
	t.joblog.close(unwanted)
}

// reportEnd reports how the attempt ended, unless it is unwanted. The last heartbeat of a node that
// is shut down reports the end of all its attempts.
func (t *attempt) reportEnd(err error) {
	why := context.Cause(t.work)
	switch {
	case err == nil:
		t.log.Info("attempt ended")
	case t.life.Err() != nil, errors.Is(why, errLeaving):
		t.log.Info("attempt interrupted", "reason", err)
	case errors.Is(why, errCancelled):
		t.log.Info("attempt canceled")
		// The report fails only when the attempt is unwanted.
		_, _ = t.report(t.life, protocol.Report{Kind: protocol.ReportStopped})
	case isDeviceFailure(why):
		t.reportDevice(why)
	default:
		t.log.Error("attempt failed", "error", err)
		_, _ = t.report(t.life, t.failure(err))
	}
}

// failure returns the report of a failed attempt. If the node is the cause, the report says so, and
// the failure does not count toward the job's limit of failures.
func (t *attempt) failure(err error) protocol.Report {
	return protocol.Report{Kind: protocol.ReportFailed, Error: t.errorOf(err),
		Preempted: isDeviceFailure(err) || isNotReleased(err)}
}

// loseDevice stops the attempt because its device has failed. It reports the failure at once,
// without waiting for the trainer, because a program that uses the device may hang. The attempt
// saves no checkpoint: what a failed device has computed may be wrong.
func (t *attempt) loseDevice(err error) {
	t.stop(err)
	t.reportDevice(err)
}

// reportDevice reports once that the attempt has lost its device.
func (t *attempt) reportDevice(err error) {
	t.deviceReport.Do(func() {
		t.log.Error("attempt lost its device", "error", err)
		_, _ = t.report(t.life, t.failure(err))
	})
}

// errorOf returns err as an error for the user, without secrets and paths of this machine.
func (t *attempt) errorOf(err error) *protocol.Error {
	const maxMessage = 2000 // bytes
	e := protocol.ErrorOf(err)
	e.Message = truncate(t.joblog.redact(e.Message), maxMessage)
	return e
}

// train downloads the inputs and trains.
func (t *attempt) train() (result engines.TrainResult, err error) {
	if t.agent.options.Engine.Trainer == nil {
		why := cmp.Or(t.agent.options.Engine.Missing["train"], "its engine has no trainer")
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
	if result, err = t.agent.options.Engine.Trainer.Train(t.work, req, watcher{t}); err != nil {
		return result, err
	}
	if config := result.Files[weights.AdapterConfigFile]; config != nil {
		config, err = nameBase(config, t.assignment.BaseModel)
		result.Files[weights.AdapterConfigFile] = config
		return result, err
	}
	return result, t.nameBase(result.Dir)
}

// nameBase records the ID of the base model in the configuration of the adapter in dir, if dir has
// an adapter. A trainer knows only the directory of the base model on this node.
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

// nameBase returns the configuration of an adapter with the ID of the base model, unless that is "".
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

// prepare downloads the files of the attempt, except the code of its evaluator. release releases
// the files in the cache, and is never nil.
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
		return req, release, fmt.Errorf("base model: %w", err)
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
		return req, release, fmt.Errorf("evaluation dataset: %w", err)
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

// helps reports whether another node of the gang leads the attempt.
func (t *attempt) helps() bool { return t.assignment.Gang != nil && t.assignment.Gang.Rank > 0 }

// cores returns how many CPU cores the attempt may use.
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

// A watcher receives the metrics and checkpoints of the trainer.
type watcher struct{ *attempt }

// Step implements engines.TrainWatcher.
func (w watcher) Step(row engines.Metrics) {
	w.mu.Lock()
	w.metrics.add(row)
	w.mu.Unlock()
	w.joblog.step(row)
}

// Checkpoint implements engines.TrainWatcher. It copies the files and uploads the copy, so that
// training continues while the store or the coordinator is unreachable.
func (w watcher) Checkpoint(_ context.Context, step int, dir string) error {
	if w.life.Err() != nil || isDeviceFailure(context.Cause(w.work)) {
		return errUnwanted
	}
	if err := w.nameBase(filepath.Join(dir, domain.CheckpointModel)); err != nil {
		return err
	}
	return w.outbox.put(step, dir)
}
