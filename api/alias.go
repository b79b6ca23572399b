package api

import (
	"slices"

	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// The names that the interface has for speech models.
var speechAliases = []string{"speech-v3", "speech-v3-turbo"}

// boundTo is the live deployment that the operator bound to an alias. Of two that
// were bound at the same moment the older one answers.
func boundTo(v *projections.View, alias string) (found *projections.Row[domain.Deployment]) {
	for row := range v.Deployments.All() {
		older := found == nil || row.CreateTime.Before(found.CreateTime)
		if row.State.Live() && older && slices.Contains(row.State.Aliases, alias) {
			found = row
		}
	}
	return found
}

// forEveryAccount tells whether a deployment answers every account, since the operator
// has bound it to a name.
func forEveryAccount(row *projections.Row[domain.Deployment]) bool { return len(row.State.Aliases) > 0 }

// sharedOf is the deployment of a model that answers every account: the one with
// the most ready replicas, and the first by name of several.
func sharedOf(v *projections.View, model domain.Name) (best *projections.Row[domain.Deployment]) {
	for row := range v.Deployments.All() {
		if row.State.BaseModel != string(model) || !forEveryAccount(row) || !row.State.Live() || row.State.DisableAutoDeploy {
			continue
		}
		if best == nil || row.State.ReadyReplicas() > best.State.ReadyReplicas() {
			best = row
		}
	}
	return best
}

// byAlias is the target of a request of any account for an alias.
func (c *call) byAlias(alias string) (target, error) {
	if row := boundTo(c.View(), alias); row != nil {
		return c.unnamed(row, ofDeployment), nil
	}
	if slices.Contains(speechAliases, alias) {
		return target{}, request.NotFoundReason("MODEL_NOT_DEPLOYED", "%s is bound to no deployment: where pocketsphinx and pocketsphinx-en-us are installed beside the server it is bound when that starts; "+
			"the operator can bind any deployment of a speech model with `anneal deployment alias ID %s`", alias, alias)
	}
	return target{}, noSuchModel(alias)
}

// wantAliases requires that no other live deployment has them.
func (c *call) wantAliases(v *domain.Violations, name domain.Name, aliases []string) {
	for _, alias := range aliases {
		if row := boundTo(c.View(), alias); row != nil && row.Name != name {
			v.Add("aliases", "%s is bound to %s: take it from there first, with `anneal deployment alias %s` and the names that it keeps", alias, row.Name, row.Name)
		}
	}
}

// mustAnswer refuses a deployment whose model transcribes.
func (t target) mustAnswer() error {
	var v domain.Violations
	v.Require(t.State.SpeechFormat == "", "model", "%s transcribes speech, and answers no prompts: /v1/audio/transcriptions asks it", t.Name)
	return v.Err()
}

// mustListen refuses a deployment whose model answers prompts.
func (t target) mustListen() error {
	var v domain.Violations
	v.Require(t.State.SpeechFormat != "", "model", "%s answers prompts, and transcribes no speech: /inference/v1/completions asks it; name a speech model here, such as %s", t.Name, speechAliases[0])
	return v.Err()
}
