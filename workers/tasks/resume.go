package tasks

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// A Task is a piece of work that an event asks for. Doing it twice finds it
// done.
type Task struct {
	// Do does what an event asks for, if it asks for this task.
	Do func(context.Context, eventlog.Event) error
	// Undone yields the resources on which something is left to do.
	Undone func(*projections.View) iter.Seq[domain.Name]
}

// resumeTimeout bounds one piece of work that is resumed.
const resumeTimeout = 10 * time.Minute

// Resume does what the world says is undone, whatever the log's consumers
// remember: their state has no checksum, and damage to it may leave events
// out. It runs once when a server starts. What fails is logged; the consumer,
// or the next start, tries again.
func Resume(ctx context.Context, log eventlog.Log, view *projections.View, logger *slog.Logger, all ...Task) error {
	for _, task := range all {
		for name := range task.Undone(view) {
			if err := resume(ctx, log, name, task); err != nil && ctx.Err() == nil {
				logger.Warn("what was undone at the start is still undone", "resource", name, "error", err)
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	return nil
}

func resume(ctx context.Context, log eventlog.Log, name domain.Name, task Task) error {
	ctx, cancel := context.WithTimeout(ctx, resumeTimeout)
	defer cancel()
	for e, err := range log.Read(ctx, name.Subject(), 0) {
		if err == nil {
			err = task.Do(ctx, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// undone yields the names of the rows of a kind on which something is left to
// do.
func undone[S domain.State](kind *domain.Kind[S], left func(*S) bool) func(*projections.View) iter.Seq[domain.Name] {
	return func(view *projections.View) iter.Seq[domain.Name] {
		return func(yield func(domain.Name) bool) {
			for row := range projections.TableOf(view, kind).All() {
				if left(&row.State) && !yield(row.Name) {
					return
				}
			}
		}
	}
}

// Task is the work as Resume takes it up.
func (v Validator) Task() Task {
	return Task{v.Judge, undone(domain.Datasets, func(d *domain.Dataset) bool { return d.Upload > d.Validated })}
}

// Task is the work as Resume takes it up.
func (v ModelValidator) Task() Task {
	return Task{v.Judge, undone(domain.Models, func(m *domain.Model) bool { return m.Upload > m.Validated })}
}

// Task is the work as Resume takes it up.
func (c ModelCopier) Task() Task {
	return Task{c.Copy, undone(domain.Models, func(m *domain.Model) bool {
		for _, made := range m.Copies {
			if made.State == domain.CopyPreparing {
				return true
			}
		}
		return false
	})}
}

// Task is the work as Resume takes it up.
func (d Deriver) Task() Task {
	return Task{d.Derive, undone(domain.Datasets, func(d *domain.Dataset) bool { return d.Filling() })}
}

// Task is the work as Resume takes it up.
func (b EvaluatorBuilder) Task() Task {
	return Task{b.Build, undone(domain.Evaluators, func(e *domain.Evaluator) bool { return e.State == domain.EvaluatorBuilding })}
}
