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

// longestLoad is how long an engine may take to load a model.
const longestLoad = 30 * time.Minute

// loaded is what a replica holds in memory: a model that answers, or one that
// listens.
type loaded struct {
	model    engines.Model
	listener engines.Listener
}

func (l loaded) slots() int {
	if l.listener != nil {
		return max(1, l.listener.Info().Slots)
	}
	return l.model.Info().Slots
}

func (l loaded) close() error {
	if l.listener != nil {
		return l.listener.Close()
	}
	return l.model.Close()
}

// broken says when it will not answer any more, if it can tell.
func (l loaded) broken() <-chan error {
	var one any = l.model
	if l.listener != nil {
		one = l.listener
	}
	if it, can := one.(engines.Breakable); can {
		return it.Broken()
	}
	return nil
}

// able tells why the node cannot load what is ordered.
func (r *replica) able() error {
	engine, ability, can := r.agent.options.Engine, "complete", r.agent.options.Engine.Completer != nil
	if r.order.Speech != nil {
		ability, can = domain.SpeechAbility(r.order.Speech.Format), engine.Transcribers[r.order.Speech.Format] != nil && r.agent.options.Sound != nil
	}
	if can {
		return nil
	}
	why := cmp.Or(engine.Why[ability], "its engine cannot "+ability)
	return domain.Errorf(domain.Unavailable, "the node cannot serve: %s", why)
}

// loadOrdered has the engine load what is ordered.
func (r *replica) loadOrdered(ctx context.Context, files engines.ModelFiles) (got loaded, err error) {
	if settings := r.order.Speech; settings != nil {
		got.listener, err = r.agent.options.Engine.Transcribers[settings.Format].LoadSpeech(ctx, engines.SpeechFiles{Dir: files.Dir, Settings: *settings, Devices: files.Devices, Trusted: r.order.Trusted})
		return got, err
	}
	got.model, err = r.agent.options.Engine.Completer.Load(ctx, files)
	return got, err
}

// loadWithin has the engine load the model. One that takes longer than
// LoadWithin is left behind: what it loads after all is unloaded. settled is
// closed when it reads the files no more.
func (r *replica) loadWithin(files engines.ModelFiles) (got loaded, settled <-chan struct{}, err error) {
	type outcome struct {
		loaded
		err error
	}
	ctx, cancel := context.WithCancel(r.begin)
	arrived, done := make(chan outcome, 1), make(chan struct{})
	go func() { // not counted among the agent's work: that would wait for one that hangs
		defer close(done)
		got, err := loadGuarded(func() (loaded, error) { return r.loadOrdered(ctx, files) })
		arrived <- outcome{got, err}
	}()
	within := r.agent.options.LoadWithin
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	select {
	case one := <-arrived:
		cancel()
		return one.loaded, done, one.err
	case <-deadline.C:
		err = domain.Errorf(domain.DeadlineExceeded, "the engine had not loaded the model within %s", within)
	case <-r.ctx.Done():
		err = r.ctx.Err()
	}
	cancel()
	go func() {
		if late := <-arrived; late.err == nil {
			_ = late.close() // nobody waits for it
		}
	}()
	return loaded{}, done, err
}

// takeDevices waits for the replica's accelerators no longer than for its model.
func (r *replica) takeDevices() ([]engines.Device, func(), error) {
	ctx, cancel := context.WithTimeout(r.begin, r.agent.options.LoadWithin)
	defer cancel()
	return r.agent.devices.take(ctx, r.order.Accelerators)
}

// loadGuarded turns an engine that breaks down into one that fails.
func loadGuarded[T any](load func() (T, error)) (result T, err error) {
	defer func() {
		if broke := recover(); broke != nil {
			err = fmt.Errorf("the engine broke down: %v", broke)
		}
	}()
	return load()
}

// final tells whether an engine's refusal will be the same at every try.
func final(err error) bool {
	var fault *domain.Error
	return errors.As(err, &fault) && (fault.Code == domain.InvalidArgument || fault.Code == domain.FailedPrecondition)
}
