package train

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"anneal/domain/rows"
	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/serve"
)

// Replay reduces catastrophic forgetting. The initial model responds to synthetic prompts, and each
// step also minimizes the KL divergence of the trained model from the initial one on these
// responses. Only the rows of the dataset and the initial model are needed.

const (
	replayPrompts  = 2000 // maximum number of replayed responses
	maxReplayed    = 48   // maximum number of tokens of a response
	replaySlots    = 32   // number of responses that are generated concurrently
	retentionRows  = 256  // number of responses for the metric eval/retention
	retentionDrawn = 512  // number of responses of which these are the most confident ones

	replayNoise   = 0.2 // probability that a prompt is random printable characters
	replayFromRow = 0.5 // probability that a word of another prompt is a word of the user's prompts
)

// promptStats has the properties of the prompts of a dataset that synthetic prompts copy.
type promptStats struct {
	words map[string]bool // words of the prompts
	order []string        // the same words, in the order in which they first occurred
	chats int             // number of rows with messages
	texts int             // number of rows with a prompt and a completion
}

// maxReplayWords is the maximum number of different words of the dataset that are used.
const maxReplayWords = 10_000

func (a *promptStats) add(row *rows.Row) {
	if a.texts++; len(row.Messages) > 0 {
		a.texts, a.chats = a.texts-1, a.chats+1
	}
	a.addWords(row.Prompt)
	for _, m := range row.Messages {
		if m.Role == "user" {
			a.addWords(m.Content)
		}
	}
}

func (a *promptStats) addWords(text string) {
	for word := range strings.FieldsSeq(text) {
		if len(a.order) == maxReplayWords {
			return
		}
		if !a.words[word] {
			if a.words == nil {
				a.words = map[string]bool{}
			}
			a.words[word] = true
			a.order = append(a.order, word)
		}
	}
}

// prompt returns a random prompt: 4 to 43 printable characters, or 1 to 8 words.
func (a *promptStats) prompt(r *rand.Rand) string {
	var text strings.Builder
	if r.Float64() < replayNoise {
		for range 4 + r.IntN(40) {
			text.WriteByte(byte(' ' + r.IntN('~'-' '+1)))
		}
		return text.String()
	}
	for i := range 1 + r.IntN(8) {
		if i > 0 {
			text.WriteByte(' ')
		}
		if len(a.order) > 0 && r.Float64() < replayFromRow {
			text.WriteString(a.order[r.IntN(len(a.order))])
			continue
		}
		const letters, digits = "abcdefghijklmnopqrstuvwxyz", "0123456789"
		from := letters
		if r.IntN(4) == 0 {
			from = digits
		}
		for range 1 + r.IntN(8) {
			text.WriteByte(from[r.IntN(len(from))])
		}
	}
	return text.String()
}

// replayTokens tokenizes a synthetic prompt in the format that most rows of the dataset have.
func (r *reader) replayTokens(text string) ([]int, error) {
	if r.stats.chats >= r.stats.texts {
		return r.chat([]rows.Message{{Role: "user", Content: text}}, nil)
	}
	ids, _ := r.begin(nil, nil)
	ids, _ = r.text(ids, nil, text, false)
	return ids, nil
}

// keepInitial keeps the initial model for the samples with Replay.
func keepInitial(j *job) {
	if j.settings.ReplayWeight == 0 {
		return
	}
	initial := j.loop.Net.Frozen(j.loop.workers)
	for _, lane := range j.loop.lanes {
		lane.initial = llama.NewPass(initial)
	}
	j.loop.replayWeight = j.settings.ReplayWeight
}

// replay computes the divergence from the initial model on samples with Replay, and its gradient,
// multiplied by scale.
func (n *lane) replay(samples []*Sample, scale float32, dropout float64, seed uint64) {
	n.forward(samples, dropout, seed)
	n.initial.Forward(&n.batch)
	q := n.initial.Probabilities()
	n.metrics = means{}
	n.metrics.add("divergence", llama.Divergence(n.pass, q), float64(n.batch.Scored()))
	llama.BackwardDivergence(n.pass, q, scale, n.grad)
}

// A replayProcedure adds replayed responses to the samples of each step, as many as the step has.
type replayProcedure struct {
	*fixedSamples
	replayed []*Sample
	heldOut  []*Sample // responses for eval/retention, which are not trained on
}

// newReplay generates the responses of the initial model to synthetic prompts. They depend only on
// the model, the rows and the seed, so a resumed training generates the same ones.
func newReplay(ctx context.Context, fixed *fixedSamples, train *reader) (*replayProcedure, error) {
	steps := fixed.plan.steps * fixed.settings.BatchSizeSamples * fixed.settings.GradientAccumulationSteps
	count := min(replayPrompts, steps)
	all, err := replayResponses(ctx, fixed.job, train, retentionDrawn+count)
	if err != nil {
		return nil, err
	}
	drawn := all[:min(retentionDrawn, len(all))]
	heldOut, err := confidentSamples(ctx, fixed.loop, drawn)
	if err != nil {
		return nil, err
	}
	r := &replayProcedure{fixed, all[len(drawn):], heldOut}
	for _, s := range r.replayed {
		s.Replay = true
	}
	fixed.logf("replaying %d responses of the initial model to synthetic prompts", len(r.replayed))
	return r, nil
}

