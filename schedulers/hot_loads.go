package schedulers

import (
	"time"

	"anneal/domain"
	"anneal/projections"
)

// HotLoads offers the weights of trainer jobs to the deployments that the jobs name:
//
//  1. weights whose job or model was deleted are withdrawn, because new replicas could not load
//     them
//  2. in a deployment that is scaled to zero, offered weights replace the served ones immediately, because a
//     later replica loads them
//  3. a deployment that is not loading other weights is offered the newest weights that jobs have
//     for it; weights that cannot fit are refused
//
// In a deployment with replicas, the coordinator records that the weights are replaced when the
// replicas have loaded the offered ones.
type HotLoads struct{}

// Name implements Scheduler.
func (HotLoads) Name() string { return "hotload" }

// Plan implements Scheduler.
func (HotLoads) Plan(v *projections.View, _ time.Time) (plan Plan) {
	newest := newestWeights(v)
	for row := range v.Deployments.All() {
		d := &row.State
		intend := func(cmd domain.Command[domain.Deployment]) {
			plan.add(domain.Intend(domain.Deployments, row.Name, cmd))
		}
		for _, weights := range []*domain.HotWeights{d.Hot.Served, d.Hot.Offered} {
			if reason := withdrawn(v, weights); reason != "" {
				intend(domain.WithdrawWeights{ID: weights.ID(), Reason: reason})
			}
		}
		fresh, there := newest[row.Name]
		switch {
		case !d.Live() || !d.EnableHotLoad:
		case d.Hot.Offered != nil && withdrawn(v, d.Hot.Offered) == "" && d.DesiredReplicas == 0 &&
			len(d.Replicas) == 0:
			intend(domain.SwapWeights{ID: d.Hot.Offered.ID()})
		case d.Hot.Offered != nil || !there || !d.Hot.Accepts(fresh.HotWeights):
		default:
			if failure := fresh.unfit(v, d); failure != nil {
				intend(domain.RefuseWeights{HotWeights: fresh.HotWeights, Status: domain.StatusOf(failure)})
				continue
			}
			intend(domain.OfferWeights{HotWeights: fresh.HotWeights})
		}
	}
	return plan
}

// trained holds the newest weights of a trainer job, and their base model.
type trained struct {
	domain.HotWeights
	base domain.Name // base model whose weights the job has trained; never an addon
}

// newestWeights returns the newest weights of all trainer jobs that name a deployment, by
// deployment.
func newestWeights(v *projections.View) map[domain.Name]trained {
	newest := map[domain.Name]trained{}
	for row := range projections.TableOf(v, domain.TrainerJobs).All() {
		targets := row.State.HotLoadTargets(row.Name.Account())
		if len(targets) == 0 || row.State.Deleting() {
			continue
		}
		weights, ok := weightsOf(v, row)
		for _, target := range targets {
			if before, there := newest[target]; ok && (!there || weights.Made.After(before.Made)) {
				newest[target] = weights
			}
		}
	}
	return newest
}

// weightsOf returns the newest weights of a job: the last checkpoint during a train step, and the
// output model after the step. It returns false when the job has no weights that can be served.
func weightsOf(v *projections.View, row *projections.Row[domain.TrainerJob]) (trained, bool) {
	j := &row.State
	weights := trained{HotWeights: domain.HotWeights{Job: row.Name, TrainStep: max(j.Step.Number, 1),
		Position: row.Version}}
	from := domain.Name(j.TrainingConfig.BaseModel)
	if from == "" {
		from = domain.Name(j.TrainingConfig.WarmStartFrom)
	}
	last, saved := j.LastCheckpoint()
	if j.Output == "" || j.Waits() && saved {
		if j.Output != "" {
			from = j.Output
		}
		var ok bool
		weights.Step, weights.Made = last.Step, last.Time
		weights.Files, weights.Adapter, ok = last.Files.Servable()
		weights.base = baseOf(v, from)
		return weights, saved && ok
	}
	model, ok := v.Models.Get(j.Output)
	if !ok || model.State.SourceJob != row.Name || model.State.State != domain.ModelReady {
		return weights, false
	}
	weights.TrainStep = max(j.Finished, 1)
	weights.Model, weights.Files, weights.Made = model.Name, model.State.Files, model.CreateTime
	weights.Adapter = model.State.Kind == domain.PEFTAddon
	weights.base = baseOf(v, domain.Name(model.State.BaseModel))
	return weights, true
}

// baseOf returns the base model of the named model if it is an addon, otherwise the name itself.
func baseOf(v *projections.View, name domain.Name) domain.Name {
	if row, ok := v.Models.Get(name); ok && row.State.Kind == domain.PEFTAddon {
		return domain.Name(row.State.BaseModel)
	}
	return name
}

// unfit returns why the deployment d cannot serve the weights; nil when no reason is known before
// they are loaded.
func (w trained) unfit(v *projections.View, d *domain.Deployment) *domain.Error {
	model, ok := v.Models.Get(domain.Name(d.BaseModel))
	base, known := v.Models.Get(w.base)
	switch {
	case !ok || !known:
		return nil // the engine checks the weights when it loads them
	case w.Adapter && model.State.Kind == domain.PEFTAddon:
		return domain.Errorf(domain.FailedPrecondition,
			"%s trains an adapter, and the deployment serves %s, which is an adapter itself: use a deployment of %s",
			w.Job,
			model.Name, model.State.BaseModel)
	case w.Adapter && w.base != model.Name:
		return domain.Errorf(domain.FailedPrecondition,
			"%s trains an adapter of %s, and the deployment serves %s: use a deployment of the same base model", w.Job,
			w.base, model.Name)
	case !w.Adapter && d.EnableAddons:
		return domain.Errorf(domain.FailedPrecondition, "%s trains all parameters, but the deployment has addons, which "+
			"need their base model: turn enableAddons off, or train an adapter (loraRank above 0)", w.Job)
	case !w.Adapter && (model.State.ModelType != base.State.ModelType ||
		model.State.ParameterCount != base.State.ParameterCount):
		return domain.Errorf(domain.FailedPrecondition, "%s trains %s (%s, %d parameters), and the deployment "+
			"serves %s (%s, %d parameters): use a deployment of the same model",
			w.Job, w.base, base.State.ModelType, base.State.ParameterCount, model.Name, model.State.ModelType,
			model.State.ParameterCount)
	}
	return nil
}

// withdrawn returns why the weights must be withdrawn from a deployment; "" when they can stay.
func withdrawn(v *projections.View, w *domain.HotWeights) string {
	if w == nil {
		return ""
	}
	if w.Model != "" {
		if row, ok := v.Models.Get(w.Model); !ok || row.State.Files.Prefix != w.Files.Prefix {
			return "the model " + string(w.Model) +
				", the source of the hot-loaded weights, was deleted: the deployment serves its baseModel"
		}
		return ""
	}
	if row, ok := projections.TableOf(v, domain.TrainerJobs).Get(w.Job); !ok || row.State.Deleting() {
		return "the job " + string(w.Job) +
			", the source of the hot-loaded weights, was deleted: the deployment serves its baseModel"
	}
	return ""
}
