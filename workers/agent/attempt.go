package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

// An attempt is a running attempt of a job.
type attempt struct {
	agent  *Agent
	order  protocol.TrainAssignment // what was assigned
	log    *slog.Logger
	dir    string             // for work in progress
	life   context.Context    // of all that runs for the attempt
	end    context.CancelFunc // of life
	work   context.Context    // of the training, which saves a checkpoint when it is done
	halt   context.CancelCauseFunc
	outbox *outbox
	done   chan struct{} // closed when nothing runs for the attempt

	mu      sync.Mutex
	phase   string
	metrics metrics
}

func newAttempt(a *Agent, life context.Context, order protocol.TrainAssignment) *attempt {
	t := &attempt{
		agent: a, order: order, log: a.log.With("attempt", order.ID()), phase: protocol.Preparing,
		done: make(chan struct{}),
		dir: filepath.Join(a.workDir(), strings.ReplaceAll(order.ID(), "/",
			"_")), metrics: metrics{acked: order.ResumeStep, step: order.ResumeStep},
	}
	t.life, t.end = context.WithCancel(life)
	t.work, t.halt = context.WithCancelCause(t.life)
	t.outbox = newOutbox(t)
	return t
}

// stop ends the attempt: immediately and without a report when it is unwanted, otherwise after a last
// checkpoint.
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

// state returns the attempt for a heartbeat, with at most maxRows metric rows; more reports whether
// rows remain.
func (t *attempt) state(maxRows int) (listed protocol.Attempt, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rows, more := t.metrics.unacknowledged(maxRows)
	return protocol.Attempt{Job: t.order.Job, Attempt: t.order.Attempt, CreateTime: t.order.CreateTime, Phase: t.phase,
		Step: t.metrics.step, Steps: t.metrics.steps, Rows: rows}, more
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

// run runs the attempt and reports how it ended. After that heartbeats list it as lost until the
// coordinator no longer wants it: if the coordinator still does, it starts the next attempt. An
// attempt that could not be recorded as started (recordErr) does not start.
func (t *attempt) run(before []<-chan struct{}, recordErr error) {
	defer t.agent.requestHeartbeat()
	defer close(t.done)
	defer t.enter(protocol.Lost)
	defer os.RemoveAll(t.dir)
	defer t.end()
	for _, earlier := range before {
		select {
		case <-earlier:
		case <-t.work.Done():
		}
	}
	t.log.Info("attempt started", "resumeStep", t.order.ResumeStep)
	var result engines.TrainResult
	err := diskError(recordErr)
	if err == nil {
		result, err = t.train()
	}
	if err == nil {
		t.outbox.discard()
		err = t.deliver(result)
	} else {
		t.outbox.flush()
	}
	t.reportEnd(err)
}

// reportEnd reports how the attempt ended, unless it is unwanted. The last heartbeat of a node that is
// shut down reports the end of all its attempts.
func (t *attempt) reportEnd(err error) {
	why := context.Cause(t.work)
	switch {
	case err == nil, t.life.Err() != nil, errors.Is(why, errLeaving):
		t.log.Info("attempt ended", "error", err)
		return
	case errors.Is(why, errCancelled):
		t.log.Info("attempt canceled")
		// fails only when the attempt is unwanted
		_, _ = t.report(t.life, protocol.Report{Kind: protocol.ReportStopped})
	default:
		t.log.Error("attempt failed", "error", err)
		_, _ = t.report(t.life, protocol.Report{Kind: protocol.ReportFailed, Error: t.errorOf(err)})
	}
}

// errorOf returns err for the user, without paths of this machine.
func (t *attempt) errorOf(err error) *protocol.Error {
	const maxMessage = 2000 // bytes
	e := protocol.ErrorOf(err)
	e.Message = strings.NewReplacer(t.dir+"/", "", t.agent.options.Dir+"/", "").Replace(e.Message)
	e.Message = truncate(e.Message, maxMessage)
	return e
}

// train downloads the inputs and trains.
func (t *attempt) train() (result engines.TrainResult, err error) {
	if t.agent.options.Engine.Trainer == nil {
		why := cmp.Or(t.agent.options.Engine.Missing["train"], "its engine has no trainer")
		return result, domain.Errorf(domain.Unavailable, "the node cannot train: %s", why)
	}
	order, release, err := t.prepare()
	defer release()
	if err == nil {
		var closed func()
		order.Evaluation, closed, err = t.openEvaluation()
		defer closed()
	}
	if err != nil {
		return result, err
	}
	t.enter(protocol.Training)
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("the engine panicked: %v", cause)
		}
	}()
	return t.agent.options.Engine.Trainer.Train(t.work, order, watcher{t})
}

