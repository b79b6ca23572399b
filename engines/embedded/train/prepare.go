package train

import (
	"context"

	"anneal/engines"
)

// prepare creates the procedure for the rows, and computes all that depends on the initial model. A
// resumed training also begins with the initial model, and loads its checkpoint after prepare.
func (j *job) prepare(ctx context.Context, train, held *reader) error {
	if j.request.Method == engines.Reinforcement {
		j.loop.setTemperature(*j.settings.Rollouts.Temperature)
		j.prepareRollouts(train.prompts, held.prompts)
		return nil
	}
	samples, kept := train.samples, held.samples
	var metrics map[string]float64
	if j.request.Method == engines.RLOR {
		var rewards means
		samples, rewards = computeAdvantages(train.allGroups())
		metrics = rewards.values("reward")
		kept, _ = computeAdvantages(held.allGroups())
	}
	if len(kept) == 0 && j.holdsOut() && len(samples) > 1 {
		samples, kept = holdOut(samples, j.request.Seed)
	}
	for _, some := range [][]*Sample{samples, kept} {
		if err := j.recordLogProbs(ctx, some); err != nil {
			return err
		}
	}
	s := &j.settings
	plan := newPlan(samples, s.Epochs, s.BatchSizeTokens, s.BatchSizeSamples, s.GradientAccumulationSteps, j.request.Seed)
	fixed := &fixedSamples{j, plan, kept, metrics}
	j.procedure = fixed
	if j.settings.ReplayWeight > 0 {
		var err error
		if j.procedure, err = newReplay(ctx, fixed, train); err != nil {
			return err
		}
	}
	j.setCheckpointInterval(plan.steps)
	if plan.steps == 0 {
		j.values = metrics
		j.nothing = "no reward signal: all samples of each group have the same reward, so the model is unchanged; " +
			"give each row several samples whose metrics yield different rewards"
	}
	return nil
}

// prepareRollouts creates the procedure for reinforcement learning.
func (j *job) prepareRollouts(prompts, held []*prompt) {
	if len(held) == 0 && j.holdsOut() && len(prompts) > 1 {
		prompts, held = holdOut(prompts, j.request.Seed)
	}
	r := newRollouts(j, prompts, held)
	if o, ok := j.loop.objective.(grpo); ok && o.klBeta > 0 {
		r.reference = newEvalLoop(j.loop.Net.Frozen(j.loop.workers), j.loop.workers)
		r.reference.setTemperature(*j.settings.Rollouts.Temperature)
	}
	if stale(j.settings) {
		r.frozen = newFrozenPolicy(j.loop, *j.settings.Rollouts.Temperature)
	}
	j.procedure = r
	j.setCheckpointInterval(r.steps())
}

func (j *job) holdsOut() bool { return j.settings.EvalAutoCarveout || j.settings.EarlyStop }

// setCheckpointInterval sets the default number of steps between two checkpoints.
func (j *job) setCheckpointInterval(steps int) {
	fill(&j.settings.CheckpointSteps, min(max(steps/4, 20), 1000))
}

// recordLogProbs stores the log-probabilities of samples under the initial model. For preference
// training, that is the reference model; for scored samples, it stands for the policy that
// generated them. The objectives likelihood and orpo need neither, so recordLogProbs does nothing
// for them.
func (j *job) recordLogProbs(ctx context.Context, samples []*Sample) error {
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
		s.Reference, s.Behavior = logp[i], logp[i]
	}
	return nil
}

// allGroups returns the groups that the reader has read. The last group has the samples that are
// alone in their row.
func (r *reader) allGroups() []group { return append(r.groups, r.singles) }
