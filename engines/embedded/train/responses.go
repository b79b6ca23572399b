package train

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/serve"
)

// A response is a completion that the model generated for a prompt, and its score.
type response struct {
	prompt *prompt
	tokens []int
	score  engines.Score
	cached int // number of prompt tokens that came from the prefix cache
}

// heldSeed stands for the number of the chunk when the sampling seeds of responses to held-out rows
// are computed, so that they differ from the seeds of all chunks.
const heldSeed = math.MaxUint32

// sample returns the training sample of the response.
func (a *response) sample() *Sample {
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

func (a *response) reason() string { return cmp.Or(a.score.Reason, "the evaluator gave no reason") }

// generate samples n responses to each prompt with a policy, and scores them. The responses to a
// prompt are adjacent. The result depends on seed and on the policy, but not on the number of cores
// or replicas.
func (r *rollouts) generate(
	ctx context.Context, p *policy, prompts []*prompt, n int, seed uint64,
) ([]response, error) {
	how := r.settings.Rollouts
	replicas, err := p.start(r, r.replicas(len(prompts)))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	turn, scoring := newTurn(r.phases, phaseGenerate), r.scoring
	out := make([]response, len(prompts)*n)
	var writers sync.WaitGroup // responses that are not complete
	writers.Add(len(out))
	end := make(chan struct{})
	go func() {
		defer close(end)
		writers.Wait()
		for _, model := range replicas {
			_ = model.Close() // Close of a model never returns an error
		}
		p.sampled()
	}()
	defer func() { <-end }()
	llama.Each(len(replicas), len(replicas), func(k int) {
		// One replica generates all responses to a prompt, and so computes the prompt only once.
		share := (len(prompts) - k + len(replicas) - 1) / len(replicas) * n
		writing := make(chan struct{}, (how.MaxConcurrent+len(replicas)-1-k)/len(replicas))
		llama.Each(share, cap(writing)+cap(scoring), func(j int) {
			at := j/n*len(replicas) + k
			i := at*n + j%n
			a := &out[i]
			a.prompt = prompts[at]
			writing <- struct{}{}
			err := recovered(func() error {
				return turn.during(ctx, func() error {
					return r.complete(ctx, replicas[k], a, rand.NewPCG(r.request.Seed+seed<<32, uint64(i)).Uint64())
				})
			})
			<-writing
			writers.Done()
			if err == nil {
				scoring <- struct{}{}
				err = recovered(func() error { return r.scoreResponse(ctx, a) })
				<-scoring
			}
			if err != nil {
				cancel(err)
			}
		})
	})
	return out, context.Cause(ctx)
}

// recovered returns the error of do, or an error if do panics.
func recovered(do func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("the engine panicked: %v", cause)
		}
	}()
	return do()
}

// replicas returns the number of replicas that generate the responses to a number of prompts. Each
// has at least one prompt, one core and one concurrent response.
func (r *rollouts) replicas(prompts int) int {
	how := r.settings.Rollouts
	return max(1, min(how.MaxReplicas, prompts, how.MaxConcurrent, r.loop.workers))
}

// startModels starts n replicas of the model with the weights of net.
func (r *rollouts) startModels(net *llama.Net, n int) ([]engines.Model, error) {
	how := r.settings.Rollouts
	return serve.Start(n, net.Weights, net.Adapter, r.tokens, r.request.BaseDir, serve.Options{
		Parallelism: r.loop.workers, Slots: how.MaxConcurrent, Queue: how.MaxConcurrent + how.MaxConcurrentEvaluations,
		ContextLength: r.settings.MaxContextLength,
	})
}

// complete generates a response to its prompt.
func (r *rollouts) complete(ctx context.Context, model engines.Model, a *response, seed uint64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	how := r.settings.Rollouts
	more, err := parseExtra(how.ExtraBody)
	if err != nil {
		return err
	}
	request := engines.CompletionRequest{
		PromptTokens: a.prompt.tokens, Seed: &seed,
		MaxTokens:   min(how.MaxOutputTokens, r.settings.MaxContextLength-len(a.prompt.tokens)),
		Temperature: *how.Temperature, TopP: how.TopP, TopK: how.TopK, MinP: more.MinP, TypicalP: more.TypicalP,
		FrequencyPenalty: more.FrequencyPenalty, PresencePenalty: more.PresencePenalty,
		RepetitionPenalty: more.RepetitionPenalty,
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

// scoreResponse scores a response with the evaluator.
func (r *rollouts) scoreResponse(ctx context.Context, a *response) error {
	scores, err := r.request.Evaluation.Score(ctx, []map[string]any{a.prompt.withResponse(r.tokens.Decode(a.tokens))})
	if err != nil {
		return err
	}
	if len(scores) != 1 {
		return domain.Errorf(domain.Internal, "evaluator: returned %d scores for one response", len(scores))
	}
	a.score = scores[0]
	if v := a.score.Value; a.score.Valid && !(v >= 0 && v <= 1) {
		a.score.Valid, a.score.Reason = false, fmt.Sprintf("the score %g is not between 0 and 1", v)
	}
	return nil
}

// record passes rollouts to the request's recorder. common has the fields that all these rollouts
// share.
func (r *rollouts) record(rollouts []engines.Rollout, common engines.Rollout) {
	if r.request.OnRollouts == nil {
		return
	}
	epoch := r.epoch()
	for i := range rollouts {
		one := &rollouts[i]
		one.Step, one.Evaluation, one.Epoch = common.Step, common.Evaluation, epoch
	}
	r.request.OnRollouts(rollouts)
}

// rolloutsOf converts responses to rollouts, without the fields that record sets; nil if rollouts
// are not recorded.
func (r *rollouts) rolloutsOf(responses []response) []engines.Rollout {
	if r.request.OnRollouts == nil {
		return nil
	}
	now := time.Now().UTC()
	out := make([]engines.Rollout, len(responses))
	for i := range responses {
		a := &responses[i]
		one := engines.NewRollout(a.prompt.withResponse(r.tokens.Decode(a.tokens)), a.score)
		one.Time, one.Row, one.Candidate = now, a.prompt.number, 1
		if i > 0 && responses[i-1].prompt == a.prompt {
			one.Candidate = out[i-1].Candidate + 1
		}
		out[i] = one
	}
	return out
}

// responseMetrics returns the metrics of responses. The reward is the mean of the valid scores.
func responseMetrics(responses []response) map[string]float64 {
	metrics := means{}
	var scores []float64
	for i := range responses {
		a := &responses[i]
		metrics.add("rollout/length", float64(len(a.tokens)), 1)
		metrics.add("reward/invalid", share(!a.score.Valid), 1)
		if !a.score.Valid {
			continue
		}
		scores = append(scores, a.score.Value)
		for name, value := range a.score.Metrics {
			if finite(value) {
				metrics.add("reward/metric/"+name, value, 1)
			}
		}
	}
	out := map[string]float64{}
	for name, m := range metrics {
		out[name] = m.value()
	}
	out["reward/mean"], out["reward/std"] = spread(scores)
	return out
}
