package routing

import (
	"slices"

	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// speechAliases lists the aliases that the API reserves for speech models.
var speechAliases = []string{"speech-v3", "speech-v3-turbo"}

// BoundTo returns the live deployment to which the operator has bound an alias; nil if there is
// none. If two deployments were bound to it at the same time, it returns the older one.
func BoundTo(v *projections.View, alias string) (found *projections.Row[domain.Deployment]) {
	for row := range v.Deployments.All() {
		older := found == nil || row.CreateTime.Before(found.CreateTime)
		if row.State.Live() && older && slices.Contains(row.State.Aliases, alias) {
			found = row
		}
	}
	return found
}

// ServesEveryAccount reports whether all accounts may use the deployment, because the operator has
// bound an alias to it.
func ServesEveryAccount(row *projections.Row[domain.Deployment]) bool {
	return len(row.State.Aliases) > 0
}

// sharedOf returns the live deployment of a model that serves all accounts; nil if there is none.
// Of several, it chooses the one with the most ready replicas, and the first by name among equals.
func sharedOf(v *projections.View, model domain.Name) (best *projections.Row[domain.Deployment]) {
	for row := range v.Deployments.All() {
		if row.State.BaseModel != string(model) || !ServesEveryAccount(row) || !row.State.Live() ||
			row.State.DisableAutoDeploy {
			continue
		}
		if best == nil || row.State.ReadyReplicas() > best.State.ReadyReplicas() {
			best = row
		}
	}
	return best
}

// byAlias returns the target of a request whose model is an alias. All accounts may use an alias.
func byAlias(c *request.Call, alias string) (Target, error) {
	if row := BoundTo(c.View(), alias); row != nil {
		return withChosenAddon(c, row, addonOfDeployment), nil
	}
	if slices.Contains(speechAliases, alias) {
		return Target{}, request.NotFoundReason("MODEL_NOT_DEPLOYED",
			"the model alias %s is not bound to a deployment: install pocketsphinx and pocketsphinx-en-us on the server's "+
				"machine and "+
				"restart the server, or, as the operator, bind a deployment of a speech model with "+
				"`anneal deployment alias ID %s`", alias, alias)
	}
	return Target{}, request.NotFoundReason("MODEL_NOT_FOUND",
		"there is no model %s: it is neither an alias nor the ID of a model, deployment or deployed model of "+
			"accounts/%s; GET "+
			"/inference/v1/models lists the available models", alias, c.Principal.Account)
}

// RequireText returns an error if the target's model transcribes speech.
func (t Target) RequireText() error {
	var v domain.Violations
	v.Require(t.State.SpeechFormat == "", "model",
		"%s serves a speech model, which cannot complete prompts: send recordings to /v1/audio/transcriptions, or name a "+
			"text model", t.Name)
	return v.Err()
}

// RequireSpeech returns an error unless the target's model transcribes speech.
func (t Target) RequireSpeech() error {
	var v domain.Violations
	v.Require(t.State.SpeechFormat != "", "model",
		"%s serves a text model, which cannot transcribe speech: send prompts to /inference/v1/completions, or name a "+
			"speech model, such as %s", t.Name, speechAliases[0])
	return v.Err()
}
