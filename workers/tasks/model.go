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
)

// A ModelValidator reads what the files of each uploaded model say about
// themselves, and records the verdict. It may run in several processes, and
// twice on one upload: the second verdict finds the first.
type ModelValidator struct {
	Log   eventlog.Log
	World eventlog.Rows
	Blobs *blobs.Store
	Now   func() time.Time
	// Supports answers why the engine of this program could not serve the model
	// whose small files lie in a directory; nil when it could.
	Supports func(dir string) error
}

const (
	modelValidatorName = "model-validation"
	modelUploaded      = "model.uploaded.v1"
)

// Handle gives every upload that the log records to the validator.
func (v ModelValidator) Handle(r *eventlog.Router) error {
	return eventlog.HandleEvents(r, modelValidatorName, "events.*.models.*", v.Judge, v.giveUp)
}

// Judge checks the upload that an event records, if it records one.
func (v ModelValidator) Judge(ctx context.Context, e eventlog.Event) error {
	upload, err := factOf[domain.ModelUploaded](e, modelUploaded)
	if err != nil || upload == nil {
		return err
	}
	if err := v.World.WaitFor(ctx, e.Position); err != nil {
		return err
	}
	state, _ := v.World.Row(e.Name)
	model, ok := state.(domain.Model)
	if !ok || model.Upload != upload.Upload || model.Validated == upload.Upload {
		return nil // deleted, replaced or judged since
	}
	report, err := v.check(ctx, model)
	if err != nil {
		return err
	}
	if len(report.Violations) > 0 {
		return v.record(ctx, e, domain.RejectModel{Upload: upload.Upload, Status: refusal(report.Violations),
			Violations: report.Violations})
	}
	note, err := v.note(ctx, model)
	if err != nil {
		return err
	}
	return v.record(ctx, e, domain.AcceptModel{Upload: upload.Upload, ModelFacts: report.ModelFacts, Note: note})
}

// stored is a model's files in the store.
func stored(ctx context.Context, store *blobs.Store, files domain.Files) weights.Folder {
	return weights.Folder{Sizes: files.Sizes, Open: func(name string, offset, length int64) (io.ReadCloser, error) {
		return store.Range(ctx, files.Folder+name, offset, length)
	}}
}

func (v ModelValidator) check(ctx context.Context, model domain.Model) (weights.Report, error) {
	if model.Kind == domain.SpeechModel {
		return weights.Report{Violations: model.Speech.CheckFiles(model.Files)}, nil
	}
	folder := stored(ctx, v.Blobs, model.Files)
	if model.Kind != domain.PEFTAddon {
		return weights.Check(folder)
	}
	state, _ := v.World.Row(domain.Name(model.BaseModel))
	base, ok := state.(domain.Model)
	if !ok || base.State != domain.ModelReady {
		var report weights.Report
		report.Violations.Add("baseModel",
			"%s is not there or not READY: delete this model, and create it again when its base is", model.BaseModel)
		return report, nil
	}
	config, err := stored(ctx, v.Blobs, base.Files).ReadConfig()
	if err != nil && !weights.IsBroken(err) { // a base without a readable configuration has no shapes to compare with
		return weights.Report{}, err
	}
	return weights.CheckAdapter(folder, config, base.ModelFacts)
}

// told is how many faults the status of a refused upload names; its violations
// name all.
const told = 5

func refusal(v domain.Violations) domain.Status {
	var lines []string
	for _, one := range v[:min(len(v), told)] {
		lines = append(lines, one.Field+": "+one.Description)
	}
	text := strings.Join(lines, "; ")
	if more := len(v) - told; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return domain.Status{Code: domain.InvalidArgument.String(), Message: text +
		": mend the files and upload them again; the others need not be"}
}

// engineFiles are the small files that an engine reads first.
var engineFiles = []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
	"chat_template.jinja", "special_tokens_map.json", "adapter_config.json"}

// Bounds of what a note is made of, and of itself, in bytes. The check has read
// config.json and tokenizer.json within bounds of its own; of the others nobody
// has asked yet how large they are.
const (
	maxEngineFile = 64 << 20
	maxNote       = 1000
)

// note says why the engine of this program could not serve the model; "" when
// it could.
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
			return otherEngine(fmt.Sprintf("%s has %d bytes, and it reads %d", name, size, maxEngineFile)), nil
		}
		if ok {
			if err := v.fetch(ctx, model.Files.Folder+name, filepath.Join(dir, name)); err != nil {
				return "", err
			}
		}
	}
	err = v.Supports(dir)
	var fault *domain.Error
	if err != nil && !errors.As(err, &fault) {
		return "", err
	}
	if fault != nil {
		return otherEngine(fault.Message), nil
	}
	return "", nil
}

// otherEngine is the note on a model that this program's engine cannot serve.
// Why may quote the model's files.
func otherEngine(why string) string {
	if len(why) > maxNote {
		why = strings.ToValidUTF8(why[:maxNote], "") + "…"
	}
	return "the embedded engine cannot serve this model, only a node with another engine could: " + why
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

func (v ModelValidator) record(ctx context.Context, e eventlog.Event, verdict domain.Command[domain.Model]) error {
	return recordModel(ctx, v.Log, v.World, v.Now(), modelValidatorName, e, verdict)
}

// recordModel carries out what a task found about a model, and returns when the
// world shows it. That the model is gone or has gone on meanwhile is nobody's
// fault: nobody waits for it.
func recordModel(ctx context.Context, log eventlog.Log, world eventlog.Rows, now time.Time, task string,
	e eventlog.Event, found domain.Command[domain.Model]) error {
	request := eventlog.Request{Time: now, Actor: "task/" + task, Cause: e.ID, Correlation: e.Correlation}
	result, err := eventlog.Do(ctx, log, world, request, domain.Intend(domain.Models, e.Name, found))
	switch domain.CodeOf(err) {
	case domain.NotFound, domain.FailedPrecondition:
		return nil
	case domain.OK:
		return world.WaitFor(ctx, result.Position())
	}
	return err
}

// giveUp tells the model's owner that the check itself would not succeed. A
// cause that is no fault may name paths of this machine, and is in the log of
// the server.
func (v ModelValidator) giveUp(ctx context.Context, e eventlog.Event, cause error) error {
	upload, err := factOf[domain.ModelUploaded](e, modelUploaded)
	if err != nil || upload == nil {
		return nil
	}
	status := domain.Status{Code: domain.Internal.String(), Message: "the upload could not be checked (" +
		causeOf(cause) + "): upload it again"}
	return v.record(context.WithoutCancel(ctx), e, domain.RejectModel{Upload: upload.Upload, Status: status})
}

// causeOf is why a task would not succeed, in words that may leave this machine.
func causeOf(err error) string {
	var fault *domain.Error
	if errors.As(err, &fault) {
		return fault.Message
	}
	return "the store for files failed"
}
