package schedulers

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

const (
	maxSteps = 256 // maximum number of steps of one plan that are executed; the next plan has the others
	// number of consecutive failed plans after which events no longer end the pause before the next
	// plan
	maxFailedPlans = 2
	minPause       = 10 * time.Millisecond
	maxPause       = 30 * time.Second // maximum pause after a failed plan
	maxRest        = time.Second      // maximum pause after each plan, which is as long as planning took
	maxConcurrent  = 64               // maximum number of steps that are executed concurrently
	// maximum age of a plan, after which its remaining steps are dropped: the process may have been
	// paused
	maxAge = 2 * time.Second
)

// Run executes the plans of s until ctx is done or the world cannot fold an event. It plans again
// when the world has changed or at the time Plan.Again. A refused step is not an error, because the
// world may have changed after the plan; Run plans again. While all steps are refused, Run slows
// down to one plan in 30 seconds.
func Run(ctx context.Context, log eventlog.Log, world *projections.World, s Scheduler, logger *slog.Logger) error {
	l := loop{log, world, "scheduler/" + s.Name(), logger.With("scheduler", s.Name())}
	every := minRest(s)
	failed := 0 // number of consecutive plans of which steps were refused and none was recorded
	for ctx.Err() == nil {
		began := time.Now()
		view := world.View()
		plan := s.Plan(view, began.UTC())
		planned := time.Now()
		// Rest as long as planning took, so that planning uses at most half of a CPU core.
		rest := max(every, min(planned.Sub(began), maxRest))
		recorded, refused, err := l.execute(ctx, view, plan.Steps, planned)
		if err != nil {
			return err
		}
		if recorded == 0 && refused > 0 {
			failed++
		} else {
			failed = 0
		}
		if recorded == 0 && (refused > 0 || len(plan.Steps) == 0 || time.Since(planned) <= maxAge) {
			l.wait(ctx, view.Position, plan.Again, failed)
		}
		pause(ctx, nil, rest)
	}
	return ctx.Err()
}

// A PacedScheduler is a scheduler that need not react to an event at once: Run pauses for MinRest
// after each of its plans, so that one plan reacts to all events of this time.
type PacedScheduler interface{ MinRest() time.Duration }

// pacedRest is the MinRest of the schedulers that mostly react to times or heartbeats.
const pacedRest = 50 * time.Millisecond

func minRest(s Scheduler) time.Duration {
	if p, ok := s.(PacedScheduler); ok {
		return p.MinRest()
	}
	return 0
}

type loop struct {
	log    eventlog.Log
	world  *projections.World
	actor  string
	logger *slog.Logger
}

// execute executes the steps of a plan, and counts those that were recorded and those that were
// refused. Steps on different resources run concurrently, so that they share the fsyncs of the log.
// A step waits until the log has stored the events of earlier steps on its resources, or until all
// earlier steps have ended if its field After is set. Once the plan is older than maxAge, execute
// begins no more steps. It returns an error only when Run must return.
func (l loop) execute(
	ctx context.Context, view *projections.View, steps []Step, planned time.Time,
) (recorded, refused int, err error) {
	x := execution{loop: l, view: view, planned: planned,
		ended: map[domain.Name]chan struct{}{}, slots: make(chan struct{}, maxConcurrent)}
	for _, step := range steps[:min(len(steps), maxSteps)] {
		if step.After {
			x.all.Wait()
		}
		x.slots <- struct{}{}
		if ctx.Err() != nil || time.Since(planned) > maxAge {
			break
		}
		x.begin(ctx, step)
	}
	x.all.Wait()
	return x.recorded, x.refused, cmp.Or(ctx.Err(), x.failure)
}

// An execution is the state of executing the steps of one plan.
type execution struct {
	loop
	view    *projections.View
	planned time.Time
	// by resource: closed when the event of the last step that changes the resource is stored, or the
	// step has ended
	ended map[domain.Name]chan struct{}
	slots chan struct{} // semaphore: has an element for each step that is being executed
	all   sync.WaitGroup

	mu                sync.Mutex
	recorded, refused int
	failure           error // error for which Run must return; nil for none
}

