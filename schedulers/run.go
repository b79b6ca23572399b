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
	maxSteps    = 256 // of one plan that are carried out before the next plan is made
	patience    = 2   // plans in a row that may come to nothing before events no longer wake the loop
	shortPause  = 10 * time.Millisecond
	longPause   = 30 * time.Second
	longestRest = time.Second
)

// Run carries out the plans of s until ctx is done or the world stands still
// on an event that does not fold. It makes a new plan whenever the world has
// moved or the plan's time has come. A step that is refused is no error: the
// world has moved, and the next plan knows more. When nothing but refusals
// comes of plans the loop slows down, to one plan in 30 seconds at last.
func Run(ctx context.Context, log eventlog.Log, world *projections.World, s Scheduler, logger *slog.Logger) error {
	l := loop{log, world, "scheduler/" + s.Name(), logger.With("scheduler", s.Name())}
	vain := 0 // plans in a row of which steps were refused and none was recorded
	for ctx.Err() == nil {
		began := time.Now()
		view := world.View()
		plan := s.Plan(view, began.UTC())
		rest := min(time.Since(began), longestRest) // planning takes at most half of a core
		recorded, refused, err := l.carryOut(ctx, view, plan.Steps)
		if err != nil {
			return err
		}
		if recorded == 0 && refused > 0 {
			vain++
		} else {
			vain = 0
		}
		if recorded == 0 {
			l.wait(ctx, view.Position, plan.Again, vain)
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

// carryOut does the steps in order and counts those that were recorded and
// those that were refused. Its error ends the loop.
func (l loop) carryOut(ctx context.Context, view *projections.View, steps []Step) (recorded, refused int, err error) {
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

// do carries out one step: what it reserves, side by side, and then its commit.
// When one of them fails after something was reserved, the step is abandoned;
// should that fail too, Allocations does it later.
func (l loop) do(ctx context.Context, request eventlog.Request, step Step) (eventlog.Change, error) {
	reserved, err := l.reserve(ctx, request, step.Reserve)
	var change eventlog.Change
	if err == nil {
		change, err = eventlog.Do(ctx, l.log, l.world, request, step.Commit)
	}
	if err != nil && reserved && step.Abandon != nil {
		if _, late := eventlog.Do(ctx, l.log, l.world, request, *step.Abandon); late != nil {
			l.logger.Debug("a step is not abandoned now", "step", step.String(), "error", late.Error())
		}
	}
	return change, err
}

// reserve records the parts of a step; reserved tells whether any of them was
// not there before.
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

// report writes down why a step was refused. That the world has moved since
// the plan was made is the usual reason, and worth nobody's attention.
func (l loop) report(ctx context.Context, view *projections.View, step Step, err error) {
	level := slog.LevelWarn
	var fault *domain.Error
	if errors.As(err, &fault) && fault.Code != domain.Internal && l.world.Position() > view.Position {
		level = slog.LevelDebug
	}
	l.logger.Log(ctx, level, "a step was refused", "step", step.String(), "error", err.Error())
}

// wait returns when there is reason for another plan: the world has moved
// beyond a position, or the time again has come. After vain plans it also
// returns after a pause, and from the third on nothing else ends that pause.
func (l loop) wait(ctx context.Context, position uint64, again time.Time, vain int) {
	changed := l.world.Changed(position)
	limit := time.Duration(-1)
	if !again.IsZero() {
		limit = max(time.Until(again), shortPause)
	}
	if vain > 0 {
		limit = min(shortPause<<min(vain-1, 20), longPause)
	}
	if vain > patience {
		changed = nil
	}
	pause(ctx, changed, limit)
}

// pause waits for a signal, for a time (negative: for ever), or for ctx.
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
