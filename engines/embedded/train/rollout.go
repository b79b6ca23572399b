package train

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/llama"
)

// rollouts is the procedure of reinforcement learning. The current model generates responses to a
// chunk of the rows, the evaluator scores them, and the steps of the chunk train on them. Then the
// updated model generates the responses to the next chunk. With MaxStaleness, chunks are generated
// ahead: see generation. A chunk has at most as many rows as one step, because training on
// responses of an earlier policy needs about five times as many responses.
type rollouts struct {
	*job
	prompts   []*prompt
	held      []*prompt
	reference *Loop // reference model of the KL term; nil without one

	// startReplicas is startModels, except in tests.
	startReplicas func(net *llama.Net, n int) ([]engines.Model, error)

	size    int // number of prompts in a chunk
	current *chunk
	ready   *chunk // generated chunk on which training has not begun; may be nil

	scoring chan struct{} // has an element for each response that is being scored

	ahead  []*generation // chunks from state.Chunk on that are generated ahead, in order
	frozen *frozenPolicy // net of the policies of ahead; nil without MaxStaleness
	life   context.Context
	cancel context.CancelFunc // cancels life, the context of the generations; nil before the first one
}

// A chunk has the scored responses to some rows, except rows without a training signal.
type chunk struct {
	samples []*Sample
	plan    *plan // divides the samples into steps
	metrics map[string]float64
	counts  rolloutCounts // counts of the chunk's responses
	// rollouts are those of the responses, without Step and Epoch; nil if they are not recorded.
	rollouts []engines.Rollout
	err      error // the chunk cannot be trained on, although all responses were scored
	policy   int   // number of chunks that its policy, which generated the responses, was trained on
}

func newRollouts(j *job, prompts, held []*prompt) *rollouts {
	s := &j.settings
	responses := s.BatchSizeSamples * s.GradientAccumulationSteps
	size := max(responses/s.Rollouts.ResponseCandidatesCount, 1)
	if len(prompts) > domain.ChunkedAbove {
		size = min(size, s.Rollouts.ChunkSize)
	}
	r := &rollouts{job: j, prompts: prompts, held: held, size: min(size, len(prompts)),
		scoring: make(chan struct{}, s.Rollouts.MaxConcurrentEvaluations)}
	r.startReplicas = r.startModels
	return r
}

// chunks returns the number of chunks in an epoch.
func (r *rollouts) chunks() int { return (len(r.prompts) + r.size - 1) / r.size }

// rows returns the prompts of chunk n. They are shuffled in each epoch.
func (r *rollouts) rows(n int) []*prompt {
	epoch, at := n/r.chunks(), n%r.chunks()*r.size
	order := rand.New(rand.NewPCG(r.request.Seed, uint64(epoch))).Perm(len(r.prompts))
	var out []*prompt
	for _, i := range order[at:min(at+r.size, len(order))] {
		out = append(out, r.prompts[i])
	}
	return out
}

// left returns the number of steps of the current chunk that are not completed.
func (r *rollouts) left() int {
	if r.current == nil {
		return 0
	}
	return r.current.steps() - r.state.At
}

// steps returns the number of steps of the chunk; 1 if the chunk has no training signal.
func (c *chunk) steps() int { return max(c.plan.steps, 1) }

func (r *rollouts) next(ctx context.Context) ([]*Sample, map[string]float64, error) {
	r.generateAhead(ctx)
	if r.left() > 0 {
		return r.current.plan.batch(r.state.At), nil, nil
	}
	if r.ready == nil {
		ready, err := r.nextChunk(ctx)
		if err != nil {
			return nil, nil, err
		}
		r.record(ready.rollouts, engines.Rollout{Step: r.state.Step + 1})
		if ready.err != nil {
			return nil, nil, ready.err
		}
		r.ready = ready
	}
	if r.ready.plan.steps == 0 {
		return nil, r.ready.metrics, nil
	}
	return r.ready.plan.batch(0), r.ready.metrics, nil
}

func (r *rollouts) afterStep(metrics means) {
	s := &r.state
	if r.left() == 0 {
		r.current, r.ready = r.ready, nil
		if len(r.ahead) > 0 {
			r.ahead, s.Policy = r.ahead[1:], r.current.policy
		}
		r.current.rollouts = nil // they are recorded
		s.Chunk, s.At = s.Chunk+1, 0
		s.Rollouts.add(r.current.counts)
		s.Rollouts.Expected = len(r.prompts) * r.settings.Rollouts.ResponseCandidatesCount * r.settings.Epochs
		r.checkSignal()
	}
	s.At++
	if stale(r.settings) {
		metrics.add("staleness", float64(s.Chunk-1-s.Policy), 1)
	}
	if metrics[drift].value() > maxDrift { // the remaining responses of the chunk are too far off-policy to train on
		s.At = r.current.steps()
	}
}

