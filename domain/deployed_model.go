package domain

import "time"

// A deployed model is an addon that is loaded into a deployment of its base model. A deployment can
// have several. A request names the addon that serves it; a request that names only the deployment
// is served by the default addon, if there is one, or else by the base model.
//
//	(none)             --CreateDeployedModel--> DEPLOYING
//	DEPLOYING          --MarkModelDeployed--> DEPLOYED, when every ready replica has it
//	DEPLOYING|DEPLOYED --FailDeployedModel-->   FAILED, with the reason
//	any                --UpdateDeployedModel--> state unchanged
//	any                --CedeDefault-->         state unchanged, after another addon became the default
//	any                --UndeployModel-->       UNDEPLOYING: it accepts no more requests
//	UNDEPLOYING        --FinishUndeployment-->  (none), when no replica has it
//
// While a deleted deployment can be undeleted, its addons stay, without replicas:
//
//	DEPLOYING|DEPLOYED --UndeployModel-->        UNDEPLOYING, restorable
//	UNDEPLOYING        --FinishUndeployment-->   UNDEPLOYED
//	UNDEPLOYED         --RestoreDeployedModel--> DEPLOYING, when the deployment is undeleted
//	UNDEPLOYED         --UndeployModel-->        UNDEPLOYING, when the deployment is purged
var DeployedModels = NewKind("deployedModels", map[string]Event[DeployedModel]{
	"deployedModel.created.v1":     DeployedModelCreated{},
	"deployedModel.deployed.v1":    ModelDeployed{},
	"deployedModel.failed.v1":      DeployedModelFailed{},
	"deployedModel.updated.v1":     DeployedModelUpdated{},
	"deployedModel.undeploying.v1": ModelUndeploying{},
	"deployedModel.undeployed.v1":  ModelUndeployed{},
	"deployedModel.restored.v1":    DeployedModelRestored{},
})

// States of a deployed model.
const (
	ModelDeployingState   = "DEPLOYING"
	ModelDeployedState    = "DEPLOYED"
	ModelUndeployingState = "UNDEPLOYING"
	ModelUndeployedState  = "UNDEPLOYED" // the deployment is deleted and can be undeleted
	ModelFailedState      = "FAILED"
)

// MaxAddons is the maximum number of DEPLOYING and DEPLOYED addons of one deployment.
const MaxAddons = 1024

// DefaultAddonSlots is the maximum number of addons that the engine of a replica has loaded at a time
// if the deployment's shape does not say it.
const DefaultAddonSlots = 64

// DeployedModelSpec holds the fields of a deployed model that the caller sets.
type DeployedModelSpec struct {
	DisplayName string `json:"displayName"`
	Description string `json:"description"`
	Model       string `json:"model"`      // name of the addon, which is a model
	Deployment  string `json:"deployment"` // name of a deployment of the addon's base model
	Default     bool   `json:"default"`    // the addon serves requests that name only the deployment
}

// DeployedModel is the state of one deployed model.
type DeployedModel struct {
	DeployedModelSpec
	State     string `json:"state"`
	Status    Status `json:"status"`
	CreatedBy string `json:"createdBy"`
	// DefaultRank decides between several addons of a deployment that are recorded as the
	// default: the highest rank wins. See TakesDefault.
	DefaultRank int  `json:"defaultRank,omitempty"`
	Restorable  bool `json:"restorable,omitempty"` // the UNDEPLOYING addon becomes UNDEPLOYED instead of being removed
}

// Exists implements State.
func (m DeployedModel) Exists() bool { return m.State != "" }

// StateName implements StateNamer.
func (m DeployedModel) StateName() string { return m.State }

// Wanted reports whether the deployment's replicas should load the addon.
func (m DeployedModel) Wanted() bool {
	return m.State == ModelDeployingState || m.State == ModelDeployedState
}

