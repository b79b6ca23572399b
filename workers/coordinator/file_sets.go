package coordinator

import (
	"context"
	"maps"
	"slices"
	"time"

	"anneal/domain"
	"anneal/eventlog/secrets"
	"anneal/projections"
	"anneal/workers/protocol"
)

const downloadWithin = 24 * time.Hour // how long the signed download URLs of an assignment are valid

// evaluator returns the code of the evaluator revision with which the job started, and the values
// of its secrets. The secrets are decrypted for each assignment and not stored.
func (a *assigner) evaluator(
	ctx context.Context, node string, view *projections.View, j job,
) (*protocol.Evaluator, error) {
	row, ok := view.Evaluators.Get(j.Evaluator)
	if !ok {
		return nil, domain.Errorf(domain.FailedPrecondition, "evaluator %s does not exist: create another job", j.Evaluator)
	}
	build, ok := row.State.BuildOf(j.Life.EvaluatorRevision)
	if !ok || build.Entry.File == "" {
		return nil, domain.Errorf(domain.FailedPrecondition,
			"revision %d of evaluator %s was deleted: create another job", j.Life.EvaluatorRevision, j.Evaluator)
	}
	code, err := a.fileSet(ctx, fileSetKey(build.Files.Prefix, row.CreateTime), build.Files)
	if err != nil {
		return nil, err
	}
	evaluator := &protocol.Evaluator{Code: *code, EntryFile: build.Entry.File, EntryFunc: build.Entry.Func}
	if len(row.State.Secrets) > 0 {
		if a.openSecret == nil {
			return nil, domain.Errorf(domain.FailedPrecondition,
				"evaluator %s uses secrets, but this control plane was started without the keys to decrypt them", j.Evaluator)
		}
		resolver := secrets.Resolver{Rows: a.world, Open: a.openSecret,
			By: secrets.Reader{Purpose: secrets.ScoreResponses, Resource: j.Name, Node: nodeName(node)}}
		field := string(j.Evaluator) + ": secrets"
		evaluator.Env, err = resolver.Values(ctx, j.Name.Account(), field, row.State.Secrets)
	}
	return evaluator, err
}

// requireFreeOutput returns an error when a model with the name of the job's output model exists
// and this job did not create it.
func requireFreeOutput(v *projections.View, j job) error {
	row, taken := v.Models.Get(domain.NewName(j.Name.Account(), "models", j.OutputModel))
	if taken && row.State.SourceJob != j.Name {
		return &domain.Error{Code: domain.AlreadyExists, Reason: "OUTPUT_MODEL_TAKEN",
			Message: "outputModel: model " + string(row.Name) +
				" already exists: delete the model and resume the job, or create another job"}
	}
	return nil
}

// modelFiles returns the files of a model: those of its copy in the precision, or the original
// files if it has no such copy. For an addon, base has the original files of its base model,
// because the addon was trained with them, and adapter has the files of the addon.
func (a *assigner) modelFiles(
	ctx context.Context, view *projections.View, name domain.Name, precision string,
) (base, adapter *protocol.FileSet, err error) {
	row, err := readyModel(view, name)
	if err != nil {
		return nil, nil, err
	}
	files := row.State.FilesIn(precision)
	if row.State.Kind == domain.PEFTAddon {
		key := fileSetKey(row.State.Files.Prefix, row.CreateTime)
		if adapter, err = a.fileSet(ctx, key, row.State.Files); err != nil {
			return nil, nil, err
		}
		if row, err = readyModel(view, domain.Name(row.State.BaseModel)); err != nil {
			return nil, nil, err
		}
		if row.State.Kind == domain.PEFTAddon {
			return nil, nil, domain.Errorf(domain.FailedPrecondition,
				"the base model %s of an addon is an addon itself: create the addon's model again with another "+
					"base model", row.Name)
		}
		files = row.State.Files
	}
	base, err = a.fileSet(ctx, fileSetKey(files.Prefix, row.CreateTime), files)
	return base, adapter, err
}

// draftFiles returns the files of a draft model for speculative decoding.
func (a *assigner) draftFiles(ctx context.Context, view *projections.View, name domain.Name) (*protocol.FileSet,
	error) {
	files, adapter, err := a.modelFiles(ctx, view, name, "")
	if err == nil && adapter != nil {
		err = domain.Errorf(domain.FailedPrecondition, "draftModel: %s is an addon, which cannot draft: use a base model",
			name)
	}
	return files, err
}

// speechSettings returns the settings of a deployment's speech model; nil for a text model. It
// returns an error when the model was deleted, or was created again with another speech format.
func speechSettings(
	v *projections.View, deployment *projections.Row[domain.Deployment],
) (*domain.SpeechSettings, error) {
	row, err := readyModel(v, domain.Name(deployment.State.BaseModel))
	if err == nil && row.State.SpeechFormat() != deployment.State.SpeechFormat {
		err = domain.Errorf(domain.FailedPrecondition,
			"the speech format of model %s has changed since the deployment was created: create another deployment",
			row.Name)
	}
	if err != nil {
		return nil, err
	}
	return row.State.Speech, nil
}

func readyModel(v *projections.View, name domain.Name) (*projections.Row[domain.Model], error) {
	row, ok := v.Models.Get(name)
	switch {
	case !ok:
		return nil, domain.Errorf(domain.FailedPrecondition, "model %s does not exist: it was deleted in the "+
			"meantime", name)
	case row.State.State != domain.ModelReady:
		return nil, domain.Errorf(domain.FailedPrecondition,
			"model %s is %s: upload its weights first", name, row.State.State)
	}
	return row, nil
}

func (a *assigner) datasetFiles(
	ctx context.Context, view *projections.View, name domain.Name,
) (*protocol.FileSet, error) {
	row, ok := view.Datasets.Get(name)
	switch {
	case !ok:
		return nil, domain.Errorf(domain.FailedPrecondition, "dataset %s does not exist: it was deleted in the "+
			"meantime", name)
	case row.State.State != domain.DatasetReady:
		return nil, domain.Errorf(domain.FailedPrecondition,
			"dataset %s is %s: upload its rows first", name, row.State.State)
	}
	return a.fileSet(ctx, fileSetKey(row.State.Files.Prefix, row.CreateTime), row.State.Files)
}

// fileSetKey returns the FileSet.Key for the files of a resource. It contains the creation time of
// the resource, because a resource with the same name that is created later may have other files.
func fileSetKey(directory string, created time.Time) string {
	return directory + "@" + created.UTC().Format(time.RFC3339Nano)
}

// fileSet returns a FileSet of stored files, with signed URLs for downloading them.
func (a *assigner) fileSet(ctx context.Context, key string, files domain.Files) (*protocol.FileSet, error) {
	if len(files.Sizes) == 0 || len(files.Sizes) > protocol.MaxFiles {
		return nil, domain.Errorf(domain.FailedPrecondition, "the stored directory %s has %d files, but must have 1 to %d",
			files.Prefix, len(files.Sizes), protocol.MaxFiles)
	}
	set := &protocol.FileSet{Key: key}
	for _, name := range slices.Sorted(maps.Keys(files.Sizes)) {
		url, err := a.blobs.SignGet(ctx, files.Prefix+name, downloadWithin)
		if err != nil {
			return nil, err
		}
		set.Files = append(set.Files,
			protocol.File{Name: name, Size: files.Sizes[name], Sum: files.Sums[name], URL: url})
	}
	return set, nil
}
