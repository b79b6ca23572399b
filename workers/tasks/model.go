package tasks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"anneal/blobs"
	"anneal/disk"
	"anneal/domain"
	"anneal/domain/weights"
	"anneal/eventlog"
	"anneal/eventlog/pubsub"
)

// A ModelValidator validates the configuration of each uploaded model and the headers of its
// weights, and records the result. Several processes may validate the same upload, because only the
// first result is recorded.
type ModelValidator struct {
	Log   eventlog.Log
	World eventlog.Rows
	Blobs *blobs.Store
	Now   func() time.Time
	// Supports returns an error that says why the embedded engine cannot serve a model; nil when it
	// can. dir has the model's engineFiles.
	Supports func(dir string) error
}

const (
	modelValidatorName = "model-validation"
	modelUploaded      = "model.uploaded.v1"
)

// Handle registers the ModelValidator for the events of models.
func (v ModelValidator) Handle(r *pubsub.Router) error {
	return pubsub.HandleEvents(r, modelValidatorName, "events.*.models.*", v.Validate, v.giveUp)
}

// Validate validates the upload that an event records. It ignores all other events.
func (v ModelValidator) Validate(ctx context.Context, e eventlog.Event) error {
	upload, err := eventOf[domain.ModelUploaded](e, modelUploaded)
	if err != nil || upload == nil {
		return err
	}
	if err := v.World.WaitFor(ctx, e.Position); err != nil {
		return err
	}
	state, _ := v.World.Row(e.Name)
	model, ok := state.(domain.Model)
	if !ok || model.Upload != upload.Upload || model.Validated == upload.Upload {
		return nil // the upload was deleted, replaced or validated after the event
	}
	report, err := v.check(ctx, model)
	if err != nil {
		return err
	}
	if len(report.Violations) > 0 {
		return v.record(ctx, e, domain.RejectModel{Upload: upload.Upload, Status: violationStatus(report.Violations),
			Violations: report.Violations})
	}
	note, err := v.note(ctx, model)
	if err != nil {
		return err
	}
	return v.record(ctx, e, domain.AcceptModel{Upload: upload.Upload, ModelMetadata: report.ModelMetadata, Note: note})
}

// openFiles returns a weights.Directory that reads the files of a model from the store.
func openFiles(ctx context.Context, store *blobs.Store, files domain.Files) weights.Directory {
	return weights.Directory{Sizes: files.Sizes, Open: func(name string, offset, length int64) (io.ReadCloser, error) {
		return store.Range(ctx, files.Prefix+name, offset, length)
	}}
}

func (v ModelValidator) check(ctx context.Context, model domain.Model) (weights.Report, error) {
	if model.Kind == domain.SpeechModel {
		return weights.Report{Violations: model.Speech.CheckFiles(model.Files)}, nil
	}
	directory := openFiles(ctx, v.Blobs, model.Files)
	if model.Kind != domain.PEFTAddon {
		return weights.Check(directory)
	}
	state, _ := v.World.Row(domain.Name(model.BaseModel))
	base, ok := state.(domain.Model)
	if !ok || base.State != domain.ModelReady {
		var report weights.Report
		report.Violations.Add("baseModel",
			"the base model %s does not exist or is not READY: delete this model, and create it again when its base model "+
				"is READY",
			model.BaseModel)
		return report, nil
	}
	config, err := openFiles(ctx, v.Blobs, base.Files).ReadConfig()
	// the shapes of an addon are only compared with those of a base model that has a valid
	// configuration
	if err != nil && !weights.IsInvalid(err) {
		return weights.Report{}, err
	}
	return weights.CheckAdapter(directory, config, base.ModelMetadata)
}

// maxListed is the maximum number of violations in the status of a refused upload. Model.Violations
// has all of them.
const maxListed = 5

func violationStatus(v domain.Violations) domain.Status {
	var lines []string
	for _, one := range v[:min(len(v), maxListed)] {
		lines = append(lines, one.Field+": "+one.Description)
	}
	text := strings.Join(lines, "; ")
	if more := len(v) - maxListed; more > 0 {
		text += fmt.Sprintf("; and %d more problems", more)
	}
	return domain.Status{Code: domain.InvalidArgument.String(), Message: text +
		": correct these files and upload them again"}
}

