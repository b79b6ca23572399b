package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

// recoveryInterval is the default of Options.RecoveryInterval.
const recoveryInterval = 30 * time.Second

// errIdle is the reason why an attempt stops whose training service is idle.
var errIdle = errors.New("the training service is idle")

// A trainingService serves the training runs of an attempt: it pulls the operations of each run and
// of the sampling sessions from the coordinator, executes them in one pool, and sends the results.
//
// Runs are in memory. Every recovery interval, and when the attempt stops, the state of a run is
// stored as its recovery checkpoint. After a crash, the next attempt restores the checkpoint and
// replays the operations after it, with bit-identical results.
type trainingService struct {
	*attempt
	pool     engines.TrainPool
	samplers *samplers
	uploads  uploadNumbers

	lanes sync.WaitGroup // goroutines of runs and samples

	mu      sync.Mutex
	runs    map[string]*trainingRun
	samples map[string]map[int64]bool // by sampling session: sequence numbers of operations in progress

	ended signal // fires when a run has ended
}

// serveRuns serves the training runs of an attempt until it is stopped, and returns the reason.
func serveRuns(t *attempt) error {
	opener := t.agent.options.Engine.TrainPools
	if opener == nil {
		engine := t.agent.options.Engine
		why := cmp.Or(engine.Missing["train:"+domain.MethodService], engine.Missing["train"],
			fmt.Sprintf("the engine %s has no training pools", engine.Name))
		return domain.Errorf(domain.Unavailable, "the node cannot serve training runs: %s", why)
	}
	base, release, err := t.agent.cache.acquire(t.work, t.assignment.Base)
	if err != nil {
		return fmt.Errorf("download the base model: %w", err)
	}
	defer release()
	devices, free, err := t.acquireDevices()
	defer free()
	if err != nil {
		return err
	}
	t.agent.devices.use(devices, t.assignment.ID(), t.loseDevice)
	pool, err := recoverPanic(func() (engines.TrainPool, error) {
		return opener.OpenTrainPool(t.work, engines.TrainPoolRequest{BaseDir: base, Parallelism: t.cores()})
	})
	if err != nil {
		return fmt.Errorf("open the training pool: %w", err)
	}
	s := &trainingService{attempt: t, pool: pool, runs: map[string]*trainingRun{},
		samples: map[string]map[int64]bool{}}
	s.samplers = newSamplers(s)
	t.mu.Lock()
	t.service = s
	t.mu.Unlock()
	t.enter(protocol.Training)
	t.joblog.logf("serving training runs on the base model %s with the kernel %s", pool.BaseHash(), pool.Kernel())
	s.lanes.Go(s.serveSamples)
	s.followRuns()
	s.lanes.Wait()
	s.samplers.close()
	return errors.Join(context.Cause(t.work), pool.Close())
}

// followRuns opens the runs that the coordinator lists and closes those that have ended, until the
// attempt is stopped.
func (s *trainingService) followRuns() {
	for s.work.Err() == nil {
		ended := s.ended.next()
		s.mu.Lock()
		have := slices.Sorted(maps.Keys(s.runs))
		s.mu.Unlock()
		poll, cancel := context.WithCancel(s.work)
		stop := onClose(ended, cancel) // a run that has ended may have to be opened again
		var reply protocol.TrainingRunsReply
		err := s.call(poll, protocol.TrainingRuns, protocol.TrainingRunsRequest{
			Version: protocol.Version, TrainingAttempt: s.id(), Have: have}, &reply,
			func() (string, string) { return reply.Outcome, reply.Message })
		stop()
		cancel()
		if err != nil {
			if poll.Err() == nil && s.work.Err() == nil {
				s.stop(fmt.Errorf("list the training runs: %w", err))
			}
			continue
		}
		for _, id := range reply.Close {
			s.mu.Lock()
			run := s.runs[id]
			s.mu.Unlock()
			if run != nil {
				run.end(errRunEnded)
			}
		}
		for _, one := range reply.Open {
			s.open(one)
		}
	}
}

// onClose calls then in a goroutine when c is closed, unless stop is called before.
func onClose(c <-chan struct{}, then func()) (stop func()) {
	stopped := make(chan struct{})
	go func() {
		select {
		case <-c:
			then()
		case <-stopped:
		}
	}()
	return func() { close(stopped) }
}

