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
	Handler string // name of the Watermill handler, and of its durable NATS consumer
	// Do does the work that an event requests. It ignores events that request none.
	Do func(context.Context, eventlog.Event) error
	// Pending yields the resources whose requested work is not done.
	Pending func(*projections.View) iter.Seq[domain.Name]
}

// resumeTimeout is the maximum time for the pending work of one resource.
const resumeTimeout = 10 * time.Minute

// A Resumption does pending work whose event the NATS consumer has already acknowledged. That can
// happen because the state of a consumer has no checksum, so damage to it can make the consumer
// skip events. Work whose event is not acknowledged is left to the consumer.
type Resumption struct {
	Log    eventlog.Log
	View   *projections.View
	Logger *slog.Logger
	// Acknowledged returns the position up to which a handler's consumer has acknowledged every event;
	// 0 when the handler has no consumer yet.
	Acknowledged func(ctx context.Context, handler string) (uint64, error)
}

// Run does the pending work of all tasks once, concurrently. The control plane calls it at its
// start. Work that fails is logged, and done at the next start.
func (r Resumption) Run(ctx context.Context, all ...Task) error {
	var running sync.WaitGroup
	for _, task := range all {
		running.Go(func() {
			acknowledged, err := r.Acknowledged(ctx, task.Handler)
			if err != nil {
				r.Logger.Warn("cannot look for pending work of a handler: it is looked for again at the next "+
					"start", "handler", task.Handler, "error", err)
				return
			}
			for name := range task.Pending(r.View) {
				if err := r.resume(ctx, name, task, acknowledged); err != nil && ctx.Err() == nil {
					r.Logger.Warn("the pending work on a resource failed: it is tried again at the next "+
						"start", "handler", task.Handler, "resource",
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
			return nil // leave the work to the consumer, which will deliver the event
		}
		if err := task.Do(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// pending returns a function for Task.Pending: it yields the resources of a kind for whose state
// the function left returns true.
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

// Task returns the validation of datasets as a Task of Resumption.
func (v Validator) Task() Task {
	return Task{validatorName, v.Validate, pending(domain.Datasets,
		func(d *domain.Dataset) bool { return d.Upload > d.Validated })}
}

// Task returns the validation of models as a Task of Resumption.
func (v ModelValidator) Task() Task {
	return Task{modelValidatorName, v.Validate, pending(domain.Models,
		func(m *domain.Model) bool { return m.Upload > m.Validated })}
}

// Task returns the copying of models as a Task of Resumption.
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

// Task returns the derivation of datasets as a Task of Resumption.
func (d Deriver) Task() Task {
	return Task{deriverName, d.Derive, pending(domain.Datasets, func(d *domain.Dataset) bool { return d.Filling() })}
}

// Task returns the building of evaluators as a Task of Resumption.
func (b EvaluatorBuilder) Task() Task {
	return Task{evaluatorBuilderName, b.Build, pending(domain.Evaluators,
		func(e *domain.Evaluator) bool { return e.State == domain.EvaluatorBuilding })}
}
