package tasks

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog"
	"anneal/eventlog/pubsub"
	"anneal/eventlog/secrets"
)

// An EvaluatorBuilder builds revisions of evaluators. It unpacks the code of a revision, calls it
// once in a sandbox, and stores the files that attempts will run. Several processes may build the
// same revision, because only the first result is recorded.
type EvaluatorBuilder struct {
	Log     eventlog.Log
	World   eventlog.Rows
	Blobs   *blobs.Store
	Now     func() time.Time
	Builder engines.Builder
	Open    secrets.OpenFunc
}

const evaluatorBuilderName = "evaluator-build"

// Handle registers the EvaluatorBuilder for the events of evaluators.
func (b EvaluatorBuilder) Handle(r *pubsub.Router) error {
	return pubsub.HandleEvents(r, evaluatorBuilderName, "events.*.evaluators.*", b.Build, b.giveUp)
}

// Build builds the evaluator revision whose code an event completes. It ignores all other events.
func (b EvaluatorBuilder) Build(ctx context.Context, e eventlog.Event) error {
	revision, err := revisionToBuild(e)
	if err != nil || revision == 0 {
		return err
	}
	if err := b.World.WaitFor(ctx, e.Position); err != nil {
		return err
	}
	created := b.World.Lookup(e.Name).CreateEvent
	state, _ := b.World.Row(e.Name)
	evaluator, ok := state.(domain.Evaluator)
	if !ok || evaluator.Revision != revision || evaluator.State != domain.EvaluatorBuilding {
		return nil // the evaluator was deleted, or the revision replaced or built, after the event
	}
	work := &build{EvaluatorBuilder: b, event: e, evaluator: evaluator,
		prefix: blobs.BuildPrefix(e.Name, created, revision) + e.ID}
	if work.dir, err = os.MkdirTemp("", "anneal-build-"); err != nil {
		return err
	}
	defer os.RemoveAll(work.dir)
	err = work.run(ctx)
	if errors.Is(err, errNoCode) {
		return nil // the user has yet to upload the code
	}
	var refused *domain.Error
	if err != nil && (!errors.As(err, &refused) || ctx.Err() != nil || !isUserError(refused.Code) &&
		refused.Code != domain.Unavailable) {
		return err
	}
	return work.recordResult(ctx, refused)
}

// revisionToBuild returns the number of the revision whose code an event completes; 0 when the
// event completes none.
func revisionToBuild(e eventlog.Event) (int, error) {
	var said struct {
		Revision int  `json:"revision"`
		Rebuild  bool `json:"rebuild"`
		Upload   bool `json:"upload"`
	}
	switch e.Type {
	case "evaluator.created.v1":
		return 1, nil
	case "evaluator.uploaded.v1", "evaluator.updated.v1":
		if err := json.Unmarshal(e.Data, &said); err != nil {
			return 0, fmt.Errorf("decode the event at position %d: %w", e.Position, err)
		}
		if e.Type == "evaluator.updated.v1" && (!said.Rebuild || said.Upload) {
			return 0, nil
		}
	}
	return said.Revision, nil
}

var errNoCode = errors.New("the evaluator has no code")

// A build is the state of building one revision.
type build struct {
	EvaluatorBuilder
	event     eventlog.Event
	evaluator domain.Evaluator
	prefix    string // prefix of the blob keys of the build's files, without a slash at the end
	dir       string // temporary directory with the unpacked code
	entry     domain.Entry
	files     domain.Files // the built files, as stored for the attempts that will run them
	log       strings.Builder
	trial     string // why the trial call of the code returned no valid score; "" when it returned one
}

func (w *build) run(ctx context.Context) error {
	fmt.Fprintf(&w.log, "revision %d of %s\n", w.evaluator.Revision, w.event.Name)
	names, err := w.unpack(ctx)
	if err != nil {
		return err
	}
	env, err := secrets.Resolver{Rows: w.World, Open: w.Open,
		By: secrets.Reader{Purpose: secrets.BuildEvaluator, Resource: w.event.Name}}.Values(ctx, w.event.Name.Account(),
		"secrets", w.evaluator.Secrets)
	if err != nil {
		return err
	}
	requirements, err := w.requirements(names)
	if err != nil {
		return err
	}
	code := engines.EvaluatorCode{Dir: w.dir, EntryFile: w.entry.File, EntryFunc: w.entry.Func, Env: env}
	report, err := w.Builder.Build(ctx, code, requirements)
	w.log.WriteString(secrets.Redact(report.Log, env))
	w.trial = secrets.Redact(report.Trial, env)
	if err == nil {
		err = w.store(ctx, names)
	}
	var refused *domain.Error
	if errors.As(err, &refused) {
		shown := *refused
		shown.Message = secrets.Redact(shown.Message, env)
		return &shown
	}
	return err
}

