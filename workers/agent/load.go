package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"anneal/domain"
	"anneal/engines"
)

// loadWithin is how long an engine may take to load a model.
const loadWithin = 30 * time.Minute

// loadModel has the engine load the model. One that takes longer than LoadWithin is
// left behind: what it loads after all is unloaded. settled is closed when it
// reads the files no more.
func (r *replica) loadModel(completer engines.Completer, files engines.ModelFiles) (model engines.Model, settled <-chan struct{}, err error) {
	type outcome struct {
		model engines.Model
		err   error
	}
	ctx, cancel := context.WithCancel(r.begin)
	loaded, done := make(chan outcome, 1), make(chan struct{})
	go func() { // not counted among the agent's work: that would wait for one that hangs
		defer close(done)
		model, err := loadGuarded(func() (engines.Model, error) { return completer.Load(ctx, files) })
		loaded <- outcome{model, err}
	}()
	within := r.agent.options.LoadWithin
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	select {
	case got := <-loaded:
		cancel()
		return got.model, done, got.err
	case <-deadline.C:
		err = domain.Faultf(domain.DeadlineExceeded, "the engine had not loaded the model within %s", within)
	case <-r.ctx.Done():
		err = r.ctx.Err()
	}
	cancel()
	go func() {
		if late := <-loaded; late.err == nil {
			_ = late.model.Close() // nobody waits for it
		}
	}()
	return nil, done, err
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
	var fault *domain.Fault
	return errors.As(err, &fault) && (fault.Code == domain.InvalidArgument || fault.Code == domain.FailedPrecondition)
}
