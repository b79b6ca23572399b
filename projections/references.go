package projections

import (
	"iter"
	"slices"
	"strings"

	"anneal/domain"
)

// Users returns the live resources that work with a resource, in the order of
// kinds and then names: what they name cannot be deleted from under them. It is
// the one place that says who uses what.
func (v *View) Users(name domain.Name) (users []domain.Name) {
	for user, used := range v.References() {
		if used == name && user != name && !slices.Contains(users, user) {
			users = append(users, user)
		}
	}
	return users
}

// References yields each live resource with each resource that it works with.
// What is named and empty, or of another kind, is left to the reader to ignore.
func (v *View) References() iter.Seq2[domain.Name, domain.Name] {
	return func(yield func(user, used domain.Name) bool) {
		for _, users := range []iter.Seq2[domain.Name, []string]{v.jobReferences(), v.deploymentReferences(), v.otherReferences()} {
			for user, names := range users {
				for _, used := range names {
					if used != "" && !yield(user, domain.Name(used)) {
						return
					}
				}
			}
		}
	}
}

// jobReferences is what jobs that have not ended name: rows, models, the
// evaluator, secrets, and the deployments that get their weights.
func (v *View) jobReferences() iter.Seq2[domain.Name, []string] {
	return func(yield func(domain.Name, []string) bool) {
		for use := range jobUses.All(v) {
			if use.life.Terminal() || use.life.Leaving() {
				continue
			}
			if in := use.life.Inputs; in != nil {
				use.names = append(use.names, string(in.Train), string(in.Evaluation))
			}
			if !yield(use.name, use.names) {
				return
			}
		}
	}
}

type jobUse struct {
	name  domain.Name
	life  *domain.JobLife
	names []string
}

var jobUses = JobShown[jobUse]{
	Supervised: func(row *Row[domain.SupervisedJob]) jobUse {
		j := &row.State
		return jobUse{row.Name, &j.JobLife, append(secretsOf(j.ObjectStoreConfig, nil), j.Dataset, j.EvaluationDataset, j.BaseModel, j.WarmStartFrom)}
	},
	Preference: func(row *Row[domain.DPOJob]) jobUse {
		j := &row.State
		return jobUse{row.Name, &j.JobLife, []string{j.Dataset, j.TrainingConfig.BaseModel, j.TrainingConfig.WarmStartFrom}}
	},
	Reinforcement: func(row *Row[domain.ReinforcementJob]) jobUse {
		j := &row.State
		return jobUse{row.Name, &j.JobLife, append(secretsOf(j.ObjectStoreConfig, j.BlobStoreConfig),
			j.Dataset, j.EvaluationDataset, j.Evaluator, j.TrainingConfig.BaseModel, j.TrainingConfig.WarmStartFrom)}
	},
	Trainer: func(row *Row[domain.TrainerJob]) jobUse {
		j := &row.State
		names := append(secretsOf(j.ObjectStoreConfig, nil), j.Dataset, j.EvaluationDataset, j.Step.Dataset,
			j.TrainingConfig.BaseModel, j.TrainingConfig.WarmStartFrom, string(j.From()))
		for _, target := range j.HotLoadTargets(row.Name.Account()) {
			names = append(names, string(target))
		}
		return jobUse{row.Name, &j.JobLife, names}
	},
}

// secretsOf is the secrets of a job's settings.
func secretsOf(store *domain.ObjectStoreConfig, blobs *domain.BlobStoreConfig) (named []string) {
	if store != nil {
		named = append(named, store.CredentialsSecret)
	}
	if blobs != nil {
		named = append(named, blobs.CredentialsSecret)
	}
	return named
}

// deploymentReferences is what live deployments, and the models loaded into
// them, name: models, and the shape that a deployment was made by.
func (v *View) deploymentReferences() iter.Seq2[domain.Name, []string] {
	return func(yield func(domain.Name, []string) bool) {
		for row := range v.Deployments.All() {
			d := &row.State
			if !d.Live() {
				continue
			}
			names := []string{d.BaseModel, d.Drafter(), string(namedShape(d.DeploymentShape))}
			if hot := d.Hot.Served; hot != nil {
				names = append(names, string(hot.Model))
			}
			if !yield(row.Name, names) {
				return
			}
		}
		for row := range v.DeployedModels.All() {
			if !yield(row.Name, []string{row.State.Model}) {
				return
			}
		}
	}
}

// namedShape is the shape that a deployment names, by itself or by a version.
func namedShape(named string) domain.Name {
	shape, _, _ := strings.Cut(named, "/versions/")
	return domain.Name(shape)
}

// otherReferences is what shapes, adapters, evaluators and datasets in the making name.
func (v *View) otherReferences() iter.Seq2[domain.Name, []string] {
	return func(yield func(domain.Name, []string) bool) {
		for row := range v.Shapes.All() {
			if newest := row.State.Newest(); !yield(row.Name, []string{newest.BaseModel, newest.DraftModel}) {
				return
			}
		}
		for row := range v.Models.All() {
			if row.State.Kind == domain.PEFTAddon && !yield(row.Name, []string{row.State.BaseModel}) {
				return
			}
		}
		for row := range v.Evaluators.All() {
			if !yield(row.Name, row.State.Secrets) {
				return
			}
		}
		for row := range v.Datasets.All() {
			if row.State.Filling() && !yield(row.Name, []string{string(row.State.From.Source)}) {
				return
			}
		}
	}
}
