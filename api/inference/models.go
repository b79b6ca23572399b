package inference

import (
	"cmp"
	"slices"

	"anneal/api/request"
	"anneal/api/routing"
	"anneal/domain"
	"anneal/projections"
)

// An inferenceModel is an entry in the list of models, in the format of OpenAI's API.
type inferenceModel struct {
	ID            string `json:"id"`
	Object        string `json:"object"`
	Created       int64  `json:"created"` // Unix seconds
	OwnedBy       string `json:"owned_by"`
	Kind          string `json:"kind"`
	ContextLength int    `json:"context_length"`
	Deployed      bool   `json:"deployed"` // a request that names only this model reaches a deployment
	Deployment    string `json:"deployment,omitempty"`
}

type inferenceModelList struct {
	Data   []inferenceModel `json:"data"`
	Object string           `json:"object"`
}

// listModels lists the READY models that the caller may use, which are its own and public ones, and
// the aliases of deployments.
func listModels(c *call) (any, error) {
	if err := c.Params().Err(); err != nil {
		return nil, err
	}
	if c.Direct != "" {
		return c.directRouteModels()
	}
	deployed := c.deployedModels()
	// short maps model IDs, without an account, to the indexes of their entries in list
	list, short := []inferenceModel{}, map[string]int{}
	for row := range c.View().Models.All() {
		if row.State.State == domain.ModelReady && (row.State.Public || row.Name.Account() == c.Account) {
			list = append(list, modelEntry(row, deployed[string(row.Name)]))
		}
	}
	for _, long := range list {
		if name := domain.Name(long.ID); name.Account() == c.Account {
			long.ID = name.ID()
			// without the account, the ID refers to a deployment or addon instead of the model
			if !long.Deployed && routing.IsTaken(c.Call, long.ID) {
				if other, err := c.entry(long.ID); err == nil {
					long = other
				}
			}
			short[long.ID] = len(list)
			list = append(list, long)
		}
	}
	for _, alias := range c.aliases() {
		if i, taken := short[alias.ID]; !taken {
			list = append(list, alias)
			// the alias takes precedence over the account's model with that ID, which has no deployment
		} else if !list[i].Deployed {
			list[i] = alias
		}
	}
	slices.SortStableFunc(list, func(a, b inferenceModel) int { return cmp.Compare(rank(b), rank(a)) })
	return inferenceModelList{list, "list"}, nil
}

// aliases returns an entry for each alias of a live deployment.
func (c *call) aliases() (list []inferenceModel) {
	for row := range c.View().Deployments.All() {
		if model, ok := c.View().Models.Get(domain.Name(row.State.BaseModel)); ok && row.State.Live() {
			for _, alias := range row.State.Aliases {
				list = append(list, aliasEntry(alias, row, model))
			}
		}
	}
	return list
}

func aliasEntry(alias string, row *projections.Row[domain.Deployment], model *projections.Row[domain.Model],
) inferenceModel {
	entry := modelEntry(model, true)
	entry.ID, entry.Created, entry.OwnedBy, entry.Deployment = alias, row.CreateTime.Unix(), domain.System,
		string(row.Name)
	return entry
}

// getModel returns the entry of a model, whose id is the name in the request. That may be any name
// that an inference request accepts, or the name of a model without a deployment.
func getModel(c *call) (any, error) {
	if err := c.Params().Err(); err != nil {
		return nil, err
	}
	return c.entry(c.PathValue("model"))
}

// entry returns the entry of the model to which a name refers.
func (c *call) entry(name string) (inferenceModel, error) {
	target, err := routing.Resolve(c.Call, name)
	if row, ok := routing.UsableModel(c.Call, name); err != nil && c.Direct == "" && ok &&
		row.State.State == domain.ModelReady {
		entry := modelEntry(row, false)
		entry.ID = name
		return entry, nil
	}
	if err != nil {
		return inferenceModel{}, err
	}
	row, ok := c.View().Models.Get(target.ModelName(c.View()))
	if !ok {
		return inferenceModel{}, request.NotFound("model", domain.Name(name))
	}
	if slices.Contains(target.State.Aliases, name) {
		return aliasEntry(name, target.Row, row), nil
	}
	entry := modelEntry(row, true)
	entry.ID = name
	return entry, nil
}

// deployedModels returns the set of the models for which a request that names only the model
// reaches a deployment.
func (c *call) deployedModels() map[string]bool {
	deployed := map[string]bool{}
	for row := range c.View().Deployments.All() {
		mine := row.Name.Account() == routing.AccountFor(c.Call, domain.Name(row.State.BaseModel))
		if row.State.Live() && !row.State.DisableAutoDeploy && (mine || routing.ServesEveryAccount(row)) {
			deployed[row.State.BaseModel] = true
		}
	}
	for row := range c.View().DeployedModels.All() {
		deployment, ok := c.View().Deployments.Get(domain.Name(row.State.Deployment))
		if ok && deployment.State.Live() && row.State.Wanted() &&
			row.Name.Account() == routing.AccountFor(c.Call, domain.Name(row.State.Model)) {
			deployed[row.State.Model] = true
		}
	}
	return deployed
}

// directRouteModels lists the base model of the deployment that serves the request's host name, and
// the addons that are loaded into that deployment.
func (c *call) directRouteModels() (any, error) {
	row, err := routing.Deployment(c.Call, c.Direct)
	if err != nil {
		return nil, err
	}
	names := []string{row.State.BaseModel}
	for addon := range c.View().Addons(c.Direct) {
		if addon.State.Wanted() {
			names = append(names, addon.State.Model)
		}
	}
	list := []inferenceModel{}
	for _, name := range names {
		if model, ok := c.View().Models.Get(domain.Name(name)); ok {
			list = append(list, modelEntry(model, true))
		}
	}
	return inferenceModelList{list, "list"}, nil
}

func modelEntry(row *projections.Row[domain.Model], deployed bool) inferenceModel {
	return inferenceModel{ID: string(row.Name), Object: "model", Created: row.CreateTime.Unix(),
		OwnedBy: row.Name.Account(), Kind: row.State.Kind, ContextLength: row.State.ContextLength, Deployed: deployed}
}

// rank returns 1 for a deployed model and 0 for any other, to list deployed models first.
func rank(m inferenceModel) int {
	if m.Deployed {
		return 1
	}
	return 0
}
