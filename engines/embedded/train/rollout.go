package train

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"anneal/domain"
)

// rollouts is the course through the model's own answers. A chunk of the rows
// is answered and scored by the model as it then is; its steps learn from these
// answers, and the next chunk is answered by what came of it. A chunk has no
// more rows than one step takes: learning from answers that an earlier model
// wrote took five times as many of them.
type rollouts struct {
	*job
	prompts   []*prompt
	held      []*prompt
	reference *Loop // the model that training must stay near; nil when the loss does not ask

	size    int // prompts of a chunk
	current *chunk
	ready   *chunk // answered, and not yet learnt from
}

// A chunk is answers to some rows, as far as there is something to learn.
type chunk struct {
	samples []*Sample
	plan    *plan // of the samples
	told    map[string]float64
	tally   tally // of its answers
}

func newRollouts(j *job, prompts, held []*prompt) *rollouts {
	s := &j.settings
	answers := s.BatchSizeSamples * s.GradientAccumulationSteps
	size := max(answers/s.Rollouts.ResponseCandidatesCount, 1)
	if len(prompts) > domain.ChunkedAbove {
		size = min(size, s.Rollouts.ChunkSize)
	}
	return &rollouts{job: j, prompts: prompts, held: held, size: min(size, len(prompts))}
}

// chunks is how many an epoch has.
func (r *rollouts) chunks() int { return (len(r.prompts) + r.size - 1) / r.size }

// rows are the prompts of a chunk: each epoch has an order of its own.
func (r *rollouts) rows(n int) []*prompt {
	epoch, at := n/r.chunks(), n%r.chunks()*r.size
	order := rand.New(rand.NewPCG(r.order.Seed, uint64(epoch))).Perm(len(r.prompts))
	var out []*prompt
	for _, i := range order[at:min(at+r.size, len(order))] {
		out = append(out, r.prompts[i])
	}
	return out
}

// left is how many steps the current chunk has left.
func (r *rollouts) left() int {
	if r.current == nil {
		return 0
	}
	return r.current.steps() - r.state.At
}

// steps is how many a chunk has: one that teaches nothing has one.
func (c *chunk) steps() int { return max(c.plan.steps, 1) }

func (r *rollouts) next(ctx context.Context) ([]*Sample, map[string]float64, error) {
	if r.left() > 0 {
		return r.current.plan.batch(r.state.At), nil, nil
	}
	if r.ready == nil {
		ready, err := r.roll(ctx, r.state.Chunk)
		if err != nil {
			return nil, nil, err
		}
		r.ready = ready
	}
	if r.ready.plan.steps == 0 {
		return nil, r.ready.told, nil
	}
	return r.ready.plan.batch(0), r.ready.told, nil
}

func (r *rollouts) passed(told figures) {
	s := &r.state
	if r.left() == 0 {
		r.current, r.ready = r.ready, nil
		s.Chunk, s.At = s.Chunk+1, 0
		s.Rollouts.add(r.current.tally)
		s.Rollouts.Expected = len(r.prompts) * r.settings.Rollouts.ResponseCandidatesCount * r.settings.Epochs
		r.signal()
	}
	s.At++
	if told[drift].value() > mostDrift { // what is left was written by quite another model
		s.At = r.current.steps()
	}
}

// signal counts the chunks in a row that taught nothing.
func (r *rollouts) signal() {
	s := &r.state
	if s.Flat++; r.current.plan.steps > 0 {
		s.Flat = 0
	}
	if s.Flat >= patience && s.Flat*r.size >= flatRows || s.Flat == s.Chunk && r.over() {
		s.Stopped, s.Reason = true, fmt.Sprintf("no reward signal: the answers to each prompt scored alike (%.3g of 1 in the mean), so there is nothing more to learn: "+
			"if that is not the end, let the evaluator give finer scores, ask easier or harder prompts, or raise the temperature", r.current.told["reward/mean"])
	}
}

// over tells that no chunk is left and the last one is learnt.
func (r *rollouts) over() bool {
	return r.state.Chunk == r.settings.Epochs*r.chunks() && (r.left() == 0 || r.current.plan.steps == 0)
}

