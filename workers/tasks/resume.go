package tasks

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// A Task is a piece of work that an event asks for. Doing it twice finds it
// done.
type Task struct {
	Handler string // its name, which the durable consumer has too
	// Do does what an event asks for, if it asks for this task.
	Do func(context.Context, eventlog.Event) error
	// Undone yields the resources on which something is left to do.
	Undone func(*projections.View) iter.Seq[domain.Name]
}

// resumeTimeout bounds one piece of work that is resumed.
const resumeTimeout = 10 * time.Minute

// A Resumption takes up what the world says is undone although a consumer has
// acknowledged its event: the state of consumers has no checksum, and damage to
// it may leave events out. What is not acknowledged the consumers deliver.
type Resumption struct {
	Log    eventlog.Log
	View   *projections.View
	Logger *slog.Logger
	// Acknowledged is the position up to which a handler's consumer has
	// acknowledged every event; 0 when there is no such consumer yet.
	Acknowledged func(ctx context.Context, handler string) (uint64, error)
}

// Run resumes all tasks, side by side, once. It runs when a server starts. What
// fails is logged, and taken up by the next start.
func (r Resumption) Run(ctx context.Context, all ...Task) error {
	var running sync.WaitGroup
	for _, task := range all {
		running.Go(func() {
			acknowledged, err := r.Acknowledged(ctx, task.Handler)
			if err != nil {
				r.Logger.Warn("what is undone is not looked up", "handler", task.Handler, "error", err)
				return
			}
			for name := range task.Undone(r.View) {
				if err := r.resume(ctx, name, task, acknowledged); err != nil && ctx.Err() == nil {
					r.Logger.Warn("what was undone at the start is still undone", "handler", task.Handler, "resource",
						name, "error", err)
				}
				if ctx.Err() != nil {
					return
				}
			}
		})
	}
	running.Wait()
	return ctx.Err()
}

func (r Resumption) resume(ctx context.Context, name domain.Name, task Task, acknowledged uint64) error {
	ctx, cancel := context.WithTimeout(ctx, resumeTimeout)
	defer cancel()
	for e, err := range r.Log.Read(ctx, name.Subject(), 0) {
		if err != nil {
			return err
		}
		if e.Position > acknowledged {
			return nil // the consumer delivers it
		}
		if err := task.Do(ctx, e); err != nil {
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
	return Task{validatorName, v.Judge, undone(domain.Datasets,
		func(d *domain.Dataset) bool { return d.Upload > d.Validated })}
}

// Task is the work as Resume takes it up.
func (v ModelValidator) Task() Task {
	return Task{modelValidatorName, v.Judge, undone(domain.Models,
		func(m *domain.Model) bool { return m.Upload > m.Validated })}
}

// Task is the work as Resume takes it up.
func (c ModelCopier) Task() Task {
	return Task{modelCopierName, c.Copy, undone(domain.Models, func(m *domain.Model) bool {
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
	return Task{deriverName, d.Derive, undone(domain.Datasets, func(d *domain.Dataset) bool { return d.Filling() })}
}

// Task is the work as Resume takes it up.
func (b EvaluatorBuilder) Task() Task {
	return Task{evaluatorBuilderName, b.Build, undone(domain.Evaluators,
		func(e *domain.Evaluator) bool { return e.State == domain.EvaluatorBuilding })}
}
