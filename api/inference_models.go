package api

import (
	"cmp"
	"slices"

	"anneal/domain"
	"anneal/projections"
)

// An inferenceModel is a model as inference clients list it.
type inferenceModel struct {
	ID            string `json:"id"`
	Object        string `json:"object"`
	Created       int64  `json:"created"` // Unix seconds
	OwnedBy       string `json:"owned_by"`
	Kind          string `json:"kind"`
	ContextLength int    `json:"context_length"`
	Deployed      bool   `json:"deployed"` // asked for by this name alone it answers the caller
	Deployment    string `json:"deployment,omitempty"`
}

type inferenceModelList struct {
	Data   []inferenceModel `json:"data"`
	Object string           `json:"object"`
}

// inferenceModels lists the READY models that the caller may use: its own and
// public ones, and the names that the operator has bound to deployments.
func inferenceModels(c *call) (any, error) {
	if err := c.Params().Err(); err != nil {
		return nil, err
	}
	if c.Direct != "" {
		return c.modelsOfDirect()
	}
	deployed := c.deployedModels()
	list := []inferenceModel{}
	for row := range c.View().Models.All() {
		if row.State.State == domain.ModelReady && (row.State.Public || row.Name.Account() == c.Account) {
			list = append(list, shownToInference(row, deployed[string(row.Name)]))
		}
	}
	for row := range c.View().Deployments.All() {
		if model, ok := c.View().Models.Get(domain.Name(row.State.BaseModel)); ok && row.State.Live() {
			for _, alias := range row.State.Aliases {
				shown := shownToInference(model, true)
				shown.ID, shown.Created, shown.OwnedBy, shown.Deployment = alias, row.CreateTime.Unix(), domain.System, string(row.Name)
				list = append(list, shown)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b inferenceModel) int { return cmp.Compare(rank(b), rank(a)) })
	return inferenceModelList{list, "list"}, nil
}

// deployedModels are those that answer the caller when they are asked for by
// their name alone: what deploymentOf finds.
func (c *call) deployedModels() map[string]bool {
	deployed := map[string]bool{}
	for row := range c.View().Deployments.All() {
		mine := row.Name.Account() == c.asksIn(domain.Name(row.State.BaseModel))
		if row.State.Live() && !row.State.DisableAutoDeploy && (mine || forEveryAccount(row)) {
			deployed[row.State.BaseModel] = true
		}
	}
	for row := range c.View().DeployedModels.All() {
		deployment, ok := c.View().Deployments.Get(domain.Name(row.State.Deployment))
		if ok && deployment.State.Live() && row.State.Wanted() && row.Name.Account() == c.asksIn(domain.Name(row.State.Model)) {
			deployed[row.State.Model] = true
		}
	}
	return deployed
}

// modelsOfDirect lists what the deployment of a direct route answers for: its
// model, and the addons that are loaded into it.
func (c *call) modelsOfDirect() (any, error) {
	row, err := c.deployment(c.Direct)
	if err != nil {
		return nil, err
	}
	names := []string{row.State.BaseModel}
	for addon := range c.addonsOf(c.Direct) {
		if addon.State.Wanted() {
			names = append(names, addon.State.Model)
		}
	}
	list := []inferenceModel{}
	for _, name := range names {
		if model, ok := c.View().Models.Get(domain.Name(name)); ok {
			list = append(list, shownToInference(model, true))
		}
	}
	return inferenceModelList{list, "list"}, nil
}

func shownToInference(row *projections.Row[domain.Model], deployed bool) inferenceModel {
	return inferenceModel{ID: string(row.Name), Object: "model", Created: row.CreateTime.Unix(), OwnedBy: row.Name.Account(),
		Kind: row.State.Kind, ContextLength: row.State.ContextLength, Deployed: deployed}
}

// rank puts what answers at once first.
func rank(m inferenceModel) int {
	if m.Deployed {
		return 1
	}
	return 0
}
