package domain

import (
	"maps"
	"time"
)

// A model is a set of weights: a base model, a full-parameter fine-tune, a LoRA adapter on a base
// model, or a speech model. Its weights cannot change once it is READY; copies of them in other
// precisions can be prepared (model_copy.go).
//
//	(none)    --CreateModel-->   UPLOADING
//	UPLOADING --UploadModel-->   UPLOADING, its files wait for validation
//	UPLOADING --AcceptModel-->   READY
//	UPLOADING --RejectModel-->   UPLOADING; the status says which files to upload again
//	(none)    --RegisterModel--> READY: the result of a job, or the model shipped with anneal
//	READY     --PrepareModel-->  READY, with a copy that is PREPARING
//	READY     --FinishCopy-->    READY, with a copy that is READY
//	READY     --FailCopy-->      READY, with a copy that is FAILED: prepare it again
//	any       --UpdateModel-->   state unchanged
//	any       --DeleteModel-->   (none)
var Models = referenceable(NewKind("models", map[string]Event[Model]{
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
	SpeechModel = "SPEECH_MODEL" // kind of a model that transcribes speech
)

// ModelKinds lists the kinds of models, in the order in which messages list them.
var ModelKinds = []string{BaseModel, PEFTAddon, SpeechModel}

// ModelSpec holds the fields of a model that the caller sets.
type ModelSpec struct {
	DisplayName string `json:"displayName"`
	Description string `json:"description"`
	Kind        string `json:"kind"`
	// name of an addon's base model, or of the model that was fine-tuned; "" for others
	BaseModel string `json:"baseModel,omitempty"`
	Public    bool   `json:"public"` // other accounts may read and deploy the model

	Speech *SpeechSettings `json:"speech,omitempty"` // settings of a speech model; nil for other models

	// defaults for new deployments, unless the deployment or its shape configures speculative
	// decoding
	DefaultDraftTokenCount        int `json:"defaultDraftTokenCount,omitempty"`
	DefaultNgramSpeculationLength int `json:"defaultNgramSpeculationLength,omitempty"`
}

// ModelMetadata holds the properties of a model that are read from its files.
type ModelMetadata struct {
	ModelType      string   `json:"modelType"` // model_type of config.json, such as "llama"
	ParameterCount Count    `json:"parameterCount"`
	ContextLength  int      `json:"contextLength"`       // maximum length of a context in tokens
	Precision      string   `json:"precision,omitempty"` // precision of most of the stored weights: FP32, BF16, FP16 …
	LoraRank       int      `json:"loraRank,omitempty"`
	LoraTargets    []string `json:"loraTargetModules,omitempty"`
	Embedding      bool     `json:"embedding,omitempty"` // the model generates embeddings, not text
	Vision         bool     `json:"vision,omitempty"`    // the model accepts images
	Attention
}

// Files are the blobs with keys below a prefix: their sizes in bytes, and their SHA-256 sums in
// hexadecimal where they are known, both by name relative to the prefix. A blob with another sum is
// damaged. Prefix ends in a slash.
type Files struct {
	Prefix string            `json:"folder"`
	Sizes  map[string]int64  `json:"sizes"`
	Sums   map[string]string `json:"sums,omitempty"`
}

// Bytes returns the total size of the files in bytes.
func (f Files) Bytes() (sum int64) {
	for _, size := range f.Sizes {
		sum += size
	}
	return sum
}

// Model is the state of one model.
type Model struct {
	ModelSpec
	ModelMetadata
	Deletion
	State     string `json:"state"`
	Status    Status `json:"status"`
	Files     Files  `json:"files"`
	Upload    int    `json:"upload,omitempty"`    // number of the newest upload, 0 before the first
	Validated int    `json:"validated,omitempty"` // number of the newest upload with a validation result
	// violations found in the newest upload; empty unless it was rejected
	Violations []Violation `json:"violations,omitempty"`
	// copies of the weights in other precisions, by precision
	Copies map[string]ModelCopy `json:"copies,omitempty"`
	// name of the job that trained the model; "" if none did
	SourceJob Name   `json:"sourceJob,omitempty"`
	CreatedBy string `json:"createdBy"`
}

// Exists implements State.
func (m Model) Exists() bool { return m.State != "" }

// StateName implements StateNamer.
func (m Model) StateName() string { return m.State }

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
	m.Upload, m.Files, m.Status, m.Violations = e.Upload, e.Files, Status{OK.String(), "the upload is being validated"},
		nil
}

// ModelAccepted records that the newest upload is valid. Note says what the platform cannot do with
// the model; "" if there is no such limitation. Files is set only in events of earlier versions,
// which did not number uploads.
type ModelAccepted struct {
	Upload int `json:"upload,omitempty"`
	ModelMetadata
	Files Files  `json:"files,omitzero"`
	Note  string `json:"note,omitempty"`
}

func (e ModelAccepted) Evolve(m *Model) {
	m.ModelMetadata, m.State, m.Status, m.Validated, m.Violations = e.ModelMetadata, ModelReady,
		Status{OK.String(), e.Note},
		e.Upload, nil
	if e.Files.Prefix != "" {
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
	ModelMetadata
	Files     Files  `json:"files"`
	SourceJob Name   `json:"sourceJob,omitempty"`
	CreatedBy string `json:"createdBy"`
}

func (e ModelRegistered) Evolve(m *Model) {
	*m = Model{ModelSpec: e.ModelSpec, ModelMetadata: e.ModelMetadata, Files: e.Files, SourceJob: e.SourceJob,
		CreatedBy: e.CreatedBy, State: ModelReady, Status: StatusOf(nil)}
}

type ModelUpdated struct{ ModelSpec }

func (e ModelUpdated) Evolve(m *Model) { m.ModelSpec = e.ModelSpec }

type ModelDeleted struct{}

func (ModelDeleted) Evolve(m *Model) { *m = Model{} }

// CreateModel creates a model whose weights will be uploaded.
type CreateModel struct {
	ModelSpec
	CreatedBy string
}

func (c CreateModel) Decide(m Model, _ time.Time) (Event[Model], error) {
	if m.Exists() {
		return nil, alreadyExists("a model")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	return ModelCreated(c), nil
}

// UploadModel records that the files of an upload are stored and wait for validation. Upload is the
// number of the newest upload plus one. The previous upload must have a validation result, because
// the new upload may contain files of the previous one.
type UploadModel struct {
	Upload int
	Files  Files
}

func (c UploadModel) Decide(m Model, _ time.Time) (Event[Model], error) {
	switch {
	case !m.Exists():
		return nil, notFound("model")
	case c.Upload == m.Upload && c.Files.Prefix == m.Files.Prefix && m.Upload > 0:
		return nil, nil
	case m.State == ModelReady:
		return nil, precondition("MODEL_READY", "the model is READY and its weights cannot change: create another model")
	case c.Upload != m.Upload+1:
		return nil, precondition("UPLOAD_SUPERSEDED", "upload %d was recorded before this upload: upload the "+
			"files again if the model does not become READY", m.Upload)
	case m.Upload != m.Validated:
		return nil, precondition("UPLOAD_PENDING", "upload %d is being validated: wait for the result", m.Upload)
	case len(c.Files.Sizes) == 0:
		return nil, precondition("NOTHING_UPLOADED", "no file has been uploaded: upload the model's files, then validate")
	}
	return ModelUploaded(c), nil
}

// AcceptModel records that the weights of an upload are complete and valid.
type AcceptModel struct {
	Upload int
	ModelMetadata
	Note string // says what the platform cannot do with the model; "" if there is no such limitation
}

func (c AcceptModel) Decide(m Model, _ time.Time) (Event[Model], error) {
	if recorded, err := m.resultRecorded(c.Upload, true); recorded || err != nil {
		return nil, err
	}
	return ModelAccepted{Upload: c.Upload, ModelMetadata: c.ModelMetadata, Note: c.Note}, nil
}

// RejectModel records that an upload is invalid, and why.
type RejectModel struct {
	Upload     int
	Status     Status
	Violations []Violation // violations by file; at most 100
}

func (c RejectModel) Decide(m Model, _ time.Time) (Event[Model], error) {
	if recorded, err := m.resultRecorded(c.Upload, false); recorded || err != nil {
		return nil, err
	}
	return ModelRejected(c), nil
}

func (m Model) resultRecorded(upload int, accepted bool) (bool, error) {
	if !m.Exists() {
		return false, notFound("model")
	}
	return uploads{"model", m.State == ModelReady, m.Upload, m.Validated}.resultRecorded(upload, accepted)
}

// RegisterModel creates a READY model from stored weights, such as the result of a job.
type RegisterModel struct {
	ModelSpec
	ModelMetadata
	Files     Files
	SourceJob Name
	CreatedBy string
}

func (c RegisterModel) Decide(m Model, _ time.Time) (Event[Model], error) {
	switch {
	case m.Exists() && m.SourceJob == c.SourceJob && m.Files.Prefix == c.Files.Prefix &&
		maps.Equal(m.Files.Sizes, c.Files.Sizes):
		return nil, nil
	case m.Exists():
		return nil, alreadyExists("a model")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	return ModelRegistered(c), nil
}

// UpdateModel replaces the model's ModelSpec; kind, baseModel and speech.format cannot change.
type UpdateModel struct{ ModelSpec }

func (c UpdateModel) Decide(m Model, _ time.Time) (Event[Model], error) {
	var v Violations
	v.Require(c.Kind == m.Kind, "kind", "cannot change: create another model")
	v.Require(c.BaseModel == m.BaseModel, "baseModel", "cannot change: create another model")
	v.Require(c.Speech.format() == m.Speech.format(), "speech.format", "cannot change: create another model")
	c.checkSpeech(&v)
	c.checkSpeculation(&v)
	checkText(&v, c.DisplayName, c.Description)
	switch {
	case !m.Exists():
		return nil, notFound("model")
	case sameJSON(m.ModelSpec, c.ModelSpec):
		return nil, nil
	}
	return ModelUpdated(c), v.Err()
}

// DeleteModel deletes the model. The caller checks that no resource refers to the model.
type DeleteModel struct{}

func (DeleteModel) Decide(m Model, now time.Time) (Event[Model], error) {
	if !m.Exists() {
		return nil, notFound("model")
	}
	return ModelDeleted{}, m.mayDelete(now)
}

func (s ModelSpec) check() error {
	var v Violations
	checkText(&v, s.DisplayName, s.Description)
	v.Require(s.Kind != "", "kind", "%s", OneOfRule(s.Kind, ModelKinds))
	oneOf(&v, "kind", s.Kind, ModelKinds...)
	reference(&v, "baseModel", s.BaseModel, "models")
	v.Require(s.Kind != PEFTAddon || s.BaseModel != "", "baseModel", "is required for an addon: name its base model")
	s.checkSpeculation(&v)
	s.checkSpeech(&v)
	return v.Err()
}

func (s ModelSpec) checkSpeculation(v *Violations) {
	check := func(field string, n int) {
		v.Require(n >= 0, field, "must not be negative")
		v.Require(n == 0 || s.Kind == BaseModel, field, "is for models of kind %s only: leave it out", BaseModel)
	}
	check("defaultDraftTokenCount", s.DefaultDraftTokenCount)
	check("defaultNgramSpeculationLength", s.DefaultNgramSpeculationLength)
}

// WithSpeculationOf returns the spec with the speculative decoding settings that the base model m
// has as defaults, unless the spec has such settings of its own.
func (s DeploymentSpec) WithSpeculationOf(m ModelSpec) DeploymentSpec {
	if s.DraftModel == nil && s.DraftTokenCount == 0 && s.NgramSpeculationLength == 0 && !s.EnableMTP {
		s.DraftTokenCount, s.NgramSpeculationLength = m.DefaultDraftTokenCount, m.DefaultNgramSpeculationLength
	}
	return s
}

// checkSpeech adds a violation to v if a speech model has no speech settings, or another model has
// some.
func (s ModelSpec) checkSpeech(v *Violations) {
	v.Require(s.Kind == SpeechModel || s.Speech == nil, "speech",
		"is for models of kind %s: leave speech out, or set that kind", SpeechModel)
	v.Require(s.Kind != SpeechModel || s.Speech != nil, "speech",
		"is required for a speech model: set its format to one of %s", join(SpeechFormats))
	if s.Speech != nil {
		s.Speech.check(v)
	}
}
