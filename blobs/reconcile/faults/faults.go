// Package faults injects faults in tests. While a test does some work, it injects a fault at one
// effect: an append to the log, or a change of a file or a data key. It then checks that the world,
// the files and the data keys are consistent.
package faults

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"anneal/domain"
	"anneal/eventlog"
)

// Modes lists the kinds of faults that a Plan can inject.
var Modes = []Mode{Crash, Refuse, Full}

// A Mode is the kind of fault that a Plan injects.
type Mode string

const (
	Crash  Mode = "crash after effect" // the effect happens, but its caller gets an error; all later effects fail
	Refuse Mode = "fail effect"        // the effect fails unless it is a deletion; later effects succeed
	Full   Mode = "full disk"          // the effect and all later effects fail, except deletions
)

// ErrCrashed is returned by the effect at which a crash is injected, and by all later effects.
var ErrCrashed = errors.New("the process has crashed")

// A Plan counts the effects of a test's work, and injects a fault at one of them.
type Plan struct {
	mode Mode
	at   int // number of the effect with the fault, from 1; 0 injects no fault

	mu    sync.Mutex
	steps []string
	over  bool
}

// NewPlan returns a plan that injects a fault at effect n, counted from 1. If n is 0, the plan
// injects no fault.
func NewPlan(mode Mode, n int) *Plan { return &Plan{mode: mode, at: n} }

// Steps returns the descriptions of all effects so far, including those that failed.
func (p *Plan) Steps() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.steps...)
}

func full() error {
	return &domain.Error{Code: domain.ResourceExhausted, Reason: "STORE_FULL",
		Message: "the disk is full: free some space, and try again"}
}

// Do counts an effect and calls do, which has the effect, unless the plan makes the effect fail.
// change and what describe the operation and its object, for Steps. A nil plan calls do for all
// effects.
func (p *Plan) Do(change, what string, do func() error) error {
	if p == nil {
		return do()
	}
	p.mu.Lock()
	over, writes := p.over, change != "delete"
	p.steps = append(p.steps, change+" "+what)
	here := len(p.steps) == p.at
	p.over = over || here && p.mode != Refuse
	p.mu.Unlock()
	switch {
	case over && p.mode == Crash:
		return ErrCrashed
	case here && p.mode == Crash:
		return errors.Join(ErrCrashed, do())
	case writes && (here || over):
		return full()
	}
	return do()
}

func (p *Plan) crashed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over && p.mode == Crash
}

// Log returns a log that appends to log, where each append is an effect of the plan. If the plan is
// nil, it returns log.
func (p *Plan) Log(log eventlog.Log) eventlog.Log {
	if p == nil {
		return log
	}
	return planned{log, p}
}

type planned struct {
	eventlog.Log
	plan *Plan
}

func (l planned) Append(ctx context.Context, w eventlog.Write) (position uint64, err error) {
	err = l.plan.Do("append", w.Type, func() (err error) {
		position, err = l.Log.Append(ctx, w)
		return err
	})
	if errors.Is(err, ErrCrashed) {
		return 0, fmt.Errorf("%w: %w", eventlog.ErrUncertain, err)
	}
	return position, err
}

// Read implements eventlog.Log. After an injected crash it yields ErrCrashed.
func (l planned) Read(ctx context.Context, filter string, after uint64) iter.Seq2[eventlog.Event, error] {
	if l.plan.crashed() {
		return func(yield func(eventlog.Event, error) bool) { yield(eventlog.Event{}, ErrCrashed) }
	}
	return l.Log.Read(ctx, filter, after)
}
