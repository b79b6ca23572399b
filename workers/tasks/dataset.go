// Package tasks has the Watermill handlers of the control plane. They validate uploads, and import,
// export, derive and copy files. Each event is handled by one of the control planes. The router
// recovers panics, repeats failed attempts, limits their time, and moves events that fail in every
// attempt to a poison queue.
package tasks

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/domain/rows"
	"anneal/eventlog"
	"anneal/eventlog/pubsub"
)

// A Validator validates every row of each uploaded dataset and records the result. Several
// processes may run one, and validate the same upload, because only the first result is recorded.
type Validator struct {
	Log   eventlog.Log
	World eventlog.Rows
	Blobs *blobs.Store
	Now   func() time.Time
	Count func(text string) int // counts the tokens of a text; nil counts one token for every four bytes
}

const (
	validatorName   = "dataset-validation"
	datasetUploaded = "dataset.uploaded.v1"
)

// Handle registers the Validator for the events of datasets.
func (v Validator) Handle(r *pubsub.Router) error {
	return pubsub.HandleEvents(r, validatorName, "events.*.datasets.*", v.Validate, v.giveUp)
}

// Validate validates the upload that an event records. It ignores all other events.
func (v Validator) Validate(ctx context.Context, e eventlog.Event) error {
	upload, err := eventOf[domain.DatasetUploaded](e, datasetUploaded)
	if err != nil || upload == nil {
		return err
	}
	if err := v.World.WaitFor(ctx, e.Position); err != nil {
		return err
	}
	state, _ := v.World.Row(e.Name)
	dataset, ok := state.(domain.Dataset)
	if !ok || dataset.Upload != upload.Upload || dataset.Validated == upload.Upload {
		return nil // the upload was deleted, replaced or validated after the event
	}
	checker := rows.NewChecker(dataset.Format)
	checker.Count = v.Count
	for _, name := range slices.Sorted(maps.Keys(upload.Files.Sizes)) {
		if err := v.read(ctx, checker, upload.Files.Prefix, name); err != nil {
			return err
		}
	}
	facts, violations, more := checker.Result()
	if len(violations) > 0 {
		violationStatus := rows.InvalidRows(violations, more)
		return v.record(ctx, e, domain.RejectDataset{Upload: upload.Upload, Status: domain.StatusOf(violationStatus),
			Violations: violationStatus.Violations})
	}
	return v.record(ctx, e, domain.AcceptDataset{Upload: upload.Upload, DatasetStats: facts})
}

func (v Validator) read(ctx context.Context, checker *rows.Checker, directory, name string) error {
	file, err := v.Blobs.Get(ctx, directory+name)
	if err != nil {
		return err
	}
	return errors.Join(checker.Read(name, file), file.Close())
}

func (v Validator) record(ctx context.Context, e eventlog.Event, result domain.Command[domain.Dataset]) error {
	request := eventlog.Reaction(e, "task/"+validatorName, v.Now())
	_, err := eventlog.Do(ctx, v.Log, v.World, request, domain.Intend(domain.Datasets, e.Name, result))
	switch domain.CodeOf(err) {
	case domain.NotFound, domain.FailedPrecondition:
		return nil // the dataset was deleted, or the upload replaced, during the validation
	}
	return err
}

// giveUp records that the validation failed in every attempt. The recorded message contains the
// cause only if it is a domain.Error, because other errors may contain paths of this machine.
func (v Validator) giveUp(ctx context.Context, e eventlog.Event, cause error) error {
	upload, err := eventOf[domain.DatasetUploaded](e, datasetUploaded)
	if err != nil || upload == nil {
		return nil
	}
	status := domain.Status{Code: domain.Internal.String(), Message: "the upload could not be validated (" +
		causeOf(cause) + "): upload the files again"}
	return v.record(context.WithoutCancel(ctx), e, domain.RejectDataset{Upload: upload.Upload, Status: status})
}
