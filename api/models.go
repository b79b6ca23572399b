package api

import (
	"slices"
	"strings"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// Model is a model on the wire.
type Model struct {
	Name              string        `json:"name" api:"output"`
	DisplayName       string        `json:"displayName"`
	Description       string        `json:"description"`
	Kind              string        `json:"kind"`
	BaseModel         string        `json:"baseModel,omitempty"`
	Public            bool          `json:"public"`
	CreateTime        *time.Time    `json:"createTime,omitempty" api:"output"`
	UpdateTime        *time.Time    `json:"updateTime,omitempty" api:"output"`
	State             string        `json:"state" api:"output"`
	Status            domain.Status `json:"status" api:"output"`
	CreatedBy         string        `json:"createdBy,omitempty" api:"output"`
	ModelType         string        `json:"modelType,omitempty" api:"output"`
	ParameterCount    domain.Count  `json:"parameterCount" api:"output"`
	ContextLength     int           `json:"contextLength" api:"output"`
	LoraRank          int           `json:"loraRank,omitempty" api:"output"`
	LoraTargetModules []string      `json:"loraTargetModules,omitempty" api:"output"`
	SourceJob         string        `json:"sourceJob,omitempty" api:"output"`
	SizeBytes         domain.Count  `json:"sizeBytes" api:"output"`
}

var models = &resource[domain.Model, Model]{
	kind: domain.Models, noun: "model", reads: toReadModels, writes: toWrite,
	fields: projections.FieldsOf[Model](),
	public: func(m domain.Model) bool { return m.Public },
	render: renderModel,
	update: func(_ domain.Model, merged, _ *Model, _ mask) (domain.Command[domain.Model], error) {
		return domain.UpdateModel{ModelSpec: domain.ModelSpec{DisplayName: merged.DisplayName, Description: merged.Description,
			Kind: merged.Kind, BaseModel: merged.BaseModel, Public: merged.Public}}, nil
	},
	remove: func(c *call, row *projections.Row[domain.Model], _ *params) (domain.Command[domain.Model], error) {
		return domain.DeleteModel{}, modelUnused(c, row.Name)
	},
	after: func(c *call, row *projections.Row[domain.Model]) {
		c.deleteFolder(row.State.Files.Folder)
	},
}

func renderModel(_ *projections.View, row *projections.Row[domain.Model], out *Model) {
	m := &row.State
	*out = Model{Name: string(row.Name), DisplayName: m.DisplayName, Description: m.Description, Kind: m.Kind, BaseModel: m.BaseModel,
		Public: m.Public, CreateTime: stamp(row.CreateTime), UpdateTime: stamp(row.UpdateTime), State: m.State, Status: m.Status,
		CreatedBy: m.CreatedBy, ModelType: m.ModelType, ParameterCount: m.ParameterCount, ContextLength: m.ContextLength,
		LoraRank: m.LoraRank, LoraTargetModules: m.LoraTargets, SourceJob: string(m.SourceJob)}
	for _, size := range m.Files.Sizes {
		out.SizeBytes += domain.Count(size)
	}
}

// modelUnused refuses to take a model away from under what works with it.
func modelUnused(c *call, name domain.Name) error {
	var users []string
	v := c.snapshot()
	for row := range v.Deployments.All() {
		if (row.State.BaseModel == string(name) || row.State.DraftModel == string(name)) && row.State.Live() {
			users = append(users, string(row.Name))
		}
	}
	for use := range uses(v) {
		if slices.Contains(use.models[:], string(name)) {
			users = append(users, string(use.name))
		}
	}
	for row := range v.Shapes.All() {
		if row.State.Newest().BaseModel == string(name) {
			users = append(users, string(row.Name))
		}
	}
	for row := range v.Models.All() {
		if row.State.BaseModel == string(name) && row.State.Kind == domain.PEFTAddon {
			users = append(users, string(row.Name))
		}
	}
	return inUse("model", name, users)
}

// inUse is nil when nothing uses the resource. Users in other accounts are
// counted and not named.
func inUse(noun string, name domain.Name, users []string) error {
	if len(users) == 0 {
		return nil
	}
	var own []string
	for _, user := range users {
		if domain.Name(user).Account() == name.Account() && len(own) < 10 {
			own = append(own, user)
		}
	}
	f := domain.Faultf(domain.FailedPrecondition, "the %s is used by %d resources (of this account: %s): delete them first, or wait until they end", noun, len(users), orNone(strings.Join(own, ", ")))
	f.Reason = "IN_USE"
	return f
}

// deleteFolder clears away files whose resource is gone. What fails here costs
// room, not truth: it is noted.
func (c *call) deleteFolder(folder string) {
	if folder == "" {
		return
	}
	ctx, cancel := c.lasting()
	defer cancel()
	if err := c.Blobs.DeleteFolder(ctx, folder); err != nil {
		c.Logger.Warn("files of a deleted resource were left", "request", c.id, "folder", folder, "error", err)
	}
}
