package tasks

import (
	"context"
	"errors"
	"maps"
	"slices"

	"anneal/blobs/external"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/pubsub"
)

const exporterName = "dataset-export"

// An Exporter writes the rows of datasets to object stores.
type Exporter struct{ Transferrer }

// Handle registers the Exporter for the events of datasets.
func (x Exporter) Handle(r *pubsub.Router) error {
	return pubsub.HandleEvents(r, exporterName, "events.*.datasets.*", x.Export, x.giveUp)
}

// Task returns the export of datasets as a Task of Resumption.
func (x Exporter) Task() Task {
	return Task{exporterName, x.Export, pending(domain.Datasets,
		func(d *domain.Dataset) bool { return d.Export.Running() })}
}

// Export exports the rows of the dataset whose export an event requests. It ignores all other
// events.
func (x Exporter) Export(ctx context.Context, e eventlog.Event) error {
	requested, err := eventOf[domain.DatasetExportRequested](e, "dataset.exportRequested.v1")
	if requested == nil || err != nil {
		return err
	}
	row, err := x.dataset(ctx, e)
	if row == nil || err != nil || !row.State.Export.Running() || row.State.Export.Number != requested.Export {
		return err // the rows were exported, or the dataset deleted, after the event
	}
	var result domain.Command[domain.Dataset] = domain.CompleteExport{Export: requested.Export}
	err = x.write(ctx, row.Name, row.State.Export.TransferSpec, row.State.Files)
	if status, cannot := failed(err); cannot {
		result, err = domain.FailExport{Export: requested.Export, Status: status}, nil
	}
	if err == nil {
		_, err = x.record(ctx, e, exporterName, result)
	}
	return err
}

// write writes the files of a dataset to the object, or into the directory, that dest names.
func (x Exporter) write(ctx context.Context, dataset domain.Name, dest domain.TransferSpec, files domain.Files) error {
	bucket, err := x.bucket(ctx, dataset, dest)
	if err != nil {
		return err
	}
	defer bucket.Close()
	at, _ := domain.ParseObjectURL(dest.ExternalURL)
	for _, name := range slices.Sorted(maps.Keys(files.Sizes)) {
		key := at.Key
		if at.Directory() {
			key += name
		}
		if err := x.writeFile(ctx, bucket, key, files.Prefix+name); err != nil {
			return err
		}
	}
	return nil
}

func (x Exporter) writeFile(ctx context.Context, bucket *external.Bucket, key, file string) error {
	content, err := x.Blobs.Get(ctx, file)
	if err != nil {
		return err
	}
	return errors.Join(bucket.Write(ctx, key, content), content.Close())
}

// giveUp records that the export failed in every attempt; see gaveUp.
func (x Exporter) giveUp(ctx context.Context, e eventlog.Event, cause error) error {
	requested, err := eventOf[domain.DatasetExportRequested](e, "dataset.exportRequested.v1")
	if requested == nil || err != nil {
		return nil
	}
	_, err = x.record(context.WithoutCancel(ctx), e, exporterName,
		domain.FailExport{Export: requested.Export, Status: gaveUp("exported", cause)})
	return err
}
