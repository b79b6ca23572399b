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

// A Task is idempotent work that an event requests.
type Task struct {
	Handler string // also the name of its durable consumer
	// Do does the work that an event requests, if any.
	Do func(context.Context, eventlog.Event) error
	// Pending yields the resources with pending work.
	Pending func(*projections.View) iter.Seq[domain.Name]
}

// resumeTimeout limits the work on one resource.
const resumeTimeout = 10 * time.Minute

// A Resumption does work that the world shows as pending although a consumer has acknowledged its
// event: the state of consumers has no checksum, and damage to it may skip events. Consumers deliver
// the events that are not acknowledged.
type Resumption struct {
	Log    eventlog.Log
	View   *projections.View
	Logger *slog.Logger
	// Acknowledged is the position up to which a handler's consumer has
	// acknowledged every event; 0 when there is no such consumer yet.
	Acknowledged func(ctx context.Context, handler string) (uint64, error)
}

// Run resumes all tasks concurrently, once, when a server starts. Failures are logged, and resumed at
// the next start.
func (r Resumption) Run(ctx context.Context, all ...Task) error {
	var running sync.WaitGroup
	for _, task := range all {
		running.Go(func() {
			acknowledged, err := r.Acknowledged(ctx, task.Handler)
			if err != nil {
				r.Logger.Warn("pending work not resumed", "handler", task.Handler, "error", err)
				return
			}
			for name := range task.Pending(r.View) {
				if err := r.resume(ctx, name, task, acknowledged); err != nil && ctx.Err() == nil {
					r.Logger.Warn("pending work of a resource not resumed", "handler", task.Handler, "resource",
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

// pending yields the names of the rows of a kind with pending work.
func pending[S domain.State](kind *domain.Kind[S], left func(*S) bool) func(*projections.View) iter.Seq[domain.Name] {
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

// Task returns the task for a Resumption.
func (v Validator) Task() Task {
	return Task{validatorName, v.Validate, pending(domain.Datasets,
		func(d *domain.Dataset) bool { return d.Upload > d.Validated })}
}

// Task returns the task for a Resumption.
func (v ModelValidator) Task() Task {
	return Task{modelValidatorName, v.Validate, pending(domain.Models,
		func(m *domain.Model) bool { return m.Upload > m.Validated })}
}

// Task returns the task for a Resumption.
func (c ModelCopier) Task() Task {
	return Task{modelCopierName, c.Copy, pending(domain.Models, func(m *domain.Model) bool {
		for _, copied := range m.Copies {
			if copied.State == domain.CopyPreparing {
				return true
			}
		}
		return false
	})}
}

// Task returns the task for a Resumption.
func (d Deriver) Task() Task {
	return Task{deriverName, d.Derive, pending(domain.Datasets, func(d *domain.Dataset) bool { return d.Filling() })}
}

// Task returns the task for a Resumption.
func (b EvaluatorBuilder) Task() Task {
	return Task{evaluatorBuilderName, b.Build, pending(domain.Evaluators,
		func(e *domain.Evaluator) bool { return e.State == domain.EvaluatorBuilding })}
}