// open starts a goroutine that serves a run.
func (s *trainingService) open(one protocol.TrainingRun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs[one.ID] != nil || !domain.ValidID(one.ID) {
		return
	}
	run := newTrainingRun(s, one)
	s.runs[one.ID] = run
	s.lanes.Go(func() {
		run.serve()
		s.mu.Lock()
		delete(s.runs, one.ID)
		s.mu.Unlock()
		s.ended.fire()
	})
}

// stopIdle stops an attempt that serves training runs, unless it has operations in progress.
func stopIdle(t *attempt) {
	t.mu.Lock()
	s := t.service
	t.mu.Unlock()
	if s == nil {
		return
	}
	if !s.busy() {
		t.log.Info("stopping the training service, because it is idle")
		t.stop(errIdle)
	}
}

// busy reports whether there are operations in progress: their results are not acknowledged.
func (s *trainingService) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	busy := len(s.samples) > 0
	for _, run := range s.runs {
		run.mu.Lock()
		busy = busy || run.pending > 0
		run.mu.Unlock()
	}
	return busy
}

// saves reports whether the runs may be saved after the attempt was stopped.
func (s *trainingService) saves() bool {
	return s.life.Err() == nil && !isDeviceFailure(context.Cause(s.work))
}

// share returns the account for which the pool computes.
func (s *trainingService) share() engines.TrainShare {
	return engines.TrainShare{Account: s.assignment.Job.Account()}
}

func (s *trainingService) node() string { return s.agent.options.Node }

func (s *trainingService) id() protocol.TrainingAttempt {
	return protocol.TrainingAttempt{Job: s.assignment.Job, Attempt: s.assignment.Attempt,
		CreateTime: s.assignment.CreateTime}
}

// uploadNumbers numbers the uploads of an attempt.
type uploadNumbers struct {
	mu   sync.Mutex
	last int
}

func (u *uploadNumbers) next() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last++
	return u.last
}

// tempDir returns a new directory for files of the attempt.
func (s *trainingService) tempDir(what string) (string, error) {
	dir := filepath.Join(s.dir, "training", fmt.Sprintf("%s-%d", what, s.uploads.next()))
	return dir, diskError(os.MkdirAll(dir, 0o700))
}

// A signal wakes all goroutines that wait for it.
type signal struct {
	mu sync.Mutex
	c  chan struct{}
}

// next returns a channel that is closed at the next call of fire.
func (s *signal) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c == nil {
		s.c = make(chan struct{})
	}
	return s.c
}

func (s *signal) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c != nil {
		close(s.c)
		s.c = nil
	}
}

const (
	minCallPause = 50 * time.Millisecond // first backoff between retries; it doubles up to maxCallPause
	maxCallPause = 2 * time.Second
	callTimeout  = protocol.TrainingHold + heartbeatTimeout // how long to wait for a reply
)

// call sends a request to the coordinator and retries it until there is a reply; after a
// reconnection, it retries at once. outcome returns the outcome and the message of the decoded
// reply. The outcome Stale stops the attempt. call returns an error if the coordinator refuses the
// request, the run has ended, the attempt is stale, or ctx is done.
func (s *trainingService) call(ctx context.Context, message string, request, reply any,
	outcome func() (string, string)) error {
	for pause := minCallPause; ; pause = min(2*pause, maxCallPause) {
		reconnected := s.agent.reconnected.next()
		once, cancel := context.WithTimeout(ctx, callTimeout)
		stop := onClose(reconnected, cancel) // the reply to the request is lost with the connection
		err := s.agent.request(once, protocol.TrainingSubject(s.node(), message), request, reply)
		stop()
		cancel()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && domain.CodeOf(err) != domain.Unknown:
			return err
		case err == nil:
			switch outcome, message := outcome(); outcome {
			case protocol.RetryLater:
				s.log.Debug("the coordinator cannot process the request yet: retrying", "message", message)
			case protocol.Stale:
				s.log.Info("the attempt is no longer assigned to this node: stopping it", "message", message)
				s.stop(errUnwanted)
				return errUnwanted
			case protocol.RunEnded:
				return errRunEnded
			default:
				return nil
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-reconnected:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}