// prepare downloads all files. release releases those in the cache; it is never nil.
func (t *attempt) prepare() (order engines.TrainRequest, release func(), err error) {
	var held []func()
	release = func() {
		for _, free := range held {
			free()
		}
	}
	order = engines.TrainRequest{Method: t.order.Method, Settings: t.order.Settings, Seed: t.order.Seed,
		WorkDir: filepath.Join(t.dir, "work"), Parallelism: t.cores()}
	if err := os.MkdirAll(order.WorkDir, 0o700); err != nil {
		return order, release, err
	}
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
	if order.BaseDir, err = acquire(&t.order.Base); err != nil {
		return order, release, fmt.Errorf("base model: %w", err)
	}
	if order.AdapterDir, err = acquire(t.order.Adapter); err != nil {
		return order, release, fmt.Errorf("adapter: %w", err)
	}
	dir, err := acquire(&t.order.Data)
	if err != nil {
		return order, release, fmt.Errorf("dataset: %w", err)
	}
	order.DataFiles = paths(dir, &t.order.Data)
	if dir, err = acquire(t.order.Eval); err != nil {
		return order, release, fmt.Errorf("evaluation dataset: %w", err)
	}
	order.EvalFiles = paths(dir, t.order.Eval)
	if t.order.Resume != nil {
		order.ResumeDir = filepath.Join(t.dir, "resume")
		if err := t.agent.files.download(t.work, *t.order.Resume, order.ResumeDir); err != nil {
			return order, release, fmt.Errorf("checkpoint: %w", err)
		}
		if err := t.readMetrics(order.ResumeDir); err != nil {
			return order, release, fmt.Errorf("checkpoint: %w", err)
		}
	}
	return order, release, nil
}

// cores returns how many CPU cores the attempt may use.
func (t *attempt) cores() int { return max(1, int(t.order.CPUMilli/1000)) }

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

// deliver stores the results of the training and reports them.
func (t *attempt) deliver(result engines.TrainResult) error {
	t.enter(protocol.Writing)
	if err := t.writeMetrics(result.Dir); err != nil {
		return err
	}
	if _, err := t.report(t.life, protocol.Report{Kind: protocol.ReportWriting}); err != nil {
		return err
	}
	for try := 1; ; try++ {
		sizes, sums, err := t.store(t.life, protocol.ForResults, 0, result.Dir)
		if err != nil {
			return fmt.Errorf("store the results: %w", err)
		}
		outcome, err := t.report(t.life, protocol.Report{
			Kind: protocol.ReportCompleted, Sizes: sizes, Sums: sums,
			Result: &protocol.Result{Adapter: result.Adapter, StoppedEarly: result.StoppedEarly, Reason: result.Reason},
		})
		if err != nil || outcome != protocol.Incomplete {
			return err
		}
		if try == maxStores {
			return domain.Errorf(domain.Unavailable, "the results were stored %d times and were incomplete each time",
				try)
		}
	}
}

// A watcher receives the events of the trainer.
type watcher struct{ *attempt }

// Step implements engines.TrainWatcher.
func (w watcher) Step(row engines.Metrics) {
	w.mu.Lock()
	w.metrics.add(row)
	w.mu.Unlock()
}

// Checkpoint implements engines.TrainWatcher. The files are copied and uploaded from the copy, so that
// training continues while the store or the coordinator is unreachable.
func (w watcher) Checkpoint(_ context.Context, step int, dir string) error {
	if w.life.Err() != nil {
		return errUnwanted
	}
	return w.outbox.put(step, dir)
}
