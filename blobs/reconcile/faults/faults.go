// Package faults, for tests, ends or hinders work after any of its effects, and
// tells whether world, files and data keys agree afterwards.
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

// Modes are what may happen at a step.
var Modes = []Mode{Crash, Refuse, Full}

// A Mode is what happens at a step.
type Mode string

const (
	Crash  Mode = "crash after it" // it is done, nobody learns, and nothing follows
	Refuse Mode = "refuse it"      // what follows is done
	Full   Mode = "full disk"      // neither it nor what is written afterwards is done
)

// ErrCrashed is what a process meets that is no more.
var ErrCrashed = errors.New("the process has crashed")

// A Plan counts the effects of some work, and has something happen at one.
type Plan struct {
	mode Mode
	at   int // from 1; 0 is nowhere

	mu    sync.Mutex
	steps []string
	over  bool
}

// NewPlan has a mode happen at a step, counted from 1; at none when it is 0.
func NewPlan(mode Mode, at int) *Plan { return &Plan{mode: mode, at: at} }

// Steps are the effects so far, also those that were not done.
func (p *Plan) Steps() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.steps...)
}

func full() error {
	return &domain.Error{Code: domain.ResourceExhausted, Reason: "STORE_FULL", Message: "the disk is full: make room, and try again"}
}

// Do carries out an effect as the plan says. A nil plan carries out all.
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

// Log is a log whose appends are steps.
func (p *Plan) Log(to eventlog.Log) eventlog.Log { return planned{to, p} }

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

// Read finds nothing out for a process that is no more.
func (l planned) Read(ctx context.Context, filter string, after uint64) iter.Seq2[eventlog.Event, error] {
	if l.plan.crashed() {
		return func(yield func(eventlog.Event, error) bool) { yield(eventlog.Event{}, ErrCrashed) }
	}
	return l.Log.Read(ctx, filter, after)
}
