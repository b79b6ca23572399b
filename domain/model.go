package domain

import (
	"maps"
	"time"
)

// A model is a set of weights: a base model, a full-parameter fine-tune, a
// LoRA adapter on a base model, or a model that listens to speech. Its weights are fixed once it is READY; copies
// in other precisions may be made from them (model_copy.go).
//
//	(none)    --CreateModel-->   UPLOADING
//	UPLOADING --UploadModel-->   UPLOADING, its files wait for validation
//	UPLOADING --AcceptModel-->   READY
//	UPLOADING --RejectModel-->   UPLOADING, its status says why: upload what is missing or wrong
//	(none)    --RegisterModel--> READY: a job's result, or the shipped base model
//	READY     --PrepareModel-->  READY, with a copy that is PREPARING
//	READY     --FinishCopy-->    READY, with a copy that is READY
//	READY     --FailCopy-->      READY, with a copy that has FAILED: prepare it again
//	any       --UpdateModel-->   the same
//	any       --DeleteModel-->   (none)
var Models = usable(NewKind("models", map[string]Event[Model]{
	"model.created.v1":            ModelCreated{},
	"model.uploaded.v1":           ModelUploaded{},
	"model.accepted.v1":           ModelAccepted{},
	"model.rejected.v1":           ModelRejected{},
	"model.registered.v1":         ModelRegistered{},
	"model.preparing.v1":          ModelPreparing{},
	"model.prepared.v1":           ModelPrepared{},
	"model.preparation-failed.v1": ModelPreparationFailed{},
	"model.updated.v1":            ModelUpdated{},
	"model.deleted.v1":            ModelDeleted{},
}), "model.", func(x *Model) *Deletion { return &x.Deletion })

// Model states and kinds.
const (
	ModelUploading = "UPLOADING"
	ModelReady     = "READY"

	BaseModel   = "HF_BASE_MODEL"
	PEFTAddon   = "HF_PEFT_ADDON"
	SpeechModel = "SPEECH_MODEL" // it transcribes, and answers with no text of its own
)

// ModelKinds in the order in which they are named.
var ModelKinds = []string{BaseModel, PEFTAddon, SpeechModel}

// ModelSpec is what the caller sets.
type ModelSpec struct {
	DisplayName string `json:"displayName"`
	Description string `json:"description"`
	Kind        string `json:"kind"`
	BaseModel   string `json:"baseModel,omitempty"` // of an addon; of a fine-tune, what it came from
	Public      bool   `json:"public"`              // may be read and deployed from any account

	Speech *SpeechSettings `json:"speech,omitempty"` // of a speech model, and of no other
}

// ModelFacts are what the weights themselves say.
type ModelFacts struct {
	ModelType      string   `json:"modelType"` // "llama"
	ParameterCount Count    `json:"parameterCount"`
	ContextLength  int      `json:"contextLength"`       // tokens
	Precision      string   `json:"precision,omitempty"` // FP32, BF16, FP16 …: as most of the numbers are stored
	LoraRank       int      `json:"loraRank,omitempty"`
	LoraTargets    []string `json:"loraTargetModules,omitempty"`
	Embedding      bool     `json:"embedding,omitempty"` // makes vectors, not text
	Attention
}

// Files maps the names of stored files to their sizes in bytes, and where they
// are known to their SHA-256 sums in hexadecimal: a file there with another
// sum is not the file. Folder is where they lie in the blob bucket, ending in a
// slash.
type Files struct {
	Folder string            `json:"folder"`
	Sizes  map[string]int64  `json:"sizes"`
	Sums   map[string]string `json:"sums,omitempty"`
}

// Bytes is the size of all files together.
func (f Files) Bytes() (sum int64) {
	for _, size := range f.Sizes {
		sum += size
	}
	return sum
}

