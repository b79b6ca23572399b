package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

// errRunEnded is the reason why a run is closed: it was unloaded, deleted or corrupted.
var errRunEnded = errors.New("the training run has ended")

// A trainingRun serves one run: one goroutine pulls its operations, one executes them in the order
// of their sequence numbers, one sends the results in the same order, and one stores each recovery
// checkpoint.
type trainingRun struct {
	service  *trainingService
	assigned protocol.TrainingRun
	log      *slog.Logger
	ctx      context.Context // done when the run has ended or the attempt is stopped
	cancel   context.CancelCauseFunc
	pulled   chan protocol.TrainingOperation
	results  chan runResult
	saving   chan struct{} // has an element while a recovery checkpoint is being stored
	saves    sync.WaitGroup

	// Only the goroutine of serve uses the fields below.
	run     engines.TrainRun
	seq     int64     // sequence number of the last executed operation
	saved   int64     // sequence number of the last operation in the newest recovery checkpoint
	saveAt  time.Time // when the next recovery checkpoint is due
	reopens bool      // the engine has panicked: the run must be restored

	mu      sync.Mutex
	pending int   // pulled operations whose results are not acknowledged
	acked   int64 // all results up to this sequence number are acknowledged
	lost    bool  // a result was not stored: acked does not change any more
	failed  bool  // storing the newest recovery checkpoint has failed
	acks    signal
}

// A runResult is the result of an executed operation.
type runResult struct {
	protocol.TrainingResult
	dir  string // directory of a checkpoint that is uploaded before the result is sent; "" for none
	send bool   // false for a replayed operation, which has a result already
}

func newTrainingRun(s *trainingService, assigned protocol.TrainingRun) *trainingRun {
	r := &trainingRun{service: s, assigned: assigned, log: s.log.With("run", assigned.ID),
		pulled: make(chan protocol.TrainingOperation, 1), results: make(chan runResult, 16),
		saving: make(chan struct{}, 1), seq: assigned.Seq, saved: assigned.Seq, acked: assigned.Seq}
	r.ctx, r.cancel = context.WithCancelCause(s.work)
	return r
}

// end closes the run without saving it.
func (r *trainingRun) end(why error) { r.cancel(why) }

// serve serves the run until it has ended or the attempt is stopped.
func (r *trainingRun) serve() {
	var helpers sync.WaitGroup
	helpers.Go(r.send)
	if r.open() {
		helpers.Go(r.pull)
		r.execute()
	}
	close(r.results)
	r.cancel(errRunEnded)
	helpers.Wait()
	r.saves.Wait()
	if r.run != nil {
		if err := r.run.Close(); err != nil {
			r.log.Warn("cannot close a training run", "error", err)
		}
	}
}

// open creates the run, or restores it from its recovery checkpoint, and reports that it is open.
// While the pool has no memory for the run, it waits until another run has ended.
func (r *trainingRun) open() bool {
	for waited := false; ; waited = true {
		ended := r.service.ended.next()
		run, err := recoverPanic(r.tryOpen)
		var failure *domain.Error
		switch errors.As(err, &failure); {
		case err == nil:
			r.run = run
			r.saveAt = time.Now().Add(r.service.agent.options.RecoveryInterval)
			r.log.Info("training run opened", "seq", r.seq)
			r.enqueue(runResult{send: true, TrainingResult: protocol.TrainingResult{Opened: &protocol.Opened{
				BaseHash: r.service.pool.BaseHash(), Kernel: r.service.pool.Kernel(), Warnings: run.Warnings()}}})
			return true
		case r.ctx.Err() != nil:
			return false
		case failure != nil && failure.Reason == engines.TrainRunsTooLarge:
			if !waited {
				r.log.Warn("a training run waits for memory", "error", err)
			}
			select {
			case <-ended:
				continue
			case <-r.ctx.Done():
				return false
			}
		case failure != nil && (failure.Code == domain.DataLoss || failure.Code == domain.InvalidArgument):
			r.log.Error("cannot open a training run", "error", err)
			r.enqueue(runResult{send: true, TrainingResult: protocol.TrainingResult{Error: r.service.errorOf(err)}})
			return false
		}
		r.service.stop(domain.Errorf(domain.Unavailable, "open the training run %s: %v", r.assigned.ID, err))
		return false
	}
}

func (r *trainingRun) tryOpen() (engines.TrainRun, error) {
	if r.assigned.State == nil {
		return r.create()
	}
	return r.restore(*r.assigned.State, engines.TrainRestoreOptions{})
}

