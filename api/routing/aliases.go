package routing

import (
	"slices"

	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// speechAliases are the aliases that the API defines for speech models.
var speechAliases = []string{"speech-v3", "speech-v3-turbo"}

// BoundTo returns the live deployment that the operator has bound to an alias, or nil when there is
// none. When two deployments were bound concurrently, it returns the older deployment.
func BoundTo(v *projections.View, alias string) (found *projections.Row[domain.Deployment]) {
	for row := range v.Deployments.All() {
		older := found == nil || row.CreateTime.Before(found.CreateTime)
		if row.State.Live() && older && slices.Contains(row.State.Aliases, alias) {
			found = row
		}
	}
	return found
}

// ServesEveryAccount reports whether the operator has bound a deployment to an alias.
func ServesEveryAccount(row *projections.Row[domain.Deployment]) bool {
	return len(row.State.Aliases) > 0
}

// sharedOf returns a live deployment of a model that serves every account, or nil when there is
// none. It chooses the deployment with the most ready replicas, and the first by name when several
// have equally many.
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

// byAlias returns the target of a request for an alias. Every account may use an alias.
func byAlias(c *request.Call, alias string) (Target, error) {
	if row := BoundTo(c.View(), alias); row != nil {
		return unnamed(c, row, ofDeployment), nil
	}
	if slices.Contains(speechAliases, alias) {
		return Target{}, request.NotFoundReason("MODEL_NOT_DEPLOYED",
			"%s is not bound to a deployment: install pocketsphinx and pocketsphinx-en-us on the server's machine and "+
				"restart the server, or, as the operator, bind a deployment of a speech model with "+
				"`anneal deployment alias ID %s`", alias, alias)
	}
	return Target{}, request.NotFoundReason("MODEL_NOT_FOUND",
		"%s is neither the ID of a model, a deployment or a deployed model of accounts/%s nor an alias: GET "+
			"/inference/v1/models lists the available models", alias, c.Principal.Account)
}

// RequireText returns an error when the deployment's model transcribes speech.
func (t Target) RequireText() error {
	var v domain.Violations
	v.Require(t.State.SpeechFormat == "", "model",
		"%s serves a speech model, which completes no prompts: send recordings to /v1/audio/transcriptions, or name a "+
			"text model", t.Name)
	return v.Err()
}

// RequireSpeech returns an error unless the deployment's model transcribes speech.
func (t Target) RequireSpeech() error {
	var v domain.Violations
	v.Require(t.State.SpeechFormat != "", "model",
		"%s serves a text model, which transcribes no speech: send prompts to /inference/v1/completions, or name a "+
			"speech model, such as %s", t.Name, speechAliases[0])
	return v.Err()
}
