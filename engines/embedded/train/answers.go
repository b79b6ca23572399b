package train

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/serve"
)

// An answer is what the model wrote to a prompt, and its score.
type answer struct {
	prompt *prompt
	tokens []int
	score  engines.Score
	cached int // tokens of the prompt that had not to be read again
}

// heldSeed sets the answers to rows held out apart from those to chunks.
const heldSeed = math.MaxUint32

// sample is the answer as it is learnt.
func (a *answer) sample() *Sample {
	n := len(a.prompt.tokens)
	s := &Sample{Tokens: make([]int32, 0, n+len(a.tokens)), Scored: from(n, n+len(a.tokens))}
	for _, id := range a.prompt.tokens {
		s.Tokens = append(s.Tokens, int32(id))
	}
	for _, id := range a.tokens {
		s.Tokens = append(s.Tokens, int32(id))
	}
	return s
}

func (a *answer) reason() string { return cmp.Or(a.score.Reason, "none was given") }

// answers has the model as it now is answer each prompt n times, and has the
// answers scored; those to one prompt follow one another. The same seed and
// model give the same answers whatever the number of cores.
func (r *rollouts) answers(ctx context.Context, prompts []*prompt, n int, seed uint64) ([]answer, error) {
	how := r.settings.Rollouts
	model, err := serve.Start(r.loop.Net.Weights, r.loop.Net.Adapter, r.tokens, r.order.BaseDir,
		serve.Options{Parallelism: r.loop.workers, Slots: how.MaxConcurrent, Queue: how.MaxConcurrent + how.MaxConcurrentEvaluations})
	if err != nil {
		return nil, err
	}
	defer model.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	writing, scoring := make(chan struct{}, how.MaxConcurrent), make(chan struct{}, how.MaxConcurrentEvaluations)
	out := make([]answer, len(prompts)*n)
	llama.Each(len(out), cap(writing)+cap(scoring), func(i int) {
		a := &out[i]
		a.prompt = prompts[i/n]
		writing <- struct{}{}
		err := r.write(ctx, model, a, rand.NewPCG(r.order.Seed+seed<<32, uint64(i)).Uint64())
		<-writing
		if err == nil {
			scoring <- struct{}{}
			err = r.judge(ctx, a)
			<-scoring
		}
		if err != nil {
			cancel(err)
		}
	})
	return out, context.Cause(ctx)
}

// write has the model write one answer.
func (r *rollouts) write(ctx context.Context, model engines.Model, a *answer, seed uint64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	how := r.settings.Rollouts
	more, err := extraOf(how.ExtraBody)
	if err != nil {
		return err
	}
	request := engines.CompletionRequest{
		PromptTokens: a.prompt.tokens, Seed: &seed, MaxTokens: min(how.MaxOutputTokens, r.settings.MaxContextLength-len(a.prompt.tokens)),
		Temperature: *how.Temperature, TopP: how.TopP, TopK: how.TopK, MinP: more.MinP, TypicalP: more.TypicalP,
		FrequencyPenalty: more.FrequencyPenalty, PresencePenalty: more.PresencePenalty, RepetitionPenalty: more.RepetitionPenalty,
	}
	if r.loop.Net.Adapter != nil {
		request.Addon = serve.Trained
	}
	usage, err := model.Complete(ctx, request, func(c engines.Chunk) error {
		a.tokens = append(a.tokens, c.Tokens...)
		return nil
	})
	a.cached = usage.CachedTokens
	return err
}

// judge has one answer scored.
func (r *rollouts) judge(ctx context.Context, a *answer) error {
	scores, err := r.order.Evaluation.Score(ctx, []map[string]any{a.prompt.judged(r.tokens.Decode(a.tokens))})
	if err != nil {
		return err
	}
	if len(scores) != 1 {
		return domain.Errorf(domain.Internal, "the evaluator was given one answer and gave %d scores", len(scores))
	}
	a.score = scores[0]
	if v := a.score.Value; a.score.Valid && !(v >= 0 && v <= 1) {
		a.score.Valid, a.score.Reason = false, "the score is outside 0..1"
	}
	return nil
}

// tell is the figures of answers: scores are those of the valid ones.
func tell(answers []answer) map[string]float64 {
	told := figures{}
	var scores []float64
	for i := range answers {
		a := &answers[i]
		told.add("rollout/length", float64(len(a.tokens)), 1)
		told.add("reward/invalid", share(!a.score.Valid), 1)
		if !a.score.Valid {
			continue
		}
		scores = append(scores, a.score.Value)
		for name, value := range a.score.Metrics {
			if finite(value) {
				told.add("reward/metric/"+name, value, 1)
			}
		}
	}
	out := map[string]float64{}
	for name, m := range told {
		out[name] = m.value()
	}
	out["reward/mean"], out["reward/std"] = spread(scores)
	return out
}