// most is how many steps the answers to so many rows are if all of them teach.
func (r *rollouts) most(rows int) int {
	answers := rows * r.settings.Rollouts.ResponseCandidatesCount
	batch := r.settings.BatchSizeSamples * r.settings.GradientAccumulationSteps
	return (answers + batch - 1) / batch
}

func (r *rollouts) steps() int {
	steps := r.state.Step + r.left()
	for n := r.state.Chunk; n < r.settings.Epochs*r.chunks(); n++ {
		at := n % r.chunks() * r.size
		steps += r.most(min(r.size, len(r.prompts)-at))
	}
	return steps
}

func (r *rollouts) epoch() float64 {
	done := float64(r.state.Chunk)
	if r.current != nil {
		done -= float64(r.left()) / float64(r.current.steps())
	}
	return done / float64(r.chunks())
}

// rate rises in a line over the warm-up, and falls in a line with the rows that
// are left: how many steps they will be is not known.
func (r *rollouts) rate() float64 {
	rate := r.settings.LearningRate * (1 - r.epoch()/float64(r.settings.Epochs))
	if warmup := r.settings.LearningRateWarmupSteps; r.state.Step < warmup {
		rate *= float64(r.state.Step+1) / float64(warmup)
	}
	return rate
}

// due is after the chunk with which another part of the rows is done.
func (r *rollouts) due() bool {
	part := func(epochs float64) int { return int(epochs / float64(r.settings.Epochs) * evaluations) }
	return r.left() == 0 && (part(r.epoch()) > part(r.state.EvaluatedAt) || r.over())
}

func (r *rollouts) measure(ctx context.Context) (map[string]float64, error) {
	if len(r.held) == 0 {
		return nil, nil
	}
	answers, err := r.answers(ctx, r.held, 1, heldSeed)
	if err != nil {
		return nil, err
	}
	told := tell(answers)
	r.state.EvaluatedAt = r.epoch()
	return map[string]float64{"eval/reward": told["reward/mean"], "eval/invalid": told["reward/invalid"], "eval/length": told["rollout/length"]}, nil
}

// roll has a chunk answered and scored, and prepares what is learnt from it.
func (r *rollouts) roll(ctx context.Context, n int) (*chunk, error) {
	candidates := r.settings.Rollouts.ResponseCandidatesCount
	answers, err := r.answers(ctx, r.rows(n), candidates, uint64(n))
	if err != nil {
		return nil, err
	}
	told := tell(answers)
	if told["reward/invalid"] == 1 {
		return nil, domain.Errorf(domain.FailedPrecondition, "evaluator: gave no valid score for any of %d answers; the first reason is: %s", len(answers), answers[0].reason())
	}
	var groups []group
	for lot := range slices.Chunk(answers, candidates) {
		var g group
		for i := range lot {
			if lot[i].score.Valid {
				g.samples, g.scores = append(g.samples, lot[i].sample()), append(g.scores, lot[i].score.Value)
			}
		}
		groups = append(groups, g)
	}
	live, compared := weigh(groups)
	told["reward/flat"] = compared["flat"].value()
	c := &chunk{samples: live, told: told, tally: tallied(answers, candidates)}
	if err := r.anchor(ctx, live); err != nil {
		return nil, err
	}
	r.cut(c, n)
	return c, nil
}

// cut divides a chunk into steps.
func (r *rollouts) cut(c *chunk, n int) {
	s := r.settings
	c.plan = newPlan(c.samples, 1, s.BatchSizeTokens, s.BatchSizeSamples, s.GradientAccumulationSteps, r.order.Seed+uint64(n)<<20)
}

// anchor notes how likely answers are in the model that wrote them, which is the
// present one, and in the one to stay near.
func (r *rollouts) anchor(ctx context.Context, samples []*Sample) error {
	wrote, err := r.loop.logp(ctx, samples)
	if err != nil {
		return err
	}
	for i, s := range samples {
		s.Behaviour = wrote[i]
	}
	if r.reference == nil {
		return nil
	}
	near, err := r.reference.logp(ctx, samples)
	if err != nil {
		return err
	}
	for i, s := range samples {
		s.Reference = near[i]
	}
	return nil
}
