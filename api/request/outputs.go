package request

import (
	"context"

	"anneal/domain"
	"anneal/projections"
)

// reserveOutput returns an error when an intent reserves the name of an output model for a job, and
// another job has reserved the name. Until the caller calls leave, no other request of this server
// reserves the name: later requests wait, and are rejected once the first one is recorded. Two
// servers can each record a job with the same output model at the same time: then the scheduler
// fails the job that is second in the log.
func reserveOutput(ctx context.Context, c *Call, intent domain.Intent) (leave func(), err error) {
	leave = func() {}
	kind := domain.KindOf(intent.Name.Collection())
	if kind == nil || !domain.IsJob(kind) {
		return leave, nil
	}
	before, version := c.World.Row(intent.Name)
	if intent.IsStale(version) {
		return leave, nil // Merge computes the intent again
	}
	record, err := intent.Decide(before, c.Time)
	if err != nil || record.Type == "" {
		return leave, nil // recording the intent returns the error
	}
	after, err := c.World.After(intent.Name, before, record)
	if err != nil {
		return leave, err
	}
	model := projections.ReservedOutput(intent.Name, after)
	if model == "" || model == projections.ReservedOutput(intent.Name, before) {
		return leave, nil
	}
	leave, err = c.outputs.enter(ctx, string(model))
	if err != nil {
		return nil, err
	}
	if holder, reserved := c.World.View().ReservedBy(model, intent.Name); reserved {
		leave()
		f := domain.Errorf(domain.FailedPrecondition,
			"outputModel: %s is reserved by %s: give another ID for the result, or cancel or delete %s first", model, holder,
			holder)
		f.Reason = "OUTPUT_RESERVED"
		return nil, f
	}
	return leave, nil
}
