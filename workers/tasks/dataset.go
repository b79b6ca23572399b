// Package tasks holds the small pieces of work that control planes compete
// for: they run on a router with recovery, retry, time-out and a poison queue.
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
)

// A Validator checks every row of each uploaded dataset, and records the
// verdict. It may run in several processes, and twice on one upload: the second
// verdict finds the first.
type Validator struct {
	Log   eventlog.Log
	World eventlog.Rows
	Blobs *blobs.Store
	Now   func() time.Time
	Count func(text string) int // tokens of a text; nil takes one for every four bytes
}

const (
	validatorName   = "dataset-validation"
	datasetUploaded = "dataset.uploaded.v1"
)

// Handle gives every upload that the log records to the validator.
func (v Validator) Handle(r *eventlog.Router) error {
	return eventlog.HandleEvents(r, validatorName, "events.*.datasets.*", v.Judge, v.giveUp)
}

// Judge checks the upload that an event records, if it records one.
func (v Validator) Judge(ctx context.Context, e eventlog.Event) error {
	upload, err := factOf[domain.DatasetUploaded](e, datasetUploaded)
	if err != nil || upload == nil {
		return err
	}
	if err := v.World.WaitFor(ctx, e.Position); err != nil {
		return err
	}
	state, _ := v.World.Row(e.Name)
	dataset, ok := state.(domain.Dataset)
	if !ok || dataset.Upload != upload.Upload || dataset.Validated == upload.Upload {
		return nil // deleted, replaced or judged since
	}
	checker := rows.NewChecker(dataset.Format)
	checker.Count = v.Count
	for _, name := range slices.Sorted(maps.Keys(upload.Files.Sizes)) {
		if err := v.read(ctx, checker, upload.Files.Folder, name); err != nil {
			return err
		}
	}
	facts, faults, more := checker.Result()
	if len(faults) > 0 {
		refusal := rows.Refusal(faults, more)
		return v.record(ctx, e, domain.RejectDataset{Upload: upload.Upload, Status: domain.StatusOf(refusal),
			Violations: refusal.Violations})
	}
	return v.record(ctx, e, domain.AcceptDataset{Upload: upload.Upload, DatasetFacts: facts})
}

func (v Validator) read(ctx context.Context, checker *rows.Checker, folder, name string) error {
	file, err := v.Blobs.Get(ctx, folder+name)
	if err != nil {
		return err
	}
	return errors.Join(checker.Read(name, file), file.Close())
}

func (v Validator) record(ctx context.Context, e eventlog.Event, verdict domain.Command[domain.Dataset]) error {
	request := eventlog.Request{Time: v.Now(), Actor: "task/" + validatorName, Cause: e.ID, Correlation: e.Correlation}
	_, err := eventlog.Do(ctx, v.Log, v.World, request, domain.Intend(domain.Datasets, e.Name, verdict))
	switch domain.CodeOf(err) {
	case domain.NotFound, domain.FailedPrecondition:
		return nil // deleted or replaced meanwhile: nobody waits for this verdict
	}
	return err
}

// giveUp tells the dataset's owner that the check itself would not succeed. A
// cause that is no fault may name paths of this machine, and is in the log of
// the server.
func (v Validator) giveUp(ctx context.Context, e eventlog.Event, cause error) error {
	upload, err := factOf[domain.DatasetUploaded](e, datasetUploaded)
	if err != nil || upload == nil {
		return nil
	}
	status := domain.Status{Code: domain.Internal.String(), Message: "the upload could not be checked (" +
		causeOf(cause) + "): upload it again"}
	return v.record(context.WithoutCancel(ctx), e, domain.RejectDataset{Upload: upload.Upload, Status: status})
}
