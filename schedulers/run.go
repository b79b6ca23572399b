package schedulers

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

const (
	maxSteps       = 256 // steps of a plan that are executed before the next plan
	maxFailedPlans = 2   // consecutive failed plans after which events do not wake the loop
	minPause       = 10 * time.Millisecond
	maxPause       = 30 * time.Second // after a failed plan
	maxRest        = time.Second      // pause after each plan, see Run
)

// Run executes the plans of s until ctx is done or the world cannot fold an event. It plans again
// when the world has changed or at the time Plan.Again. A refused step is not an error, because the
// world may have changed after the plan; Run plans again. While all steps are refused, Run slows
// down to one plan in 30 seconds.
func Run(ctx context.Context, log eventlog.Log, world *projections.World, s Scheduler, logger *slog.Logger) error {
	l := loop{log, world, "scheduler/" + s.Name(), logger.With("scheduler", s.Name())}
	failed := 0 // consecutive plans with refused steps and no recorded one
	for ctx.Err() == nil {
		began := time.Now()
		view := world.View()
		plan := s.Plan(view, began.UTC())
		rest := min(time.Since(began), maxRest) // so that planning uses at most half of a core
		recorded, refused, err := l.execute(ctx, view, plan.Steps)
		if err != nil {
			return err
		}
		if recorded == 0 && refused > 0 {
			failed++
		} else {
			failed = 0
		}
		if recorded == 0 {
			l.wait(ctx, view.Position, plan.Again, failed)
		}
		pause(ctx, nil, rest)
	}
	return ctx.Err()
}

type loop struct {
	log    eventlog.Log
	world  *projections.World
	actor  string
	logger *slog.Logger
}

// execute executes the steps in order and counts those that were recorded and those that were
// refused. It returns an error only when Run must return.
func (l loop) execute(ctx context.Context, view *projections.View, steps []Step) (recorded, refused int, err error) {
	for _, step := range steps {
		if recorded == maxSteps || refused == maxSteps || ctx.Err() != nil {
			break
		}
		request := eventlog.Request{Time: time.Now().UTC(), Actor: l.actor}
		change, err := l.do(ctx, request, step)
		switch {
		case ctx.Err() != nil:
			return recorded, refused, ctx.Err()
		case err != nil:
			refused++
			l.report(ctx, view, step, err)
		case change.Position() > 0:
			recorded++
			if err := l.world.WaitFor(ctx, change.Position()); err != nil {
				return recorded, refused, err
			}
		}
	}
	return recorded, refused, nil
}

// do executes one step: its reservations, concurrently, and then its commit. If one of these fails
// after a reservation was recorded, do abandons the step. If the abandonment fails too, the
// scheduler Allocations abandons the step later.
func (l loop) do(ctx context.Context, request eventlog.Request, step Step) (eventlog.Change, error) {
	reserved, err := l.reserve(ctx, request, step.Reserve)
	var change eventlog.Change
	if err == nil {
		change, err = eventlog.Do(ctx, l.log, l.world, request, step.Commit)
	}
	if err != nil && reserved && step.Abandon != nil {
		if _, late := eventlog.Do(ctx, l.log, l.world, request, *step.Abandon); late != nil {
			l.logger.Debug("step not abandoned", "step", step.String(), "error", late.Error())
		}
	}
	return change, err
}

// reserve records the reservations of a step; reserved reports whether it recorded an event for any
// of them.
func (l loop) reserve(ctx context.Context, request eventlog.Request, parts []domain.Intent) (reserved bool, err error) {
	positions, errs := make([]uint64, len(parts)), make([]error, len(parts))
	one := func(i int) {
		change, err := eventlog.Do(ctx, l.log, l.world, request, parts[i])
		positions[i], errs[i] = change.Position(), err
	}
	var all sync.WaitGroup
	for i := range parts[min(1, len(parts)):] {
		all.Go(func() { one(i + 1) })
	}
	if len(parts) > 0 {
		one(0)
	}
	all.Wait()
	return slices.Max(append(positions, 0)) > 0, errors.Join(errs...)
}

// report logs why a step was refused. It logs at debug level if the world has changed after the
// plan, because a change is the usual reason.
func (l loop) report(ctx context.Context, view *projections.View, step Step, err error) {
	level := slog.LevelWarn
	var e *domain.Error
	if errors.As(err, &e) && e.Code != domain.Internal && l.world.Position() > view.Position {
		level = slog.LevelDebug
	}
	l.logger.Log(ctx, level, "step refused", "step", step.String(), "error", err.Error())
}

// wait returns when the world is beyond the given position, or at the time in again. After a failed
// plan, wait also returns after a pause. After more than maxFailedPlans consecutive failed plans,
// it returns only after the pause. failed is the number of consecutive failed plans.
func (l loop) wait(ctx context.Context, position uint64, again time.Time, failed int) {
	changed := l.world.Changed(position)
	limit := time.Duration(-1)
	if !again.IsZero() {
		limit = max(time.Until(again), minPause)
	}
	if failed > 0 {
		limit = min(minPause<<min(failed-1, 20), maxPause)
	}
	if failed > maxFailedPlans {
		changed = nil
	}
	pause(ctx, changed, limit)
}

// pause returns when signal is closed or receives a value, limit has passed, or ctx is done. With a
// negative limit, it waits without a limit.
func pause(ctx context.Context, signal <-chan struct{}, limit time.Duration) {
	if limit == 0 {
		return
	}
	var expired <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-signal:
	case <-expired:
	case <-ctx.Done():
	}
}