// begin starts a goroutine that executes a step once the events of earlier steps on its resources
// are stored.
func (x *execution) begin(ctx context.Context, step Step) {
	reserved, committed := make(chan struct{}), make(chan struct{})
	stored := signals{reserved: sync.OnceFunc(func() { close(reserved) }),
		committed: sync.OnceFunc(func() { close(committed) })}
	var earlier []chan struct{}
	for i, intent := range step.Intents() {
		if other := x.ended[intent.Name]; other != nil && other != reserved {
			earlier = append(earlier, other)
		}
		if x.ended[intent.Name] = reserved; i == len(step.Reserve) {
			x.ended[intent.Name] = committed
		}
	}
	x.all.Go(func() {
		defer func() { stored.reserved(); stored.committed(); <-x.slots }()
		for _, other := range earlier {
			<-other
		}
		if time.Since(x.planned) > maxAge {
			return
		}
		change, err := x.doTraced(ctx, eventlog.Request{Time: time.Now().UTC(), Actor: x.actor}, step, stored)
		if err == nil && change.Position() > 0 {
			if failure := x.world.WaitFor(ctx, change.Position()); failure != nil {
				x.note(func() { x.failure = failure })
			}
		}
		x.note(func() {
			switch {
			case ctx.Err() != nil:
			case err != nil:
				x.refused++
			case change.Position() > 0:
				x.recorded++
			}
		})
		if err != nil && ctx.Err() == nil {
			x.report(ctx, x.view, step, err)
		}
	})
}

func (x *execution) note(change func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	change()
}

// signals has functions that are called when the events of all reservations of a step are stored,
// and when the event of its commit is. They may be called more than once.
type signals struct{ reserved, committed func() }

// do executes one step: it records the reservations, concurrently, and then the commit. If one of
// these fails after a reservation was recorded, do records Step.Abandon. If that fails too, the
// scheduler Allocations abandons the step later.
func (l loop) do(ctx context.Context, request eventlog.Request, step Step, stored signals) (eventlog.Change, error) {
	reserved, err := l.reserve(ctx, request, step.Reserve, stored.reserved)
	var change eventlog.Change
	if err == nil {
		commit := request
		commit.Stored = stored.committed
		change, err = eventlog.Do(ctx, l.log, l.world, commit, step.Commit)
	}
	if err != nil && reserved && step.Abandon != nil {
		if _, late := eventlog.Do(ctx, l.log, l.world, request, *step.Abandon); late != nil {
			l.logger.Debug("a step failed and could not be abandoned: its reservations are released later",
				"step", step.String(), "error", late.Error())
		}
	}
	return change, err
}

// reserve records the reservations of a step, and calls stored when the events of all of them are
// stored. reserved reports whether it recorded an event for any of them.
func (l loop) reserve(
	ctx context.Context, request eventlog.Request, parts []domain.Intent, stored func(),
) (reserved bool, err error) {
	positions, errs := make([]uint64, len(parts)), make([]error, len(parts))
	var left atomic.Int64
	left.Store(int64(len(parts)))
	one := func(i int) {
		request := request
		request.Stored = sync.OnceFunc(func() {
			if left.Add(-1) == 0 {
				stored()
			}
		})
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

// report logs why a step was refused: at debug level if the world has changed since the plan,
// because that is the usual reason, and otherwise as a warning.
func (l loop) report(ctx context.Context, view *projections.View, step Step, err error) {
	level := slog.LevelWarn
	var e *domain.Error
	if errors.As(err, &e) && e.Code != domain.Internal && l.world.Position() > view.Position {
		level = slog.LevelDebug
	}
	l.logger.Log(ctx, level, "step refused", "step", step.String(), "error", err.Error())
}

// wait returns when the world has an event after the given position, or at the time again. failed
// is the number of consecutive failed plans: if it is not 0, wait also returns after a pause, and
// if it is above maxFailedPlans, wait returns only after the pause.
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
