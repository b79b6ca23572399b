package tasks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/domain/weights"
	"anneal/eventlog"
	"anneal/eventlog/pubsub"
)

// A ModelCopier writes copies of models in other precisions, one tensor at a time. Several
// processes may write the same copy, because they write the same content to the same keys and only
// the first result is recorded.
type ModelCopier struct {
	Log   eventlog.Log
	World eventlog.Rows
	Blobs *blobs.Store
	Now   func() time.Time
}

const (
	modelCopierName = "model-preparation"
	modelPreparing  = "model.preparing.v1"
)

// Handle registers the ModelCopier for the events of models.
func (p ModelCopier) Handle(r *pubsub.Router) error {
	return pubsub.HandleEvents(r, modelCopierName, "events.*.models.*", p.Copy, p.giveUp)
}

// Copy writes the copy of a model that an event requests. It ignores all other events.
func (p ModelCopier) Copy(ctx context.Context, e eventlog.Event) error {
	requested, err := eventOf[domain.ModelPreparing](e, modelPreparing)
	if err != nil || requested == nil {
		return err
	}
	if err := p.World.WaitFor(ctx, e.Position); err != nil {
		return err
	}
	directory := blobs.CopyPrefix(e.Name, p.World.Lookup(e.Name).CreateEvent, requested.Precision, requested.Attempt)
	model, wanted := p.wanted(e.Name, requested)
	if !wanted {
		return nil
	}
	files, err := p.write(ctx, model.Files, directory, weights.DTypes[requested.Precision])
	if weights.IsInvalid(err) {
		return p.fail(ctx, e, requested, domain.Status{Code: domain.FailedPrecondition.String(), Message: err.Error()})
	}
	if err != nil {
		return err
	}
	return p.record(ctx, e, domain.FinishCopy{Precision: requested.Precision, Attempt: requested.Attempt, Files: files})
}

// wanted returns the model, and whether the copy that an event requested is still to be written.
func (p ModelCopier) wanted(name domain.Name, requested *domain.ModelPreparing) (domain.Model, bool) {
	state, _ := p.World.Row(name)
	model, _ := state.(domain.Model)
	latest := model.Copies[requested.Precision]
	return model, latest.Attempt == requested.Attempt && latest.State == domain.CopyPreparing &&
		latest.Time.Equal(requested.Time)
}

// write stores the files of the copy and returns them: the weights converted to dtype,
// configuration and index adapted to dtype, and all other files unchanged.
func (p ModelCopier) write(ctx context.Context, from domain.Files, directory, dtype string) (domain.Files, error) {
	to := domain.Files{Prefix: directory, Sizes: map[string]int64{}}
	source := openFiles(ctx, p.Blobs, from)
	converted, err := source.WeightFiles()
	if err != nil {
		return to, err
	}
	total, added := int64(0), map[string][]string{}
	for _, name := range converted {
		if to.Sizes[name], added[name], err = p.convert(ctx, source, directory, name, dtype); err != nil {
			return to, err
		}
		total += to.Sizes[name]
	}
	if dtype == weights.DTypes["FP8"] && !slices.ContainsFunc(converted,
		func(name string) bool { return len(added[name]) > 0 }) {
		return to, weights.ErrNoProjections
	}
	changed := map[string]func() ([]byte, error){
		"config.json":                  func() ([]byte, error) { return source.ConvertedConfig(dtype) },
		"model.safetensors.index.json": func() ([]byte, error) { return source.ConvertedIndex(total, added) },
	}
	for _, name := range slices.Sorted(maps.Keys(from.Sizes)) {
		if _, done := to.Sizes[name]; done || weights.IsWeightsFile(name) {
			continue
		}
		if change, ok := changed[name]; ok {
			to.Sizes[name], err = p.put(ctx, directory+name, change)
		} else if err = p.Blobs.Copy(ctx, directory+name, from.Prefix+name); err == nil {
			to.Sizes[name] = from.Sizes[name]
		}
		if err != nil {
			return to, err
		}
	}
	return to, nil
}

// convert stores one file of weights converted to dtype. It returns the length of the new file in
// bytes and the tensors that were added to it.
func (p ModelCopier) convert(ctx context.Context, source weights.Directory, directory, name, dtype string) (size int64,
	added []string, err error) {
	reader, writer := io.Pipe()
	converted := make(chan error, 1)
	go func() {
		var err error
		added, err = source.Convert(writer, name, dtype)
		writer.CloseWithError(err)
		converted <- err
	}()
	size, err = p.Blobs.Put(ctx, directory+name, reader)
	reader.Close() // ends the conversion when the store has failed
	if failed := <-converted; failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		return 0, nil, fmt.Errorf("%s: %w", name, failed)
	}
	return size, added, err
}

func (p ModelCopier) put(ctx context.Context, key string, content func() ([]byte, error)) (int64, error) {
	data, err := content()
	if err != nil {
		return 0, err
	}
	return p.Blobs.Put(ctx, key, bytes.NewReader(data))
}

func (p ModelCopier) fail(ctx context.Context, e eventlog.Event, requested *domain.ModelPreparing,
	status domain.Status) error {
	return p.record(ctx, e, domain.FailCopy{Precision: requested.Precision, Attempt: requested.Attempt, Status: status})
}

func (p ModelCopier) record(ctx context.Context, e eventlog.Event, found domain.Command[domain.Model]) error {
	return recordModel(ctx, p.Log, p.World, p.Now(), modelCopierName, e, found)
}

// giveUp records that writing the copy failed in every attempt.
func (p ModelCopier) giveUp(ctx context.Context, e eventlog.Event, cause error) error {
	requested, err := eventOf[domain.ModelPreparing](e, modelPreparing)
	if err != nil || requested == nil {
		return nil
	}
	status := domain.Status{Code: domain.Internal.String(), Message: "the copy could not be written (" +
		causeOf(cause) + "): prepare the copy again"}
	return p.fail(context.WithoutCancel(ctx), e, requested, status)
}
