package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// duties are the parts of a server that run until it ends. One that fails ends
// the server: half a control plane is worse than a restart.
type duties struct {
	ctx    context.Context
	failed chan error
	rest   *sync.WaitGroup

	ahead     *sync.WaitGroup // those that end before the rest, which they need
	firstCtx  context.Context
	stopFirst context.CancelFunc
}

func newDuties(ctx context.Context) duties {
	first, stop := context.WithCancel(ctx)
	return duties{ctx: ctx, failed: make(chan error, 1), rest: &sync.WaitGroup{}, ahead: &sync.WaitGroup{}, firstCtx: first, stopFirst: stop}
}

// add starts a duty.
func (d duties) add(name string, run func(context.Context) error) { d.start(d.ctx, d.rest, name, run) }

// first starts a duty that is ended before the others.
func (d duties) first(name string, run func(context.Context) error) {
	d.start(d.firstCtx, d.ahead, name, run)
}

func (d duties) start(ctx context.Context, group *sync.WaitGroup, name string, run func(context.Context) error) {
	group.Go(func() {
		err := run(ctx)
		if ctx.Err() != nil || err == nil || errors.Is(err, context.Canceled) {
			return
		}
		select {
		case d.failed <- fmt.Errorf("%s: %w", name, err):
		default: // another failed before
		}
	})
}

func (d duties) endFirst() {
	d.stopFirst()
	d.ahead.Wait()
}

func (d duties) end() { d.rest.Wait() }