// checkSignal stops the training if at least the last patience chunks and the last flatRows rows
// had no training signal, or if the training is done and no chunk had one.
func (r *rollouts) checkSignal() {
	s := &r.state
	if s.Flat++; r.current.plan.steps > 0 {
		s.Flat = 0
	}
	if s.Flat >= patience && s.Flat*r.size >= flatRows || s.Flat == s.Chunk && r.done() {
		s.Stopped, s.Reason = true, fmt.Sprintf("no reward signal: all responses to each prompt have the same score "+
			"(mean %.3g), so nothing more can be learned: use an evaluator with finer scores, easier or harder prompts, "+
			"or a higher temperature", r.current.metrics["reward/mean"])
	}
}

// done reports whether the training on all chunks is completed.
func (r *rollouts) done() bool {
	return r.state.Chunk == r.settings.Epochs*r.chunks() && (r.left() == 0 || r.current.plan.steps == 0)
}

// maxSteps returns the number of steps on the responses to a number of rows, if every row has a
// training signal.
func (r *rollouts) maxSteps(rows int) int {
	responses := rows * r.settings.Rollouts.ResponseCandidatesCount
	batch := r.settings.BatchSizeSamples * r.settings.GradientAccumulationSteps
	return (responses + batch - 1) / batch
}

func (r *rollouts) steps() int {
	steps := r.state.Step + r.left()
	for n := r.state.Chunk; n < r.settings.Epochs*r.chunks(); n++ {
		at := n % r.chunks() * r.size
		steps += r.maxSteps(min(r.size, len(r.prompts)-at))
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

// rate returns the learning rate: linear decay by rows, because the number of steps is not known in
// advance, multiplied by a linear warmup over the first steps.
func (r *rollouts) rate() float64 {
	rate := r.settings.LearningRate * (1 - r.epoch()/float64(r.settings.Epochs))
	if warmup := r.settings.LearningRateWarmupSteps; r.state.Step < warmup {
		rate *= float64(r.state.Step+1) / float64(warmup)
	}
	return rate
}

// evalDue reports whether an evaluation is due. The evaluations of a training are evenly spaced,
// and the last one is at the end.
func (r *rollouts) evalDue() bool {
	part := func(epochs float64) int { return int(epochs / float64(r.settings.Epochs) * evaluations) }
	return r.left() == 0 && (part(r.epoch()) > part(r.state.EvaluatedAt) || r.done())
}

func (r *rollouts) evaluate(ctx context.Context) (map[string]float64, error) {
	if len(r.held) == 0 {
		return nil, nil
	}
	responses, err := r.generate(ctx, policyOf(r.loop), r.held, 1, heldSeed)
	if err != nil {
		return nil, err
	}
	r.record(r.rolloutsOf(responses), engines.Rollout{Step: r.state.Step, Evaluation: true})
	metrics := responseMetrics(responses)
	r.state.EvaluatedAt = r.epoch()
	return map[string]float64{
		"eval/reward": metrics["reward/mean"], "eval/invalid": metrics["reward/invalid"],
		"eval/length": metrics["rollout/length"],
	}, nil
}

// newChunk generates and scores the responses to chunk n with a policy, and prepares its samples.
// It does not access the state of the job.
func (r *rollouts) newChunk(ctx context.Context, p *policy, n int) (*chunk, error) {
	candidates := r.settings.Rollouts.ResponseCandidatesCount
	responses, err := r.generate(ctx, p, r.rows(n), candidates, uint64(n))
	if err != nil {
		return nil, err
	}
	metrics := responseMetrics(responses)
	c := &chunk{metrics: metrics, counts: countRollouts(responses, candidates), rollouts: r.rolloutsOf(responses)}
	if metrics["reward/invalid"] == 1 {
		c.err = domain.Errorf(domain.FailedPrecondition,
			"evaluator: returned no valid score for any of %d responses; the first reason is: %s",
			len(responses), responses[0].reason())
		return c, nil
	}
	var groups []group
	for lot := range slices.Chunk(responses, candidates) {
		var g group
		for i := range lot {
			if lot[i].score.Valid {
				g.samples, g.scores = append(g.samples, lot[i].sample()), append(g.scores, lot[i].score.Value)
			}
		}
		groups = append(groups, g)
	}
	live, compared := computeAdvantages(groups)
	metrics["reward/flat"] = compared["flat"].value()
	c.samples = live
	if err := r.recordLogProbs(ctx, p, live); err != nil {
		return nil, err
	}
	r.planChunk(c, n)
	return c, nil
}

// planChunk divides the samples of chunk n into steps.
func (r *rollouts) planChunk(c *chunk, n int) {
	s := r.settings
	c.plan = newPlan(c.samples, 1, s.BatchSizeTokens, s.BatchSizeSamples, s.GradientAccumulationSteps,
		r.request.Seed+uint64(n)<<20)
}

// recordLogProbs stores the log-probabilities of responses under the policy that generated them,
// and under the reference model.
func (r *rollouts) recordLogProbs(ctx context.Context, p *policy, samples []*Sample) error {
	leave, err := r.phases.enter(ctx, phaseLogProbs)
	if err != nil {
		return err
	}
	defer leave()
	loop, done := p.loop()
	defer done()
	wrote, err := loop.logp(ctx, samples)
	if err != nil {
		return err
	}
	for i, s := range samples {
		s.Behavior = wrote[i]
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
