package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"anneal/domain"
	"anneal/engines"
)

const defaultLoadTimeout = 30 * time.Minute

// loaded is the loaded model of a replica: exactly one of a text model and a speech model.
type loaded struct {
	model  engines.Model
	speech engines.SpeechModel
}

func (l loaded) slots() int {
	if l.speech != nil {
		return max(1, l.speech.Info().Slots)
	}
	return l.model.Info().Slots
}

func (l loaded) close() error {
	if l.speech != nil {
		return l.speech.Close()
	}
	return l.model.Close()
}

// broken returns a channel that receives an error when the loaded model fails later; nil when the
// engine does not report such failures.
func (l loaded) broken() <-chan error {
	var one any = l.model
	if l.speech != nil {
		one = l.speech
	}
	if b, ok := one.(engines.FailureNotifier); ok {
		return b.Failed()
	}
	return nil
}

// requireAbility returns an error when the engine of this node cannot load the replica's model.
func (r *replica) requireAbility() error {
	if r.assignment.Share.Milli > 0 && !r.agent.options.ShareAccelerators {
		return domain.Errorf(domain.Unavailable, "the agent of the node runs without --share-accelerators: start it with "+
			"the flag again, or create the deployment without acceleratorShare")
	}
	engine, ability, can := r.agent.options.Engine, "complete", r.agent.options.Engine.Completer != nil
	if r.assignment.Speech != nil {
		ability, can = domain.SpeechEngine(r.assignment.Speech.Format),
			engine.Transcribers[r.assignment.Speech.Format] != nil &&
				r.agent.options.Sound != nil
	}
	if can {
		return nil
	}
	why := cmp.Or(engine.Missing[ability], fmt.Sprintf("the engine %s lacks the ability %s", engine.Name, ability))
	return domain.Errorf(domain.Unavailable, "the node cannot serve the model: %s", why)
}

// loadModel loads the model of the replica from files. It has no timeout.
func (r *replica) loadModel(ctx context.Context, files engines.ModelFiles) (got loaded, err error) {
	if settings := r.assignment.Speech; settings != nil {
		got.speech, err = r.agent.options.Engine.Transcribers[settings.Format].LoadSpeech(ctx,
			engines.SpeechFiles{Dir: files.Dir, Settings: *settings, Devices: files.Devices, Trusted: r.assignment.Trusted})
		return got, err
	}
	got.model, err = r.agent.options.Engine.Completer.Load(ctx, files)
	return got, err
}

// loadWithTimeout loads the model, for at most LoadWithin. If the engine finishes the load after
// the timeout or after the end of the replica, the model is unloaded. ended is closed when the
// engine no longer reads the files.
func (r *replica) loadWithTimeout(files engines.ModelFiles) (got loaded, ended <-chan struct{}, err error) {
	type outcome struct {
		loaded
		err error
	}
	ctx, cancel := context.WithCancel(r.accepting)
	arrived, finished := make(chan outcome, 1), make(chan struct{})
	go func() { // not counted in the agent's WaitGroup, which would wait for an engine that hangs
		defer close(finished)
		got, err := recoverPanic(func() (loaded, error) { return r.loadInSpan(ctx, files) })
		arrived <- outcome{got, err}
	}()
	within := r.agent.options.LoadWithin
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	select {
	case one := <-arrived:
		cancel()
		return one.loaded, finished, one.err
	case <-deadline.C:
		err = domain.Errorf(domain.DeadlineExceeded, "the engine did not load the model within %s", within)
	case <-r.ctx.Done():
		err = r.ctx.Err()
	}
	cancel()
	go func() {
		if late := <-arrived; late.err == nil {
			_ = late.close() // the model is not used, so an error changes nothing
		}
	}()
	return loaded{}, finished, err
}

// acquireDevices acquires the accelerators of the replica, and returns an error when other work has
// not released them after LoadWithin. The returned function releases them.
func (r *replica) acquireDevices() ([]engines.Device, func(), error) {
	ctx, cancel := context.WithTimeout(r.accepting, r.agent.options.LoadWithin)
	defer cancel()
	if share := r.assignment.Share; share.Milli > 0 {
		slot := domain.Resources{Accelerators: r.assignment.Accelerators, Share: share}.DeviceSlot()
		return r.agent.devices.acquireShare(ctx, r.assignment.ID(), slot, share.Milli)
	}
	return r.agent.devices.acquire(ctx, r.assignment.Accelerators)
}

// recoverPanic calls load and returns a panic of the engine as an error.
func recoverPanic[T any](load func() (T, error)) (result T, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("the engine panicked: %v", cause)
		}
	}()
	return load()
}

// isPermanent reports whether the engine would return err in every attempt to load the model.
func isPermanent(err error) bool {
	var failure *domain.Error
	return errors.As(err, &failure) &&
		(failure.Code == domain.InvalidArgument || failure.Code == domain.FailedPrecondition)
}