// Model is the state of one model.
type Model struct {
	ModelSpec
	ModelFacts
	Deletion
	State      string               `json:"state"`
	Status     Status               `json:"status"`
	Files      Files                `json:"files"`
	Upload     int                  `json:"upload,omitempty"`     // number of the newest upload, 0 before the first
	Validated  int                  `json:"validated,omitempty"`  // the upload that was accepted or rejected last
	Violations []Violation          `json:"violations,omitempty"` // of the rejected upload
	Copies     map[string]ModelCopy `json:"copies,omitempty"`     // by precision
	SourceJob  Name                 `json:"sourceJob,omitempty"`  // the job that made it
	CreatedBy  string               `json:"createdBy"`
}

// Exists implements State.
func (m Model) Exists() bool { return m.State != "" }

// Stage implements Staged.
func (m Model) Stage() string { return m.State }

type ModelCreated struct {
	ModelSpec
	CreatedBy string `json:"createdBy"`
}

func (e ModelCreated) Evolve(m *Model) {
	*m = Model{ModelSpec: e.ModelSpec, CreatedBy: e.CreatedBy, State: ModelUploading, Status: StatusOf(nil)}
}

type ModelUploaded struct {
	Upload int   `json:"upload"`
	Files  Files `json:"files"`
}

func (e ModelUploaded) Evolve(m *Model) {
	m.Upload, m.Files, m.Status, m.Violations = e.Upload, e.Files, Status{OK.String(), "the upload is being validated"}, nil
}

// ModelAccepted may say in Note what the platform cannot do with the model.
// Files are set in events that were written before uploads had numbers.
type ModelAccepted struct {
	Upload int `json:"upload,omitempty"`
	ModelFacts
	Files Files  `json:"files,omitzero"`
	Note  string `json:"note,omitempty"`
}

func (e ModelAccepted) Evolve(m *Model) {
	m.ModelFacts, m.State, m.Status, m.Validated, m.Violations = e.ModelFacts, ModelReady, Status{OK.String(), e.Note}, e.Upload, nil
	if e.Files.Folder != "" {
		m.Files = e.Files
	}
}

type ModelRejected struct {
	Upload     int         `json:"upload,omitempty"`
	Status     Status      `json:"status"`
	Violations []Violation `json:"violations,omitempty"`
}

func (e ModelRejected) Evolve(m *Model) {
	m.Validated, m.Status, m.Violations = e.Upload, e.Status, e.Violations
}

type ModelRegistered struct {
	ModelSpec
	ModelFacts
	Files     Files  `json:"files"`
	SourceJob Name   `json:"sourceJob,omitempty"`
	CreatedBy string `json:"createdBy"`
}

func (e ModelRegistered) Evolve(m *Model) {
	*m = Model{ModelSpec: e.ModelSpec, ModelFacts: e.ModelFacts, Files: e.Files, SourceJob: e.SourceJob,
		CreatedBy: e.CreatedBy, State: ModelReady, Status: StatusOf(nil)}
}

type ModelUpdated struct{ ModelSpec }

func (e ModelUpdated) Evolve(m *Model) { m.ModelSpec = e.ModelSpec }

type ModelDeleted struct{}

func (ModelDeleted) Evolve(m *Model) { *m = Model{} }

// CreateModel announces weights that will be uploaded.
type CreateModel struct {
	ModelSpec
	CreatedBy string
}

