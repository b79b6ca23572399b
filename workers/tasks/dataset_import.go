package tasks

import (
	"context"
	"fmt"
	"io"
	"path"
	"regexp"

	"github.com/google/uuid"

	"anneal/blobs"
	"anneal/blobs/external"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/pubsub"
	"anneal/projections"
)

const importerName = "dataset-import"

// maxImported is the maximum number of files in an import. Uploads have the same limit.
const maxImported = 100

// importedName matches the names under which imported files are stored.
var importedName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// An Importer imports the rows of datasets from object stores. It stores them like an upload, which
// a Validator then validates.
type Importer struct{ Transferrer }

// Handle registers the Importer for the events of datasets.
func (i Importer) Handle(r *pubsub.Router) error {
	return pubsub.HandleEvents(r, importerName, "events.*.datasets.*", i.Import, i.giveUp)
}

// Task returns the import of datasets as a Task of Resumption.
func (i Importer) Task() Task {
	return Task{importerName, i.Import, pending(domain.Datasets,
		func(d *domain.Dataset) bool { return d.Import.Running() })}
}

// importOf returns the number of the import that an event requests; 0 when it requests none.
func importOf(e eventlog.Event) (int, error) {
	created, err := eventOf[domain.DatasetCreated](e, "dataset.created.v1")
	if created != nil && created.Import {
		return 1, nil
	}
	requested, requestedErr := eventOf[domain.DatasetImportRequested](e, "dataset.importRequested.v1")
	if requested != nil {
		return requested.Import, nil
	}
	if err == nil {
		err = requestedErr
	}
	return 0, err
}

// Import imports the rows of the dataset whose import an event requests. It ignores all other
// events.
func (i Importer) Import(ctx context.Context, e eventlog.Event) error {
	number, err := importOf(e)
	if number == 0 || err != nil {
		return err
	}
	row, err := i.dataset(ctx, e)
	if row == nil || err != nil || !row.State.Import.Running() || row.State.Import.Number != number {
		return err // the rows were imported or replaced, or the dataset deleted, after the event
	}
	files := domain.Files{Sizes: map[string]int64{}, Prefix: blobs.UploadPrefix(blobs.DatasetRoot, row.Name,
		row.CreateEvent, row.State.Upload+1, uuid.NewString())}
	err = i.store(ctx, row, files)
	var result domain.Command[domain.Dataset] = domain.CompleteImport{Import: number, Files: files}
	status, cannot := failed(err)
	if cannot {
		status.Message = "the rows could not be imported: " + status.Message
		result, err = domain.FailImport{Import: number, Status: status}, nil
	}
	if err != nil {
		i.discard(ctx, files)
		return err
	}
	if recorded, err := i.record(ctx, e, importerName, result); err != nil || recorded && !cannot {
		return err // the event that refers to the stored files may have been recorded, so do not delete them
	}
	i.discard(ctx, files)
	return nil
}

// discard deletes stored files to which no event refers. When that fails, the reconciler deletes
// them later.
func (i Importer) discard(ctx context.Context, files domain.Files) {
	_ = i.Blobs.DeletePrefix(context.WithoutCancel(ctx), files.Prefix)
}

// store stores the objects of an import, and adds their names and sizes to files.
func (i Importer) store(ctx context.Context, row *projections.Row[domain.Dataset], files domain.Files) error {
	bucket, err := i.bucket(ctx, row.Name, row.State.Import.TransferSpec)
	if err != nil {
		return err
	}
	defer bucket.Close()
	objects, err := bucket.Objects(ctx, maxImported)
	if err != nil {
		return err
	}
	if err := i.admit(row.Name.Account(), objects); err != nil {
		return err
	}
	for _, one := range objects {
		name := path.Base(one.Key)
		if !importedName.MatchString(name) {
			return domain.Errorf(domain.InvalidArgument, "object %q: the name must be 1 to 128 letters, digits, dots, _ and "+
				"-, and begin with a letter or digit: rename the object", name)
		}
		err := bucket.Read(ctx, one.Key, func(content io.Reader) (err error) {
			limited := &io.LimitedReader{R: content, N: i.MaxFile + 1}
			files.Sizes[name], err = i.Blobs.Put(ctx, files.Prefix+name, limited)
			if err == nil && limited.N == 0 {
				err = i.tooLarge(name)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("import object %q: %w", one.Key, err)
		}
	}
	return nil
}

func (i Importer) tooLarge(name string) error {
	return domain.Errorf(domain.InvalidArgument, "object %q has more than %d bytes, the maximum of a "+
		"file: split it", name, i.MaxFile)
}

// admit returns an error when the objects exceed the maximum size of a file or the account's quota.
func (i Importer) admit(account string, objects []external.Object) error {
	if len(objects) == 0 {
		return domain.Errorf(domain.NotFound, "the directory that externalUrl names has no objects: correct externalUrl")
	}
	var sum int64
	for _, one := range objects {
		if sum += one.Size; one.Size > i.MaxFile {
			return i.tooLarge(path.Base(one.Key))
		}
	}
	view := i.World.View()
	quota, limited := view.Quota(account, domain.QuotaStorageBytes)
	if used := view.Storage(account); limited && used+sum > quota {
		return domain.Errorf(domain.FailedPrecondition, "the objects have %d bytes, and %d of the %d bytes of quota %s are "+
			"used: delete what is not needed, or ask the operator to raise it", sum, used, quota, domain.QuotaStorageBytes)
	}
	return nil
}

// giveUp records that the import failed in every attempt; see gaveUp.
func (i Importer) giveUp(ctx context.Context, e eventlog.Event, cause error) error {
	number, err := importOf(e)
	if number == 0 || err != nil {
		return nil
	}
	_, err = i.record(context.WithoutCancel(ctx), e, importerName,
		domain.FailImport{Import: number, Status: gaveUp("imported", cause)})
	return err
}
