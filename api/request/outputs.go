package request

import (
	"context"

	"anneal/domain"
	"anneal/projections"
)

// reserveOutput returns an error if an intent reserves a model name for a job's output model, but
// another job has reserved that name. Until the caller calls leave, other requests of this server
// that reserve the same name wait; they are rejected if this request's job is recorded. Two servers
// can record jobs with the same output model at the same time: then the scheduler fails the job
// that is second in the log.
func reserveOutput(ctx context.Context, c *Call, intent domain.Intent) (leave func(), err error) {
	leave = func() {}
	kind := domain.KindOf(intent.Name.Collection())
	if kind == nil || !domain.IsJob(kind) {
		return leave, nil
	}
	before, version := c.World.Row(intent.Name)
	if intent.IsStale(version) {
		return leave, nil // the row has changed, so Merge will compute the intent again
	}
	record, err := intent.Decide(before, c.Time)
	if err != nil || record.Type == "" {
		return leave, nil // Decide returns the same error when the intent is recorded
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
			"outputModel: the name %s is reserved for the result of %s: choose another name, or cancel or delete %s "+
				"first", model, holder,
			holder)
		f.Reason = "OUTPUT_RESERVED"
		return nil, f
	}
	return leave, nil
}