// replayResponses returns the responses of the initial model to n synthetic prompts, without empty
// ones.
func replayResponses(ctx context.Context, j *job, train *reader, n int) ([]*Sample, error) {
	random := rand.New(rand.NewPCG(j.request.Seed, 0x7265706c6179))
	prompts := make([][]int, 0, n)
	for range n {
		ids, err := train.replayTokens(train.stats.prompt(random))
		if err != nil {
			return nil, err
		}
		if len(ids)+1 < j.settings.MaxContextLength {
			prompts = append(prompts, ids)
		}
	}
	models, err := serve.Start(1, j.loop.Net.Weights, j.loop.Net.Adapter, j.tokens, j.request.BaseDir, serve.Options{
		Parallelism: j.loop.workers, Slots: replaySlots, Queue: len(prompts),
		ContextLength: j.settings.MaxContextLength,
	})
	if err != nil {
		return nil, err
	}
	model := models[0]
	defer func() { _ = model.Close() }() // Close of a model never returns an error
	out := make([]*Sample, len(prompts))
	errs := make([]error, len(prompts))
	llama.Each(len(prompts), replaySlots, func(i int) {
		out[i], errs[i] = greedyResponse(ctx, j, model, prompts[i])
	})
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(out, func(s *Sample) bool { return s.scored() == 0 }), nil
}

// greedyResponse returns the greedy response of a model to a prompt.
func greedyResponse(ctx context.Context, j *job, model engines.Model, ids []int) (*Sample, error) {
	one := response{prompt: &prompt{tokens: ids}}
	request := engines.CompletionRequest{PromptTokens: ids,
		MaxTokens: min(maxReplayed, j.settings.MaxContextLength-len(ids))}
	if j.loop.Net.Adapter != nil {
		request.Addon = serve.Trained
	}
	_, err := model.Complete(ctx, request, func(c engines.Chunk) error {
		one.tokens = append(one.tokens, c.Tokens...)
		return nil
	})
	return one.sample(), err
}

// confidentSamples returns at most retentionRows samples: those with the highest mean log-probability
// of their targets.
func confidentSamples(ctx context.Context, l *Loop, samples []*Sample) ([]*Sample, error) {
	logp, err := l.logp(ctx, samples)
	if err != nil {
		return nil, err
	}
	order := make([]int, len(samples))
	mean := make([]float64, len(samples))
	for i, values := range logp {
		order[i], mean[i] = i, total(values)/math.Max(float64(len(values)), 1)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case mean[a] > mean[b]:
			return -1
		case mean[a] < mean[b]:
			return 1
		}
		return a - b
	})
	var out []*Sample
	for _, i := range order[:min(retentionRows, len(order))] {
		out = append(out, samples[i])
	}
	return out, nil
}

func (r *replayProcedure) next(ctx context.Context) ([]*Sample, map[string]float64, error) {
	batch, metrics, err := r.fixedSamples.next(ctx)
	if err != nil || len(r.replayed) == 0 {
		return batch, metrics, err
	}
	batch = slices.Clone(batch)
	at := r.state.Step * r.settings.BatchSizeSamples * r.settings.GradientAccumulationSteps
	for i := range len(batch) {
		batch = append(batch, r.replayed[(at+i)%len(r.replayed)])
	}
	return batch, metrics, nil
}

func (r *replayProcedure) evaluate(ctx context.Context) (map[string]float64, error) {
	metrics, err := r.fixedSamples.evaluate(ctx)
	if err != nil || len(r.heldOut) == 0 {
		return metrics, err
	}
	if metrics == nil {
		metrics = map[string]float64{}
	}
	metrics["eval/retention"], err = r.loop.retention(ctx, r.heldOut)
	return metrics, err
}

// retention returns the fraction of samples all of whose targets are the most probable tokens.
func (l *Loop) retention(ctx context.Context, samples []*Sample) (float64, error) {
	kept, shards := mean{}, cut(samples)
	l.each(ctx, shards, func(i int, lane *lane) {
		lane.forward(shards[i], 0, 0)
		lane.metrics = means{}
		at := 0
		for _, s := range shards[i] {
			all := true
			for range s.scored() {
				all = llama.Hit(lane.pass, at) && all
				at++
			}
			lane.metrics.add("kept", share(all), 1)
		}
	}, func(_ int, lane *lane) {
		m := lane.metrics["kept"]
		kept = mean{kept.sum + m.sum, kept.weight + m.weight}
	})
	return kept.value(), ctx.Err()
}
