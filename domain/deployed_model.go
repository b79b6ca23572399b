package domain

import "time"

// A deployed model is an addon that is loaded into a deployment of its base
// model, beside others: each request says which of them answers.
//
//	(none)             --CreateDeployedModel--> DEPLOYING
//	DEPLOYING          --SettleDeployedModel--> DEPLOYED, when every ready replica has it
//	DEPLOYING|DEPLOYED --FailDeployedModel-->   FAILED, with the reason
//	any                --UpdateDeployedModel--> the same
//	any                --UndeployModel-->       UNDEPLOYING: it takes no more requests
//	UNDEPLOYING        --FinishUndeployment-->  (none), when no replica has it
var DeployedModels = NewKind("deployedModels", map[string]Event[DeployedModel]{
	"deployedModel.created.v1":     DeployedModelCreated{},
	"deployedModel.deployed.v1":    DeployedModelSettled{},
	"deployedModel.failed.v1":      DeployedModelFailed{},
	"deployedModel.updated.v1":     DeployedModelUpdated{},
	"deployedModel.undeploying.v1": ModelUndeploying{},
	"deployedModel.undeployed.v1":  ModelUndeployed{},
})

// States of a deployed model.
const (
	ModelDeployingState   = "DEPLOYING"
	ModelDeployedState    = "DEPLOYED"
	ModelUndeployingState = "UNDEPLOYING"
	ModelFailedState      = "FAILED"
)

// MaxAddons is the most addons of one deployment that are DEPLOYING or DEPLOYED.
const MaxAddons = 64

// DeployedModelSpec is what the caller sets.
type DeployedModelSpec struct {
	DisplayName string `json:"displayName"`
	Description string `json:"description"`
	Model       string `json:"model"`      // the addon
	Deployment  string `json:"deployment"` // of its base model
	Default     bool   `json:"default"`    // it answers when the deployment itself is asked
}

// DeployedModel is the state of one deployed model.
type DeployedModel struct {
	DeployedModelSpec
	State     string `json:"state"`
	Status    Status `json:"status"`
	CreatedBy string `json:"createdBy"`
}

// Exists implements State.
func (m DeployedModel) Exists() bool { return m.State != "" }

// Stage implements Staged.
func (m DeployedModel) Stage() string { return m.State }

// Wanted reports whether the deployment's replicas should have it.
func (m DeployedModel) Wanted() bool {
	return m.State == ModelDeployingState || m.State == ModelDeployedState
}

// AddonID is what a replica calls a deployed model. The time when it was
// created distinguishes it from an earlier one of the name.
func AddonID(deployedModel Name, created time.Time) string {
	return string(deployedModel) + "@" + created.UTC().Format(time.RFC3339Nano)
}

type DeployedModelCreated struct {
	DeployedModelSpec
	CreatedBy string `json:"createdBy"`
}

func (e DeployedModelCreated) Evolve(m *DeployedModel) {
	*m = DeployedModel{DeployedModelSpec: e.DeployedModelSpec, CreatedBy: e.CreatedBy, State: ModelDeployingState, Status: StatusOf(nil)}
}

type DeployedModelSettled struct{}

func (DeployedModelSettled) Evolve(m *DeployedModel) {
	m.State, m.Status = ModelDeployedState, StatusOf(nil)
}

type DeployedModelFailed struct {
	Status Status `json:"status"`
}

func (e DeployedModelFailed) Evolve(m *DeployedModel) { m.State, m.Status = ModelFailedState, e.Status }

type DeployedModelUpdated struct{ DeployedModelSpec }

func (e DeployedModelUpdated) Evolve(m *DeployedModel) { m.DeployedModelSpec = e.DeployedModelSpec }

type ModelUndeploying struct {
	Reason string `json:"reason"`
}

func (e ModelUndeploying) Evolve(m *DeployedModel) {
	m.State, m.Status = ModelUndeployingState, Status{OK.String(), e.Reason}
}

type ModelUndeployed struct{}

func (ModelUndeployed) Evolve(m *DeployedModel) { *m = DeployedModel{} }

// CreateDeployedModel loads an addon into a deployment. The caller makes sure
// that they fit each other, and that the deployment takes one more.
type CreateDeployedModel struct {
	DeployedModelSpec
	CreatedBy string
}

func (c CreateDeployedModel) Decide(m DeployedModel, _ time.Time) (Event[DeployedModel], error) {
	if m.Exists() {
		return nil, exists("a deployed model")
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

// SettleDeployedModel records that every ready replica has the addon.
type SettleDeployedModel struct{}

func (SettleDeployedModel) Decide(m DeployedModel, _ time.Time) (Event[DeployedModel], error) {
	if m.State == ModelDeployedState {
		return nil, nil
	}
	return DeployedModelSettled{}, m.must(ModelDeployingState)
}

// FailDeployedModel records why the addon cannot be loaded, or not any longer.
type FailDeployedModel struct{ Status Status }

func (c FailDeployedModel) Decide(m DeployedModel, _ time.Time) (Event[DeployedModel], error) {
	if m.State == ModelFailedState {
		return nil, nil
	}
	return DeployedModelFailed(c), m.must(ModelDeployingState, ModelDeployedState)
}

// UpdateDeployedModel replaces what the caller sets; model and deployment stay.
type UpdateDeployedModel struct{ DeployedModelSpec }

func (c UpdateDeployedModel) Decide(m DeployedModel, _ time.Time) (Event[DeployedModel], error) {
	if !m.Exists() {
		return nil, gone("deployed model")
	}
	var v Violations
	checkText(&v, c.DisplayName, c.Description)
	v.Require(c.Model == m.Model, "model", "cannot change: load the other addon beside this one")
	v.Require(c.Deployment == m.Deployment, "deployment", "cannot change: load the addon there too")
	switch err := v.Err(); {
	case err != nil:
		return nil, err
	case c.DeployedModelSpec == m.DeployedModelSpec:
		return nil, nil
	}
	return DeployedModelUpdated(c), nil
}

// UndeployModel takes the addon out of its deployment.
type UndeployModel struct{ Reason string }

func (c UndeployModel) Decide(m DeployedModel, _ time.Time) (Event[DeployedModel], error) {
	switch {
	case !m.Exists():
		return nil, gone("deployed model")
	case m.State == ModelUndeployingState:
		return nil, nil
	}
	return ModelUndeploying(c), nil
}

// FinishUndeployment records that no replica has the addon any more.
type FinishUndeployment struct{}

func (FinishUndeployment) Decide(m DeployedModel, _ time.Time) (Event[DeployedModel], error) {
	if !m.Exists() {
		return nil, nil
	}
	return ModelUndeployed{}, m.must(ModelUndeployingState)
}

func (m DeployedModel) must(allowed ...string) error {
	if !m.Exists() {
		return gone("deployed model")
	}
	for _, state := range allowed {
		if m.State == state {
			return nil
		}
	}
	return precondition("DEPLOYED_MODEL_STATE", "the deployed model is %s; this needs %s", m.State, join(allowed))
}
