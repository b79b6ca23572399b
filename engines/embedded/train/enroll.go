package train

import (
	"context"

	"anneal/engines"
)

// enroll makes the course of what was read. What must be known of the model as
// it is before the first step is found out here: a resumed training begins with
// the same model and takes up its checkpoint only then.
func (j *job) enroll(ctx context.Context, train, held *reader) error {
	if j.order.Method == engines.Reinforcement {
		j.loop.heat(*j.settings.Rollouts.Temperature)
		j.answering(train.prompts, held.prompts)
		return nil
	}
	samples, kept := train.samples, held.samples
	var told map[string]float64
	if j.order.Method == engines.RLOR {
		var rewards figures
		samples, rewards = weigh(train.lots())
		told = rewards.values("reward")
		kept, _ = weigh(held.lots())
	}
	if len(kept) == 0 && j.carves() && len(samples) > 1 {
		samples, kept = carve(samples, j.order.Seed)
	}
	for _, some := range [][]*Sample{samples, kept} {
		if err := j.anchor(ctx, some); err != nil {
			return err
		}
	}
	s := &j.settings
	plan := newPlan(samples, s.Epochs, s.BatchSizeTokens, s.BatchSizeSamples, s.GradientAccumulationSteps, j.order.Seed)
	j.course = &lesson{j, plan, kept, told}
	j.spaceCheckpoints(plan.steps)
	if plan.steps == 0 {
		j.values = told
		j.nothing = "no reward signal: all samples that are compared have the same reward, so there is nothing to learn from and the model is as it was; " +
			"give several samples of a prompt a row, whose metrics differ"
	}
	return nil
}

// answering makes the course through the model's own answers.
func (j *job) answering(prompts, held []*prompt) {
	if len(held) == 0 && j.carves() && len(prompts) > 1 {
		prompts, held = carve(prompts, j.order.Seed)
	}
	r := newRollouts(j, prompts, held)
	if o, ok := j.loop.objective.(grpo); ok && o.klBeta > 0 {
		r.reference = newViewer(j.loop.Net.Frozen(j.loop.workers), j.loop.workers)
		r.reference.heat(*j.settings.Rollouts.Temperature)
	}
	j.course = r
	j.spaceCheckpoints(r.steps())
}

func (j *job) carves() bool { return j.settings.EvalAutoCarveout || j.settings.EarlyStop }

// spaceCheckpoints gives the steps between two their default.
func (j *job) spaceCheckpoints(steps int) {
	fill(&j.settings.CheckpointSteps, min(max(steps/4, 20), 1000))
}

// anchor notes how likely samples are in the model as it is: the one that
// preferences are measured from, and that stands for who wrote scored samples.
func (j *job) anchor(ctx context.Context, samples []*Sample) error {
	if _, likely := j.loop.objective.(likelihood); likely {
		return nil
	}
	if _, free := j.loop.objective.(orpo); free {
		return nil
	}
	logp, err := j.loop.logp(ctx, samples)
	if err != nil {
		return err
	}
	for i, s := range samples {
		s.Reference, s.Behaviour = logp[i], logp[i]
	}
	return nil
}

// lots are the groups that were read.
func (r *reader) lots() []group { return append(r.groups, r.alone) }