// restore returns the run in a checkpoint.
func (r *trainingRun) restore(files protocol.FileSet, o engines.TrainRestoreOptions) (engines.TrainRun, error) {
	dir, err := r.service.tempDir("restore")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := r.service.agent.files.download(r.ctx, files, dir); err != nil {
		return nil, fmt.Errorf("download the checkpoint: %w", err)
	}
	state, err := os.Open(filepath.Join(dir, protocol.TrainingState))
	if errors.Is(err, os.ErrNotExist) {
		return nil, domain.Errorf(domain.DataLoss, "the checkpoint has no file %s", protocol.TrainingState)
	}
	if err != nil {
		return nil, err
	}
	defer state.Close()
	o.Share = r.service.share()
	return r.service.pool.RestoreRun(r.ctx, state, o)
}

func (r *trainingRun) create() (engines.TrainRun, error) {
	config := r.assigned.Config
	config.Share = r.service.share()
	return r.service.pool.CreateRun(r.ctx, config)
}

// pull pulls the operations of the run from the coordinator, one after another.
func (r *trainingRun) pull() {
	s := r.service
	for after := r.assigned.Seq; ; {
		var reply protocol.TrainingOperations
		err := s.call(r.ctx, protocol.TrainingPulls, protocol.TrainingPull{Version: protocol.Version,
			TrainingAttempt: s.id(), Run: r.assigned.ID, After: after}, &reply,
			func() (string, string) { return reply.Outcome, reply.Message })
		if err == nil && len(reply.Operations) == 0 {
			continue
		}
		var operation protocol.TrainingOperation
		if err == nil {
			operation, err = s.complete(r.ctx, reply.Operations[0], false)
		}
		if err == nil && operation.Seq != after+1 {
			err = fmt.Errorf("the control plane sent operation %d after operation %d", operation.Seq, after)
		}
		if err != nil {
			if r.ctx.Err() == nil && !errors.Is(err, errRunEnded) {
				s.stop(fmt.Errorf("pull the operations of the training run %s: %w", r.assigned.ID, err))
			}
			r.end(err)
			return
		}
		after++
		r.mu.Lock()
		r.pending++
		r.mu.Unlock()
		select {
		case r.pulled <- operation:
		case <-r.ctx.Done():
			return
		}
	}
}

// complete requests the remaining parts of an operation that is too long for one message.
func (s *trainingService) complete(ctx context.Context, o protocol.TrainingOperation, samples bool) (
	protocol.TrainingOperation, error,
) {
	for int64(len(o.Body)) < o.Size {
		var reply protocol.TrainingBody
		err := s.call(ctx, protocol.TrainingBodies, protocol.TrainingBodyRequest{Version: protocol.Version,
			TrainingAttempt: s.id(), Lane: o.Lane, Samples: samples, Seq: o.Seq, Offset: int64(len(o.Body))}, &reply,
			func() (string, string) { return reply.Outcome, reply.Message })
		if err == nil && len(reply.Part) == 0 {
			err = errors.New("the control plane sent an empty part of an operation")
		}
		if err != nil {
			return o, err
		}
		o.Body = append(o.Body, reply.Part...)
	}
	return o, nil
}

// execute executes operations until the run has ended or the attempt is stopped. If the attempt is
// stopped, it stores a last recovery checkpoint.
func (r *trainingRun) execute() {
	for !r.reopens {
		if wait := time.Until(r.saveAt); wait <= 0 {
			r.checkpoint(false)
		}
		due := time.NewTimer(time.Until(r.saveAt))
		select {
		case <-due.C:
			continue
		case operation := <-r.pulled:
			due.Stop()
			if !r.do(operation) {
				return
			}
		case <-r.ctx.Done():
			due.Stop()
			if !errors.Is(context.Cause(r.ctx), errRunEnded) && r.service.saves() {
				r.checkpoint(true)
			}
			return
		}
	}
}

