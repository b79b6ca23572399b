package api

import (
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// Model is a model on the wire.
type Model struct {
	Name              string                 `json:"name" api:"output"`
	DisplayName       string                 `json:"displayName"`
	Description       string                 `json:"description"`
	Kind              string                 `json:"kind"`
	BaseModel         string                 `json:"baseModel,omitempty"`
	Public            bool                   `json:"public"`
	Speech            *domain.SpeechSettings `json:"speech,omitempty"`
	CreateTime        *time.Time             `json:"createTime,omitempty" api:"output"`
	UpdateTime        *time.Time             `json:"updateTime,omitempty" api:"output"`
	State             string                 `json:"state" api:"output"`
	Status            domain.Status          `json:"status" api:"output"`
	CreatedBy         string                 `json:"createdBy,omitempty" api:"output"`
	ModelType         string                 `json:"modelType,omitempty" api:"output"`
	ParameterCount    domain.Count           `json:"parameterCount" api:"output"`
	ContextLength     int                    `json:"contextLength" api:"output"`
	Precision         string                 `json:"precision,omitempty" api:"output"` // FP32, BF16, FP16 …: as most of its numbers are stored
	Embedding         bool                   `json:"embedding,omitempty" api:"output"` // it makes vectors, not text
	LoraRank          int                    `json:"loraRank,omitempty" api:"output"`
	LoraTargetModules []string               `json:"loraTargetModules,omitempty" api:"output"`
	SourceJob         string                 `json:"sourceJob,omitempty" api:"output"`
	SizeBytes         domain.Count           `json:"sizeBytes" api:"output"`
	Copies            []ModelCopy            `json:"copies,omitempty" api:"output"`
}

// ModelCopy is a copy of a model in another precision, on the wire.
type ModelCopy struct {
	Precision  string        `json:"precision" api:"output"`
	State      string        `json:"state" api:"output"`
	Status     domain.Status `json:"status" api:"output"`
	UpdateTime *time.Time    `json:"updateTime,omitempty" api:"output"`
	SizeBytes  domain.Count  `json:"sizeBytes" api:"output"`
}

var models = &resource[domain.Model, Model]{
	kind: domain.Models, noun: "model", wrapper: "model", idParam: "modelId", reads: request.ReadModels, writes: request.Write,
	fields: storedFieldsOf[domain.Model, Model]("name", "displayName", "description", "kind", "baseModel", "public", "createTime", "updateTime", "state",
		"createdBy", "modelType", "parameterCount", "contextLength", "precision", "embedding", "loraRank"),
	public:  func(m *domain.Model) bool { return m.Public },
	render:  renderModel,
	prepare: prepareModel,
	create: func(c *call, _ domain.Name, given *Model) domain.Command[domain.Model] {
		return domain.CreateModel{CreatedBy: string(c.Principal.Key), ModelSpec: given.spec()}
	},
	update: func(_ domain.Model, merged, _ *Model, _ wire.Mask) (domain.Command[domain.Model], error) {
		return domain.UpdateModel{ModelSpec: merged.spec()}, nil
	},
	remove: func(c *call, row *projections.Row[domain.Model], _ *request.Params) (domain.Command[domain.Model], error) {
		return domain.DeleteModel{}, nil
	},
}

func (m *Model) spec() domain.ModelSpec {
	return domain.ModelSpec{DisplayName: m.DisplayName, Description: m.Description, Kind: m.Kind, BaseModel: m.BaseModel, Public: m.Public, Speech: m.Speech}
}

// prepareModel fills in the kind of a new model, and looks at what a model is
// said to come from. What is public is seen by every account: that takes the
// role to publish.
func prepareModel(c *call, _ domain.Name, given *Model, extra map[string]string, v *domain.Violations) error {
	if given.Public {
		if err := c.Principal.Require(request.Publish); err != nil {
			return err
		}
	}
	if extra == nil { // an update: kind and baseModel stay
		return nil
	}
	switch {
	case given.Kind != "":
	case given.Speech != nil:
		given.Kind = domain.SpeechModel
	case given.BaseModel != "":
		given.Kind = domain.PEFTAddon
	default:
		given.Kind = domain.BaseModel
	}
	if _, ok := domain.ParseName(given.BaseModel, domain.Models.Collection); !ok {
		return nil // the decision says what is wrong with its form
	}
	base, ok := c.UsableModel(c.Account, given.BaseModel)
	v.Require(ok, "model.baseModel", "names no model that accounts/%s may use: create it first, or correct the name", c.Account)
	v.Require(!ok || given.Kind != domain.PEFTAddon || base.State.Kind == domain.BaseModel, "model.baseModel", "is an addon itself: name the model that both are for")
	return nil
}

func renderModel(_ *projections.View, row *projections.Row[domain.Model], out *Model) {
	m := &row.State
	*out = Model{Name: string(row.Name), DisplayName: m.DisplayName, Description: m.Description, Kind: m.Kind, BaseModel: m.BaseModel,
		Public: m.Public, Speech: m.Speech, CreateTime: wire.TimestampOf(&row.CreateTime), UpdateTime: wire.TimestampOf(&row.UpdateTime), State: m.State, Status: m.Status,
		CreatedBy: m.CreatedBy, ModelType: m.ModelType, ParameterCount: m.ParameterCount, ContextLength: m.ContextLength,
		Precision: m.Precision, Embedding: m.Embedding, LoraRank: m.LoraRank, LoraTargetModules: m.LoraTargets, SourceJob: string(m.SourceJob)}
	if m.State == domain.ModelUploading {
		out.Status = waitsForFiles(out.Status)
	}
	out.SizeBytes = sizeOf(m.Files)
	for _, precision := range wire.SortedKeys(m.Copies) {
		made := m.Copies[precision]
		out.Copies = append(out.Copies, ModelCopy{Precision: precision, State: made.State, Status: made.Status, UpdateTime: wire.Timestamp(made.Time), SizeBytes: sizeOf(made.Files)})
	}
}

// sizeOf is the bytes of all files.
func sizeOf(files domain.Files) domain.Count {
	sum := domain.Count(0)
	for _, size := range files.Sizes {
		sum += domain.Count(size)
	}
	return sum
}
