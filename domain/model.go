package domain

import (
	"maps"
	"time"
)

// A model is a set of weights: a base model, a full-parameter fine-tune, or a
// LoRA adapter on a base model.
//
//	(none)    --CreateModel-->   UPLOADING --AcceptModel--> READY
//	UPLOADING --RejectModel-->   UPLOADING, its status says why
//	(none)    --RegisterModel--> READY: a job's result, or the shipped base model
//	any       --UpdateModel-->   the same
//	any       --DeleteModel-->   (none)
var Models = NewKind("models", map[string]Event[Model]{
	"model.created.v1":    ModelCreated{},
	"model.accepted.v1":   ModelAccepted{},
	"model.rejected.v1":   ModelRejected{},
	"model.registered.v1": ModelRegistered{},
	"model.updated.v1":    ModelUpdated{},
	"model.deleted.v1":    ModelDeleted{},
})

// Model states and kinds.
const (
	ModelUploading = "UPLOADING"
	ModelReady     = "READY"

	BaseModel = "HF_BASE_MODEL"
	PEFTAddon = "HF_PEFT_ADDON"
)

// ModelSpec is what the caller sets.
type ModelSpec struct {
	DisplayName string `json:"displayName"`
	Description string `json:"description"`
	Kind        string `json:"kind"`
	BaseModel   string `json:"baseModel,omitempty"` // of an addon; of a fine-tune, what it came from
	Public      bool   `json:"public"`              // may be read and deployed from any account
}

// ModelFacts are what the weights themselves say.
type ModelFacts struct {
	ModelType      string   `json:"modelType"` // "llama"
	ParameterCount Count    `json:"parameterCount"`
	ContextLength  int      `json:"contextLength"` // tokens
	LoraRank       int      `json:"loraRank,omitempty"`
	LoraTargets    []string `json:"loraTargetModules,omitempty"`
	Embedding      bool     `json:"embedding,omitempty"` // makes vectors, not text
}

// Files maps the names of stored files to their sizes in bytes. Folder is
// where they lie in the blob bucket, ending in a slash.
type Files struct {
	Folder string           `json:"folder"`
	Sizes  map[string]int64 `json:"sizes"`
}

// Model is the state of one model.
type Model struct {
	ModelSpec
	ModelFacts
	State     string `json:"state"`
	Status    Status `json:"status"`
	Files     Files  `json:"files"`
	SourceJob Name   `json:"sourceJob,omitempty"` // the job that made it
	CreatedBy string `json:"createdBy"`
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

type ModelAccepted struct {
	ModelFacts
	Files Files `json:"files"`
}

func (e ModelAccepted) Evolve(m *Model) {
	m.ModelFacts, m.Files, m.State, m.Status = e.ModelFacts, e.Files, ModelReady, StatusOf(nil)
}

type ModelRejected struct {
	Status Status `json:"status"`
}

func (e ModelRejected) Evolve(m *Model) { m.Status = e.Status }

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

// AcceptModel records that uploaded weights were read and found whole.
type AcceptModel struct {
	ModelFacts
	Files Files
}

func (c AcceptModel) Decide(m Model, _ time.Time) (Event[Model], error) {
	switch {
	case !m.Exists():
		return nil, gone("model")
	case m.State == ModelReady && maps.Equal(m.Files.Sizes, c.Files.Sizes) && m.Files.Folder == c.Files.Folder:
		return nil, nil
	case m.State == ModelReady:
		return nil, precondition("MODEL_READY", "the model is READY and its weights can no longer change")
	}
	return ModelAccepted(c), nil
}

// RejectModel records why uploaded weights cannot be used.
type RejectModel struct{ Status Status }

func (c RejectModel) Decide(m Model, _ time.Time) (Event[Model], error) {
	switch {
	case !m.Exists():
		return nil, gone("model")
	case m.State == ModelReady:
		return nil, precondition("MODEL_READY", "the model is READY")
	case m.Status == c.Status:
		return nil, nil
	}
	return ModelRejected(c), nil
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
	case m.Exists() && m.SourceJob == c.SourceJob && m.Files.Folder == c.Files.Folder:
		return nil, nil
	case m.Exists():
		return nil, exists("a model")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	return ModelRegistered(c), nil
}

// UpdateModel replaces what the caller sets; kind and baseModel stay.
type UpdateModel struct{ ModelSpec }

func (c UpdateModel) Decide(m Model, _ time.Time) (Event[Model], error) {
	var v Violations
	v.Require(c.Kind == m.Kind, "kind", "cannot change")
	v.Require(c.BaseModel == m.BaseModel, "baseModel", "cannot change")
	checkText(&v, c.DisplayName, c.Description)
	switch {
	case !m.Exists():
		return nil, gone("model")
	case m.ModelSpec == c.ModelSpec:
		return nil, nil
	}
	return ModelUpdated(c), v.Err()
}

// DeleteModel removes the model. Who asks makes sure that nothing serves it.
type DeleteModel struct{}

func (DeleteModel) Decide(m Model, _ time.Time) (Event[Model], error) {
	if !m.Exists() {
		return nil, gone("model")
	}
	return ModelDeleted{}, nil
}

func (s ModelSpec) check() error {
	var v Violations
	checkText(&v, s.DisplayName, s.Description)
	v.Require(s.Kind != "", "kind", "must be %s or %s", BaseModel, PEFTAddon)
	oneOf(&v, "kind", s.Kind, BaseModel, PEFTAddon)
	reference(&v, "baseModel", s.BaseModel, "models")
	v.Require(s.Kind != PEFTAddon || s.BaseModel != "", "baseModel", "is required for an addon")
	return v.Err()
}