// do executes an operation. It returns false if the run has ended.
func (r *trainingRun) do(o protocol.TrainingOperation) bool {
	result := runResult{send: !o.Done, TrainingResult: protocol.TrainingResult{Seq: o.Seq}}
	var operation engines.TrainOperation
	var err error
	if !o.Skip {
		operation, err = engines.DecodeTrainOperation(o.Body)
	}
	changes := operation.ForwardBackward != nil || operation.Step != nil || operation.Load != nil
	if err == nil && !o.Skip && (changes || !o.Done) {
		err = r.apply(operation, o.Files, &result)
	}
	var failure *domain.Error
	errors.As(err, &failure)
	diverged := failure != nil && failure.Reason == engines.TrainingDiverged // which has changed the state
	switch {
	case err != nil && r.ctx.Err() != nil && !diverged, failure != nil && failure.Code == domain.Unavailable:
		// The operation was not executed: the next attempt executes it.
		if r.ctx.Err() == nil {
			r.service.stop(fmt.Errorf("training run %s: %w", r.assigned.ID, err))
		}
		<-r.ctx.Done()
		return true
	case err != nil && o.Done && !diverged:
		r.failReplay(o.Seq, err)
		return false
	case err != nil:
		result.Error = r.service.errorOf(err)
	}
	r.seq = o.Seq
	r.enqueue(result)
	if operation.Load != nil {
		r.saveAt = time.Now() // a replay needs the loaded checkpoint, which can be deleted
	}
	if failure != nil && failure.Reason == engines.EnginePanicked {
		r.reopens = true
	}
	if operation.Unload != nil && result.Error == nil {
		return false
	}
	return true
}

// failReplay handles a failure of a replayed operation that an earlier attempt did not have: the
// run cannot continue bit-exactly. It makes the run CORRUPTED, or stops the attempt if another one
// could succeed.
func (r *trainingRun) failReplay(seq int64, err error) {
	text := fmt.Sprintf("operation %d failed when it was replayed after a restart: %v", seq, err)
	var failure *domain.Error
	if errors.As(err, &failure) && failure.Reason != engines.TrainKernelDiffers {
		switch failure.Code {
		case domain.NotFound, domain.DataLoss, domain.FailedPrecondition, domain.InvalidArgument:
			r.enqueue(runResult{send: true, TrainingResult: protocol.TrainingResult{
				Error: r.service.errorOf(domain.Errorf(domain.DataLoss, "%s", text))}})
			return
		}
	}
	r.service.stop(domain.Errorf(domain.Unavailable, "training run %s: %s", r.assigned.ID, text))
	<-r.ctx.Done()
}

// apply executes an operation with the engine.
func (r *trainingRun) apply(o engines.TrainOperation, files *protocol.FileSet, result *runResult) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			r.log.Error("the engine panicked in an operation of a training run", "seq", result.Seq, "cause", cause)
			err = engines.ErrPanicked(cause)
		}
	}()
	var out engines.TrainOperationResult
	switch {
	case o.Forward != nil:
		var pass engines.TrainPassResult
		pass, err = r.run.Forward(r.ctx, *o.Forward)
		out.Pass = &pass
	case o.ForwardBackward != nil:
		var pass engines.TrainPassResult
		pass, err = r.run.ForwardBackward(r.ctx, *o.ForwardBackward)
		out.Pass = &pass
	case o.Step != nil:
		var step engines.TrainStepResult
		step, err = r.run.Step(r.ctx, *o.Step)
		out.Step = &step
	case o.Save != nil:
		return r.save(domain.TrainingCheckpointTraining, *o.Save, result)
	case o.SaveSampler != nil:
		return r.save(domain.TrainingCheckpointSampler, *o.SaveSampler, result)
	case o.Load != nil:
		return r.load(o.Load, files)
	case o.Unload != nil:
		result.Unloaded = true
		return nil
	default:
		return domain.Errorf(domain.InvalidArgument, "the operation is of a kind that a training run does not execute")
	}
	if err != nil {
		return err
	}
	result.Body, err = out.Encode()
	return err
}

// load replaces the run by that in a checkpoint. If that fails, it creates the run again.
func (r *trainingRun) load(load *engines.TrainLoad, files *protocol.FileSet) error {
	if files == nil {
		return domain.Errorf(domain.NotFound, "the checkpoint does not exist: it was deleted or has expired")
	}
	if err := r.run.Close(); err != nil {
		return err
	}
	run, err := r.restore(*files, engines.TrainRestoreOptions{ResetOptimizer: !load.Optimizer})
	if err == nil && run.Config().Rank != r.assigned.Config.Rank {
		err = errors.Join(domain.Errorf(domain.FailedPrecondition, "the checkpoint has an adapter of rank %d, but the run "+
			"was created with rank %d: create a run with the rank of the checkpoint", run.Config().Rank, r.assigned.Config.Rank),
			run.Close())
	}
	if err == nil {
		r.run = run
		return nil
	}
	created, createErr := r.create()
	if createErr != nil {
		r.run = nil
		r.service.stop(domain.Errorf(domain.Unavailable, "open the training run %s again: %v", r.assigned.ID, createErr))
		return domain.Errorf(domain.Unavailable, "%v", createErr)
	}
	r.run = created
	return err
}