func (c CreateModel) Decide(m Model, _ time.Time) (Event[Model], error) {
	if m.Exists() {
		return nil, exists("a model")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	return ModelCreated(c), nil
}

// UploadModel records that files are stored and wait for validation. Upload is
// the number that follows the newest one, which must have been judged: its
// files may be among these.
type UploadModel struct {
	Upload int
	Files  Files
}

func (c UploadModel) Decide(m Model, _ time.Time) (Event[Model], error) {
	switch {
	case !m.Exists():
		return nil, gone("model")
	case c.Upload == m.Upload && c.Files.Folder == m.Files.Folder && m.Upload > 0:
		return nil, nil
	case m.State == ModelReady:
		return nil, precondition("MODEL_READY", "the model is READY and its weights can no longer change: create another")
	case c.Upload != m.Upload+1:
		return nil, precondition("UPLOAD_SUPERSEDED", "another upload came first: look at the model's status, and upload again if it is not READY")
	case m.Upload != m.Validated:
		return nil, precondition("UPLOAD_PENDING", "upload %d is being validated: wait for its verdict", m.Upload)
	case len(c.Files.Sizes) == 0:
		return nil, precondition("NOTHING_UPLOADED", "no file has been uploaded: upload the model's files, then validate")
	}
	return ModelUploaded(c), nil
}

// AcceptModel records that the weights of an upload were read and found whole.
type AcceptModel struct {
	Upload int
	ModelFacts
	Note string // what the platform cannot do with them; "" when there is nothing
}

func (c AcceptModel) Decide(m Model, _ time.Time) (Event[Model], error) {
	if recorded, err := m.judged(c.Upload, true); recorded || err != nil {
		return nil, err
	}
	return ModelAccepted{Upload: c.Upload, ModelFacts: c.ModelFacts, Note: c.Note}, nil
}

// RejectModel records why an upload cannot be used.
type RejectModel struct {
	Upload     int
	Status     Status
	Violations []Violation // by file; at most 100
}

func (c RejectModel) Decide(m Model, _ time.Time) (Event[Model], error) {
	if recorded, err := m.judged(c.Upload, false); recorded || err != nil {
		return nil, err
	}
	return ModelRejected(c), nil
}

func (m Model) judged(upload int, accepted bool) (bool, error) {
	if !m.Exists() {
		return false, gone("model")
	}
	return uploads{"model", m.State == ModelReady, m.Upload, m.Validated}.judged(upload, accepted)
}

// RegisterModel records weights that are already stored: a training's result.
type RegisterModel struct {
	ModelSpec
	ModelFacts
	Files     Files
	SourceJob Name
	CreatedBy string
}

func (c RegisterModel) Decide(m Model, _ time.Time) (Event[Model], error) {
	switch {
	case m.Exists() && m.SourceJob == c.SourceJob && m.Files.Folder == c.Files.Folder && maps.Equal(m.Files.Sizes, c.Files.Sizes):
		return nil, nil
	case m.Exists():
		return nil, exists("a model")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	return ModelRegistered(c), nil
}

// UpdateModel replaces what the caller sets; kind, baseModel and the format of
// speech stay.
type UpdateModel struct{ ModelSpec }

func (c UpdateModel) Decide(m Model, _ time.Time) (Event[Model], error) {
	var v Violations
	v.Require(c.Kind == m.Kind, "kind", "cannot change")
	v.Require(c.BaseModel == m.BaseModel, "baseModel", "cannot change")
	v.Require(c.Speech.format() == m.Speech.format(), "speech.format", "cannot change")
	c.checkSpeech(&v)
	checkText(&v, c.DisplayName, c.Description)
	switch {
	case !m.Exists():
		return nil, gone("model")
	case sameJSON(m.ModelSpec, c.ModelSpec):
		return nil, nil
	}
	return ModelUpdated(c), v.Err()
}

// DeleteModel removes the model. The caller makes sure that nothing serves it.
type DeleteModel struct{}

func (DeleteModel) Decide(m Model, now time.Time) (Event[Model], error) {
	if !m.Exists() {
		return nil, gone("model")
	}
	return ModelDeleted{}, m.mayDelete(now)
}

func (s ModelSpec) check() error {
	var v Violations
	checkText(&v, s.DisplayName, s.Description)
	v.Require(s.Kind != "", "kind", "must be one of %s", join(ModelKinds))
	oneOf(&v, "kind", s.Kind, ModelKinds...)
	reference(&v, "baseModel", s.BaseModel, "models")
	v.Require(s.Kind != PEFTAddon || s.BaseModel != "", "baseModel", "is required for an addon")
	s.checkSpeech(&v)
	return v.Err()
}

// checkSpeech requires that a speech model says how it is listened with, and no
// other does.
func (s ModelSpec) checkSpeech(v *Violations) {
	v.Require(s.Kind == SpeechModel || s.Speech == nil, "speech", "is for models of kind %s: leave it out, or give that kind", SpeechModel)
	v.Require(s.Kind != SpeechModel || s.Speech != nil, "speech", "is required for a speech model: its format says who can listen with it, one of %s", join(SpeechFormats))
	if s.Speech != nil {
		s.Speech.check(v)
	}
}
