package rest

import (
	"time"

	"anneal/api/request"
	"anneal/api/upload"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// Model is the wire type of a model.
type Model struct {
	Name        string                 `json:"name" api:"output"`
	DisplayName string                 `json:"displayName"`
	Description string                 `json:"description"`
	Kind        string                 `json:"kind"`
	BaseModel   string                 `json:"baseModel,omitempty"`
	Public      bool                   `json:"public"`
	Speech      *domain.SpeechSettings `json:"speech,omitempty"`

	DefaultDraftTokenCount        int `json:"defaultDraftTokenCount,omitempty"`
	DefaultNgramSpeculationLength int `json:"defaultNgramSpeculationLength,omitempty"`

	CreateTime     *time.Time    `json:"createTime,omitempty" api:"output"`
	UpdateTime     *time.Time    `json:"updateTime,omitempty" api:"output"`
	State          string        `json:"state" api:"output"`
	Status         domain.Status `json:"status" api:"output"`
	CreatedBy      string        `json:"createdBy,omitempty" api:"output"`
	ModelType      string        `json:"modelType,omitempty" api:"output"`
	ParameterCount domain.Count  `json:"parameterCount" api:"output"`
	ContextLength  int           `json:"contextLength" api:"output"`
	// Precision is the number format of most stored parameters, such as FP32, BF16 or FP16.
	Precision         string       `json:"precision,omitempty" api:"output"`
	Embedding         bool         `json:"embedding,omitempty" api:"output"` // the model computes embeddings
	ImageInput        bool         `json:"supportsImageInput,omitempty" api:"output"`
	LoraRank          int          `json:"loraRank,omitempty" api:"output"`
	LoraTargetModules []string     `json:"loraTargetModules,omitempty" api:"output"`
	SourceJob         string       `json:"sourceJob,omitempty" api:"output"`
	SizeBytes         domain.Count `json:"sizeBytes" api:"output"`
	Copies            []ModelCopy  `json:"copies,omitempty" api:"output"`
}

// ModelCopy is the wire type of a copy of a model in another precision.
type ModelCopy struct {
	Precision  string        `json:"precision" api:"output"`
	State      string        `json:"state" api:"output"`
	Status     domain.Status `json:"status" api:"output"`
	UpdateTime *time.Time    `json:"updateTime,omitempty" api:"output"`
	SizeBytes  domain.Count  `json:"sizeBytes" api:"output"`
}

var models = &resource[domain.Model, Model]{
	kind: domain.Models, noun: "model", wrapper: "model", idParam: "modelId", reads: request.ReadModels,
	writes: request.Write,
	fields: storedFieldsOf[domain.Model, Model]("name", "displayName", "description", "kind", "baseModel", "public",
		"createTime", "updateTime", "state",
		"modelType", "parameterCount", "contextLength", "precision", "embedding", "loraRank"),
	public:    func(m *domain.Model) bool { return m.Public },
	render:    renderModel,
	creator:   func(m *domain.Model) string { return m.CreatedBy },
	dependent: map[string]func(*projections.Row[domain.Model]) bool{},
	create: func(c *call, q *creation[Model]) (plan[domain.Model, Model], error) {
		err := mayPublish(c, q.given)
		q.given.Kind = kindOf(q.given)
		requireBase(c, &q.p.Violations, q.given)
		if _, exists := c.View().Models.Get(q.name); !exists {
			c.requireUnreserved(&q.p.Violations, "modelId", q.name, "")
		}
		return plan[domain.Model, Model]{
			command: domain.CreateModel{CreatedBy: string(c.Principal.Key), ModelSpec: q.given.spec()}}, err
	},
	update: func(c *call, q *update[domain.Model, Model]) (plan[domain.Model, Model], error) {
		return plan[domain.Model, Model]{command: domain.UpdateModel{ModelSpec: q.merged.spec()}}, mayPublish(c, q.given)
	},
	remove: func(c *call, row *projections.Row[domain.Model], _ *request.Params) (domain.Command[domain.Model], error) {
		return domain.DeleteModel{}, nil
	},
}

var _ = register(models.operations, modelOperations)

func (m *Model) spec() domain.ModelSpec {
	return domain.ModelSpec{DisplayName: m.DisplayName, Description: m.Description, Kind: m.Kind, BaseModel: m.BaseModel,
		Public: m.Public, Speech: m.Speech, DefaultDraftTokenCount: m.DefaultDraftTokenCount,
		DefaultNgramSpeculationLength: m.DefaultNgramSpeculationLength}
}

// mayPublish returns an error if a request makes a model public, but the principal does not have
// the permission to publish. All accounts can use a public model.
func mayPublish(c *call, given *Model) error {
	if given.Public {
		return c.Principal.Require(request.Publish)
	}
	return nil
}

// kindOf returns the kind of a new model: the kind in the request or, without one, the kind that
// its other fields imply.
func kindOf(given *Model) string {
	switch {
	case given.Kind != "":
		return given.Kind
	case given.Speech != nil:
		return domain.SpeechModel
	case given.BaseModel != "":
		return domain.PEFTAddon
	}
	return domain.BaseModel
}

// requireBase adds a violation if the baseModel of a new model does not exist, or if the baseModel
// of an addon is an addon itself.
func requireBase(c *call, v *domain.Violations, given *Model) {
	if _, ok := domain.ParseName(given.BaseModel, domain.Models.Collection); !ok {
		return // the command's Decide rejects a malformed baseModel
	}
	base, ok := c.UsableModel(c.Account, given.BaseModel)
	v.Require(ok, "model.baseModel", "%s is not a model that accounts/%s may use: create it first, or correct the "+
		"name", given.BaseModel, c.Account)
	v.Require(!ok || given.Kind != domain.PEFTAddon || base.State.Kind == domain.BaseModel, "model.baseModel",
		"%s is an addon itself: set baseModel to the base model of that addon", given.BaseModel)
}

func renderModel(v *projections.View, row *projections.Row[domain.Model], out *Model) {
	m := &row.State
	*out = Model{Name: string(row.Name), DisplayName: m.DisplayName, Description: m.Description, Kind: m.Kind,
		BaseModel: m.BaseModel,
		Public:    m.Public, Speech: m.Speech, CreateTime: wire.TimestampOf(&row.CreateTime),
		UpdateTime: wire.TimestampOf(&row.UpdateTime), State: m.State, Status: m.Status,
		CreatedBy: creatorOf(v, m.CreatedBy), ModelType: m.ModelType, ParameterCount: m.ParameterCount,
		ContextLength: m.ContextLength, Precision: m.Precision, Embedding: m.Embedding, ImageInput: m.Vision,
		LoraRank:          m.LoraRank,
		LoraTargetModules: m.LoraTargets,
		SourceJob:         string(m.SourceJob), DefaultDraftTokenCount: m.DefaultDraftTokenCount,
		DefaultNgramSpeculationLength: m.DefaultNgramSpeculationLength}
	if m.State == domain.ModelUploading {
		out.Status = upload.AwaitsFiles(out.Status)
	}
	out.SizeBytes = sizeOf(m.Files)
	for _, precision := range wire.SortedKeys(m.Copies) {
		prepared := m.Copies[precision]
		out.Copies = append(out.Copies,
			ModelCopy{Precision: precision, State: prepared.State, Status: prepared.Status,
				UpdateTime: wire.Timestamp(prepared.Time),
				SizeBytes:  sizeOf(prepared.Files)})
	}
}

// sizeOf returns the total size of files in bytes.
func sizeOf(files domain.Files) domain.Count {
	sum := domain.Count(0)
	for _, size := range files.Sizes {
		sum += domain.Count(size)
	}
	return sum
}
