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

// An attempt of a job, under way on this node.
type attempt struct {
	agent  *Agent
	order  protocol.TrainAssignment
	log    *slog.Logger
	dir    string             // its work in progress
	life   context.Context    // everything ends with it
	end    context.CancelFunc // of life
	work   context.Context    // training ends with it, saving a checkpoint
	halt   context.CancelCauseFunc
	outbox *outbox
	done   chan struct{} // closed when nothing of it runs any more

	mu      sync.Mutex
	phase   string
	metrics metrics
}

func newAttempt(a *Agent, life context.Context, order protocol.TrainAssignment) *attempt {
	t := &attempt{
		agent: a, order: order, log: a.log.With("attempt", order.ID()), phase: protocol.Preparing, done: make(chan struct{}),
		dir: filepath.Join(a.workDir(), strings.ReplaceAll(order.ID(), "/", "_")), metrics: metrics{acked: order.ResumeStep, step: order.ResumeStep},
	}
	t.life, t.end = context.WithCancel(life)
	t.work, t.halt = context.WithCancelCause(t.life)
	t.outbox = newOutbox(t)
	return t
}

// stop ends the attempt: at once and without a word when it is unwanted,
// otherwise after a last checkpoint.
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

// state is the attempt in a beat with room for so many rows of metrics; left
// tells whether rows remain.
func (t *attempt) state(room int) (listed protocol.Attempt, left bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rows, left := t.metrics.news(room)
	return protocol.Attempt{Job: t.order.Job, Attempt: t.order.Attempt, CreateTime: t.order.CreateTime, Phase: t.phase,
		Step: t.metrics.step, Steps: t.metrics.steps, Rows: rows}, left
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
	t.agent.beatSoon()
}

// run carries the attempt out and reports how it ended. When it has ended and
// its end is reported, it is listed as lost until the desk drops it: should
// the desk still want it, it can only be begun anew, as the next attempt. What
// could not be noted as begun does not begin.
func (t *attempt) run(before []<-chan struct{}, noted error) {
	defer t.agent.beatSoon()
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
	t.log.Info("attempt begins", "resumeStep", t.order.ResumeStep)
	var result engines.TrainResult
	err := diskFault(noted)
	if err == nil {
		result, err = t.train()
	}
	if err == nil {
		t.outbox.discard()
		err = t.deliver(result)
	} else {
		t.outbox.flush()
	}
	t.conclude(err)
}

// conclude reports how the attempt ended, unless nobody wants to know. That
// the node is shut down is said by its last beat, for all attempts at once.
func (t *attempt) conclude(err error) {
	why := context.Cause(t.work)
	switch {
	case err == nil, t.life.Err() != nil, errors.Is(why, errLeaving):
		t.log.Info("attempt ends", "error", err)
		return
	case errors.Is(why, errCancelled):
		t.log.Info("attempt is cancelled")
		_, _ = t.report(t.life, protocol.Report{Kind: protocol.ReportStopped}) // it fails only when nobody wants it
	default:
		t.log.Error("attempt fails", "error", err)
		_, _ = t.report(t.life, protocol.Report{Kind: protocol.ReportFailed, Error: t.faultOf(err)})
	}
}

// faultOf is err for the user, without paths of this machine.
func (t *attempt) faultOf(err error) *protocol.Error {
	f := protocol.ErrorOf(err)
	f.Message = strings.NewReplacer(t.dir+"/", "", t.agent.options.Dir+"/", "").Replace(f.Message)
	if len(f.Message) > 2000 {
		f.Message = strings.ToValidUTF8(f.Message[:2000], "") + "…"
	}
	return f
}

// train fetches what the order names and trains.
func (t *attempt) train() (result engines.TrainResult, err error) {
	if t.agent.options.Engine.Trainer == nil {
		why := cmp.Or(t.agent.options.Engine.Why["train"], "its engine has no trainer")
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
		if broke := recover(); broke != nil {
			err = fmt.Errorf("the engine broke down: %v", broke)
		}
	}()
	return t.agent.options.Engine.Trainer.Train(t.work, order, watcher{t})
}

// prepare brings all files here. release lets go of those that are shared; it
// is never nil.
func (t *attempt) prepare() (order engines.TrainOrder, release func(), err error) {
	var held []func()
	release = func() {
		for _, free := range held {
			free()
		}
	}
	order = engines.TrainOrder{Method: t.order.Method, Settings: t.order.Settings, Seed: t.order.Seed,
		WorkDir: filepath.Join(t.dir, "work"), Parallelism: t.cores()}
	if err := os.MkdirAll(order.WorkDir, 0o700); err != nil {
		return order, release, err
	}
	hold := func(folder *protocol.FileSet) (string, error) {
		if folder == nil {
			return "", nil
		}
		dir, free, err := t.agent.cache.acquire(t.work, *folder)
		if err == nil {
			held = append(held, free)
		}
		return dir, err
	}
	if order.BaseDir, err = hold(&t.order.Base); err != nil {
		return order, release, fmt.Errorf("base model: %w", err)
	}
	if order.AdapterDir, err = hold(t.order.Adapter); err != nil {
		return order, release, fmt.Errorf("adapter: %w", err)
	}
	dir, err := hold(&t.order.Data)
	if err != nil {
		return order, release, fmt.Errorf("dataset: %w", err)
	}
	order.DataFiles = paths(dir, &t.order.Data)
	if dir, err = hold(t.order.Eval); err != nil {
		return order, release, fmt.Errorf("evaluation dataset: %w", err)
	}
	order.EvalFiles = paths(dir, t.order.Eval)
	if t.order.Resume != nil {
		order.ResumeDir = filepath.Join(t.dir, "resume")
		if err := t.agent.files.fetch(t.work, *t.order.Resume, order.ResumeDir); err != nil {
			return order, release, fmt.Errorf("checkpoint: %w", err)
		}
		if err := t.readMetrics(order.ResumeDir); err != nil {
			return order, release, fmt.Errorf("checkpoint: %w", err)
		}
	}
	return order, release, nil
}

// cores is how many the attempt may keep busy.
func (t *attempt) cores() int { return max(1, int(t.order.CPUMilli/1000)) }

func paths(dir string, folder *protocol.FileSet) []string {
	if folder == nil {
		return nil
	}
	var all []string
	for _, file := range folder.Files {
		all = append(all, filepath.Join(dir, file.Name))
	}
	return all
}

// deliver stores what came of the training and reports it.
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
			return fmt.Errorf("storing the results: %w", err)
		}
		verdict, err := t.report(t.life, protocol.Report{
			Kind: protocol.ReportCompleted, Sizes: sizes, Sums: sums,
			Result: &protocol.Result{Adapter: result.Adapter, StoppedEarly: result.StoppedEarly, Reason: result.Reason},
		})
		if err != nil || verdict != protocol.Incomplete {
			return err
		}
		if try == maxStores {
			return domain.Errorf(domain.Unavailable, "the results were stored %d times and never arrived whole", try)
		}
	}
}

// A watcher hears from the trainer.
type watcher struct{ *attempt }

// Step implements engines.TrainWatcher.
func (w watcher) Step(row engines.Metrics) {
	w.mu.Lock()
	w.metrics.add(row)
	w.mu.Unlock()
}

// Checkpoint implements engines.TrainWatcher. The files are copied and sent
// from the copy, so that training goes on while nobody answers.
func (w watcher) Checkpoint(_ context.Context, step int, dir string) error {
	if w.life.Err() != nil {
		return errUnwanted
	}
	return w.outbox.put(step, dir)
}