// TakesDefault reports whether m is the default addon instead of o, when both deployed models of a
// deployment are recorded as the default. older is true if m is older than o. The model with
// the higher DefaultRank was made the default last and wins, so that one event replaces the
// default. Two models that were made the default concurrently, or by an earlier version of anneal,
// can have the same rank. Then the model that is Wanted wins. If both or neither are Wanted, the
// older one wins.
func (m DeployedModel) TakesDefault(o DeployedModel, older bool) bool {
	switch {
	case m.DefaultRank != o.DefaultRank:
		return m.DefaultRank > o.DefaultRank
	case !m.Default:
		return false
	case m.Wanted() != o.Wanted():
		return m.Wanted()
	}
	return older
}

// AddonID returns the ID of a deployed model on replicas. The ID contains the creation time, so
// that it differs from the ID of an earlier deployed model with the same name.
func AddonID(deployedModel Name, created time.Time) string {
	return string(deployedModel) + "@" + created.UTC().Format(time.RFC3339Nano)
}

type DeployedModelCreated struct {
	DeployedModelSpec
	CreatedBy   string `json:"createdBy"`
	DefaultRank int    `json:"defaultRank,omitempty"`
}

func (e DeployedModelCreated) Evolve(m *DeployedModel) {
	*m = DeployedModel{DeployedModelSpec: e.DeployedModelSpec, CreatedBy: e.CreatedBy, State: ModelDeployingState,
		Status: StatusOf(nil), DefaultRank: e.DefaultRank}
}

type ModelDeployed struct{}

func (ModelDeployed) Evolve(m *DeployedModel) {
	m.State, m.Status = ModelDeployedState, StatusOf(nil)
}

type DeployedModelFailed struct {
	Status Status `json:"status"`
}

func (e DeployedModelFailed) Evolve(m *DeployedModel) { m.State, m.Status = ModelFailedState, e.Status }

type DeployedModelUpdated struct {
	DeployedModelSpec
	DefaultRank int `json:"defaultRank,omitempty"`
}

func (e DeployedModelUpdated) Evolve(m *DeployedModel) {
	m.DeployedModelSpec, m.DefaultRank = e.DeployedModelSpec, e.DefaultRank
}

type ModelUndeploying struct {
	Reason     string `json:"reason"`
	Restorable bool   `json:"restorable,omitempty"`
}

func (e ModelUndeploying) Evolve(m *DeployedModel) {
	m.State, m.Status, m.Restorable = ModelUndeployingState, Status{OK.String(), e.Reason}, e.Restorable
}

type ModelUndeployed struct {
	Restorable bool `json:"restorable,omitempty"`
}

func (e ModelUndeployed) Evolve(m *DeployedModel) {
	if e.Restorable {
		m.State, m.Restorable = ModelUndeployedState, false
		return
	}
	*m = DeployedModel{}
}

type DeployedModelRestored struct{}

func (DeployedModelRestored) Evolve(m *DeployedModel) {
	m.State, m.Status = ModelDeployingState, StatusOf(nil)
}

// CreateDeployedModel loads an addon into a deployment. The caller checks that the addon fits the
// deployment, and that the deployment has fewer than MaxAddons. DefaultRank of an addon that is the
// default is above the ranks of the deployment's other addons.
type CreateDeployedModel struct {
	DeployedModelSpec
	CreatedBy   string
	DefaultRank int `json:",omitempty"`
}

func (c CreateDeployedModel) Decide(m DeployedModel, _ time.Time) (Event[DeployedModel], error) {
	if m.Exists() {
		return nil, alreadyExists("a deployed model")
	}
	var v Violations
	checkText(&v, c.DisplayName, c.Description)
	v.Require(c.Model != "", "model", "is required: the addon to load")
	reference(&v, "model", c.Model, Models.Collection)
	v.Require(c.Deployment != "", "deployment", "is required: a deployment of the addon's base model")
	reference(&v, "deployment", c.Deployment, Deployments.Collection)
	if err := v.Err(); err != nil {
		return nil, err
	}
	return DeployedModelCreated(c), nil
}

// MarkModelDeployed records that every ready replica has the addon.
type MarkModelDeployed struct{}

func (MarkModelDeployed) Decide(m DeployedModel, _ time.Time) (Event[DeployedModel], error) {
	if m.State == ModelDeployedState {
		return nil, nil
	}
	return ModelDeployed{}, m.must(ModelDeployingState)
}