// unpack unpacks the code into dir and finds its entry point. It returns the names of the files.
func (w *build) unpack(ctx context.Context) (names []string, err error) {
	u := &unpacking{dir: w.dir}
	var v domain.Violations
	if len(w.evaluator.Files.Sizes) > 0 {
		if err := u.upload(ctx, w.Blobs, w.evaluator.Files); err != nil {
			return nil, err
		}
		w.entry = w.evaluator.Uploaded(&v, u.names)
	} else {
		var inline map[string]string
		inline, w.entry = w.evaluator.Inline(&v)
		if len(inline) == 0 {
			return nil, errNoCode
		}
		for _, name := range slices.Sorted(maps.Keys(inline)) {
			if err := u.write(name, strings.NewReader(inline[name])); err != nil {
				return nil, err
			}
		}
	}
	for _, note := range u.notes[:min(len(u.notes), 20)] {
		fmt.Fprintln(&w.log, note)
	}
	fmt.Fprintf(&w.log, "files: %d, bytes: %d\n", len(u.names), u.bytes)
	return u.names, v.Err()
}

// requirements returns the Python requirements of the code: those in the evaluator's spec, and
// those in its file requirements.txt.
func (w *build) requirements(names []string) (string, error) {
	const file = "requirements.txt"
	if !slices.Contains(names, file) {
		return w.evaluator.Requirements, nil
	}
	more, err := os.ReadFile(filepath.Join(w.dir, file))
	return w.evaluator.Requirements + "\n" + string(more), err
}

// store stores the unpacked files under blob keys that begin with the prefix of the build.
func (w *build) store(ctx context.Context, names []string) error {
	w.files = domain.Files{Prefix: w.prefix + "/", Sizes: map[string]int64{}, Sums: map[string]string{}}
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(w.dir, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		if w.files.Sizes[name], err = w.Blobs.Put(ctx, w.files.Prefix+name, bytes.NewReader(content)); err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		w.files.Sums[name] = hex.EncodeToString(sum[:])
	}
	return nil
}

// recordResult stores the build log and records the result of the build. failure is nil when the
// build succeeded.
func (w *build) recordResult(ctx context.Context, failure *domain.Error) error {
	end := "built\n"
	if failure != nil {
		end = "not built: " + failure.Message + "\n"
	}
	w.log.WriteString(end)
	key := w.prefix + ".log"
	if _, err := w.Blobs.Put(ctx, key, strings.NewReader(w.log.String())); err != nil {
		return err
	}
	if failure != nil {
		return w.record(ctx, w.event, domain.RejectBuild{Revision: w.evaluator.Revision,
			Status:   domain.StatusOf(failure),
			BuildLog: key})
	}
	return w.record(ctx, w.event, domain.AcceptBuild{Revision: w.evaluator.Revision, BuildLog: key, Files: w.files,
		Trial: w.trial, Entry: w.entry})
}

func (b EvaluatorBuilder) record(ctx context.Context, e eventlog.Event,
	result domain.Command[domain.Evaluator]) error {
	request := eventlog.Reaction(e, "task/"+evaluatorBuilderName, b.Now())
	_, err := eventlog.Do(ctx, b.Log, b.World, request, domain.Intend(domain.Evaluators, e.Name, result))
	switch domain.CodeOf(err) {
	case domain.NotFound, domain.FailedPrecondition:
		return nil // the evaluator was deleted, or the revision replaced, during the build
	}
	return err
}

// giveUp records that the build failed in every attempt. The recorded message contains the cause
// only if it is a domain.Error, because other errors may contain paths of this machine.
func (b EvaluatorBuilder) giveUp(ctx context.Context, e eventlog.Event, cause error) error {
	revision, err := revisionToBuild(e)
	if err != nil || revision == 0 {
		return nil
	}
	status := domain.Status{Code: domain.Internal.String(), Message: "the code could not be built (" + causeOf(cause) +
		"): PATCH the evaluator with prepare_code_upload true, and upload the code again"}
	return b.record(context.WithoutCancel(ctx), e, domain.RejectBuild{Revision: revision, Status: status})
}
