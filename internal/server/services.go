package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// services are the parts of a server that run until it stops. If one fails, the server stops,
// because the others depend on it.
type services struct {
	ctx    context.Context
	failed chan error
	wait   *sync.WaitGroup

	worker     context.Context // context of the local worker, which stops before the other services
	stopWorker context.CancelFunc
	waitWorker *sync.WaitGroup
}

func newServices(ctx context.Context) services {
	worker, stop := context.WithCancel(ctx)
	return services{ctx: ctx, failed: make(chan error, 1), wait: &sync.WaitGroup{},
		worker: worker, stopWorker: stop, waitWorker: &sync.WaitGroup{}}
}

// start runs a service until the context of all services is done. name is for the error if the
// service fails.
func (s services) start(name string, run func(context.Context) error) {
	s.run(s.ctx, s.wait, name, run)
}

// startWorker runs the local worker, which endWorker stops before the other services.
func (s services) startWorker(run func(context.Context) error) {
	s.run(s.worker, s.waitWorker, "worker", run)
}

func (s services) run(ctx context.Context, group *sync.WaitGroup, name string, run func(context.Context) error) {
	group.Go(func() {
		err := run(ctx)
		if ctx.Err() != nil || err == nil || errors.Is(err, context.Canceled) {
			return
		}
		select {
		case s.failed <- fmt.Errorf("%s: %w", name, err):
		default: // ignore the error: only that of the first service that failed is kept
		}
	})
}

// endWorker stops the local worker and waits for it.
func (s services) endWorker() {
	s.stopWorker()
	s.waitWorker.Wait()
}

// sleep waits for d, and returns nil. It returns ctx's error as soon as ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