// FailDeployedModel records that the addon cannot be loaded, or can no longer be served, and why.
type FailDeployedModel struct{ Status Status }

func (c FailDeployedModel) Decide(m DeployedModel, _ time.Time) (Event[DeployedModel], error) {
	if m.State == ModelFailedState {
		return nil, nil
	}
	return DeployedModelFailed(c), m.must(ModelDeployingState, ModelDeployedState)
}

// UpdateDeployedModel replaces the DeployedModelSpec; model and deployment cannot change.
// DefaultRank is the new rank of an addon that becomes the default, as in CreateDeployedModel; 0
// keeps the rank.
type UpdateDeployedModel struct {
	DeployedModelSpec
	DefaultRank int `json:",omitempty"`
}

func (c UpdateDeployedModel) Decide(m DeployedModel, _ time.Time) (Event[DeployedModel], error) {
	if !m.Exists() {
		return nil, notFound("deployed model")
	}
	var v Violations
	checkText(&v, c.DisplayName, c.Description)
	v.Require(c.Model == m.Model, "model", "cannot change: create another deployed model for another addon")
	v.Require(c.Deployment == m.Deployment, "deployment",
		"cannot change: create another deployed model in the other deployment")
	switch err := v.Err(); {
	case err != nil:
		return nil, err
	case c.DeployedModelSpec == m.DeployedModelSpec && c.DefaultRank <= m.DefaultRank:
		return nil, nil
	}
	c.DefaultRank = max(c.DefaultRank, m.DefaultRank)
	return DeployedModelUpdated(c), nil
}

// CedeDefault records that the addon is not the default any more, because another addon of its
// deployment has become the default. Rank is the addon's DefaultRank when the caller decided this;
// if the rank has changed since then, nothing is recorded.
type CedeDefault struct{ Rank int }

func (c CedeDefault) Decide(m DeployedModel, _ time.Time) (Event[DeployedModel], error) {
	if !m.Default || m.DefaultRank != c.Rank {
		return nil, nil
	}
	m.Default = false
	return DeployedModelUpdated{m.DeployedModelSpec, m.DefaultRank}, nil
}

// UndeployModel removes the addon from its deployment. If Restorable is set, because the deployment
// can be undeleted, an addon that is Wanted becomes UNDEPLOYED and is not removed.
type UndeployModel struct {
	Reason     string
	Restorable bool `json:",omitempty"`
}

func (c UndeployModel) Decide(m DeployedModel, _ time.Time) (Event[DeployedModel], error) {
	switch {
	case !m.Exists():
		return nil, notFound("deployed model")
	case m.State == ModelUndeployedState && c.Restorable,
		m.State == ModelUndeployingState && (c.Restorable || !m.Restorable):
		return nil, nil
	}
	return ModelUndeploying{c.Reason, c.Restorable && m.Wanted()}, nil
}

// FinishUndeployment records that no replica has the addon loaded any more.
type FinishUndeployment struct{}

func (FinishUndeployment) Decide(m DeployedModel, _ time.Time) (Event[DeployedModel], error) {
	if !m.Exists() || m.State == ModelUndeployedState {
		return nil, nil
	}
	return ModelUndeployed{m.Restorable}, m.must(ModelUndeployingState)
}

// RestoreDeployedModel loads an UNDEPLOYED addon again, after its deployment was undeleted.
type RestoreDeployedModel struct{}

func (RestoreDeployedModel) Decide(m DeployedModel, _ time.Time) (Event[DeployedModel], error) {
	if m.Wanted() {
		return nil, nil
	}
	return DeployedModelRestored{}, m.must(ModelUndeployedState)
}

func (m DeployedModel) must(allowed ...string) error {
	if !m.Exists() {
		return notFound("deployed model")
	}
	for _, state := range allowed {
		if m.State == state {
			return nil
		}
	}
	return precondition("DEPLOYED_MODEL_STATE", "the deployed model is %s; the operation requires %s", m.State,
		join(allowed))
}