// engineFiles are the names of the files that an engine reads besides the weights.
var engineFiles = []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
	"chat_template.jinja", "special_tokens_map.json", "adapter_config.json"}

// Maximum lengths in bytes of one of the engineFiles, and of AcceptModel.Note.
const (
	maxEngineFile = 64 << 20
	maxNote       = 1000
)

// note returns the text for AcceptModel.Note, which says why the embedded engine cannot serve the
// model; "" when it can.
func (v ModelValidator) note(ctx context.Context, model domain.Model) (string, error) {
	if model.Kind == domain.SpeechModel {
		return "", nil
	}
	dir, err := os.MkdirTemp("", "anneal-model-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	for _, name := range engineFiles {
		size, ok := model.Files.Sizes[name]
		if size > maxEngineFile {
			return otherEngine(fmt.Sprintf("file %s has %d bytes: at most %d are allowed", name, size, maxEngineFile)), nil
		}
		if ok {
			if err := v.fetch(ctx, model.Files.Prefix+name, filepath.Join(dir, name)); err != nil {
				return "", err
			}
		}
	}
	err = v.Supports(dir)
	var failure *domain.Error
	if err != nil && !errors.As(err, &failure) {
		return "", err
	}
	if failure != nil {
		return otherEngine(failure.Message), nil
	}
	return "", nil
}

// otherEngine returns the note for a model that the embedded engine cannot serve. It truncates the
// reason why, which may quote the model's files.
func otherEngine(why string) string {
	if len(why) > maxNote {
		why = strings.ToValidUTF8(why[:maxNote], "") + "…"
	}
	return "the embedded engine cannot serve this model, but a node with another engine may be able to: " + why
}

func (v ModelValidator) fetch(ctx context.Context, key, path string) error {
	content, err := v.Blobs.Get(ctx, key)
	if err != nil {
		return err
	}
	file, err := disk.Create(path)
	if err != nil {
		return errors.Join(err, content.Close())
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close(), content.Close())
}

func (v ModelValidator) record(ctx context.Context, e eventlog.Event, result domain.Command[domain.Model]) error {
	return recordModel(ctx, v.Log, v.World, v.Now(), modelValidatorName, e, result)
}

// recordModel executes found, the command with the result of a task on a model, and waits until the
// world has its event. It does nothing when the model was deleted or has changed.
func recordModel(ctx context.Context, log eventlog.Log, world eventlog.Rows, now time.Time, task string,
	e eventlog.Event, found domain.Command[domain.Model]) error {
	request := eventlog.Reaction(e, "task/"+task, now)
	result, err := eventlog.Do(ctx, log, world, request, domain.Intend(domain.Models, e.Name, found))
	switch domain.CodeOf(err) {
	case domain.NotFound, domain.FailedPrecondition:
		return nil
	case domain.OK:
		return world.WaitFor(ctx, result.Position())
	}
	return err
}

// giveUp records that the validation failed in every attempt. The recorded message contains the
// cause only if it is a domain.Error, because other errors may contain paths of this machine.
func (v ModelValidator) giveUp(ctx context.Context, e eventlog.Event, cause error) error {
	upload, err := eventOf[domain.ModelUploaded](e, modelUploaded)
	if err != nil || upload == nil {
		return nil
	}
	status := domain.Status{Code: domain.Internal.String(), Message: "the upload could not be validated (" +
		causeOf(cause) + "): upload the files again"}
	return v.record(context.WithoutCancel(ctx), e, domain.RejectModel{Upload: upload.Upload, Status: status})
}

// causeOf returns the message of err for users: that of a domain.Error, or a general one, because
// other errors may contain paths of this machine.
func causeOf(err error) string {
	var failure *domain.Error
	if errors.As(err, &failure) {
		return failure.Message
	}
	return "internal error, see the server's log"
}
