// Package train fine-tunes a Llama model, or a LoRA adapter for one, on the rows of a dataset.
package train

import (
	"context"
	"math"
	"slices"

	"anneal/domain"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/train/pool"
)

// shardTokens is the approximate number of tokens in a shard of a batch. The shards depend only on
// the samples, and their gradients are added in order, so the result does not depend on the number
// of cores.
const shardTokens = 256

// clipNorm is the maximum norm of the gradient.
const clipNorm = 1

// A Loop trains a model: it has the packed weights, the AdamW optimizer (Loshchilov and Hutter
// 2019), and a pass for each core.
type Loop struct {
	Net     *llama.Net
	Decay   float64 // weight decay of matrices; norms and biases have none
	Dropout float64 // dropout rate of the adapter's inputs
	Seed    uint64  // seed of the dropout

	objective objective
	// replayWeight is the factor of the divergence of samples with Replay; 0 without such samples.
	replayWeight float64
	workers      int
	optimizer    *pool.Optimizer
	total        *llama.Gradient
	// part is the sum of the gradients of a part of a batch; nil before the first batch with
	// several shards in a part.
	part    *llama.Gradient
	lanes   []*lane
	helpers []*helper // other nodes, which compute parts of batches
}

// A lane has the state of one worker goroutine.
type lane struct {
	pass    *llama.Pass
	grad    *llama.Gradient
	batch   llama.Batch
	grads   []float32   // derivatives of the loss with respect to the log-probabilities
	metrics means       // metrics of the shard that the lane computed last
	initial *llama.Pass // pass of the initial model; nil without samples with Replay
}

// NewLoop returns a loop that trains net with workers goroutines. Its objective is likelihood.
func NewLoop(net *llama.Net, workers int) *Loop {
	l := &Loop{
		Net: net, objective: likelihood{}, workers: workers, optimizer: pool.NewOptimizer(net.Parts()),
		total: net.NewGradient(),
	}
	for range workers {
		l.lanes = append(l.lanes, &lane{pass: llama.NewPass(net), grad: net.NewGradient()})
	}
	return l
}

// newEvalLoop returns a loop that can only evaluate: it has no gradients and no optimizer.
func newEvalLoop(net *llama.Net, workers int) *Loop {
	l := &Loop{Net: net, objective: likelihood{}, workers: workers}
	for range workers {
		l.lanes = append(l.lanes, &lane{pass: llama.NewPass(net)})
	}
	return l
}

// setTemperature sets the temperature of the probabilities from which the objective is computed.
func (l *Loop) setTemperature(temperature float64) {
	for _, lane := range l.lanes {
		lane.pass.Temperature = temperature
	}
}

// A StepReport describes an optimizer step.
type StepReport struct {
	// Loss is the mean of the objective before the step, for likelihood in nats per token, plus the
	// weighted mean divergence of the replayed tokens.
	Loss    float64
	Norm    float64 // norm of the gradient before clipping
	Tokens  int     // number of input tokens of the step
	metrics means
}

// Step takes one optimizer step on samples. rate is the learning rate. Step returns an error and
// changes nothing if ctx is done, or if the loss or the gradient is not finite.
func (l *Loop) Step(ctx context.Context, samples []*Sample, rate float64) (StepReport, error) {
	clear(l.total.Flat)
	report, err := l.gradient(ctx, samples)
	if err != nil {
		return report, err
	}
	report.Norm = l.optimizer.Norm(l.total.Flat)
	if !finite(report.Loss) || !finite(report.Norm) {
		return report, errDiverged
	}
	clip := pool.Clip(clipNorm, report.Norm)
	if err := l.share(ctx, rate, clip); err != nil {
		return report, err
	}
	l.update(rate, clip)
	return report, nil
}

// errDiverged is permanent: training again with the same rows and settings would diverge again.
var errDiverged = &domain.Error{Code: domain.FailedPrecondition, Reason: "TRAINING_DIVERGED",
	Message: "the loss or its gradient is not finite: lower learningRate, or raise learningRateWarmupSteps"}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

func (l *Loop) update(rate, clip float64) {
	adam := kernel.Adam{Rate: rate, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, Decay: l.Decay, Clip: clip}
	l.optimizer.Update(l.Net.Trained(), l.total.Flat, adam, l.workers)
	l.Net.Pack(l.workers)
}

// gradient adds the gradient of the objective's mean over samples to l.total, and returns the loss
// and the metrics.
func (l *Loop) gradient(ctx context.Context, samples []*Sample) (StepReport, error) {
	weight, replayed, report := 0.0, 0.0, StepReport{metrics: means{}}
	for _, s := range samples {
		if s.Replay {
			replayed += float64(s.scored())
		} else {
			weight += l.objective.weight(s)
		}
		report.Tokens += s.inputs()
	}
	shards := cut(samples)
	work := batchPart{
		Steps: l.optimizer.Steps, Scale: float32(1 / max(weight, 1)), Temperature: l.lanes[0].pass.Temperature,
		ReplayScale: float32(l.replayWeight / max(replayed, 1)),
	}
	err := l.distribute(ctx, work, shards, func(metrics []means, gradient []float32) error {
		for _, m := range metrics {
			report.metrics.merge(m)
		}
		kernel.Add(l.total.Flat, l.total.Flat, gradient)
		return nil
	})
	report.Loss = report.metrics["loss"].value() + l.replayWeight*report.metrics["divergence"].value()
	return report, err
}

// Loss returns the mean negative log-likelihood of the samples' target tokens in nats, and the
// fraction of target tokens that are the model's most probable token.
func (l *Loop) Loss(ctx context.Context, samples []*Sample) (loss, accuracy float64, err error) {
	metrics, err := l.measure(ctx, samples)
	return metrics["loss"].value(), metrics["accuracy"].value(), err
}

// measure returns the objective's metrics for samples, without computing a gradient.
func (l *Loop) measure(ctx context.Context, samples []*Sample) (means, error) {
	metrics, shards := means{}, cut(samples)
	l.each(ctx, shards, func(i int, lane *lane) {
		logp := lane.forward(shards[i], 0, 0)
		lane.loss(l.objective, shards[i], logp)
		if l.objective == (likelihood{}) {
			lane.metrics.add("accuracy", float64(lane.pass.Hits()), float64(len(logp)))
		}
	}, func(_ int, lane *lane) { metrics.merge(lane.metrics) })
	return metrics, ctx.Err()
}

// logp returns the log-probability of each target token of each sample.
func (l *Loop) logp(ctx context.Context, samples []*Sample) ([][]float32, error) {
	var out [][]float32
	shards := cut(samples)
	l.each(ctx, shards, func(i int, lane *lane) {
		lane.grads = append(lane.grads[:0], lane.forward(shards[i], 0, 0)...)
	}, func(i int, lane *lane) {
		for at, s := 0, 0; s < len(shards[i]); s++ {
			n := shards[i][s].scored()
			out = append(out, slices.Clone(lane.grads[at:at+n]))
			at += n
		}
	})
	return out, ctx.Err()
}

// each calls compute for each shard on a free lane, concurrently, and then add in the order of the
// shards. When ctx is done, it skips the remaining shards.
func (l *Loop) each(ctx context.Context, shards [][]*Sample, compute, add func(i int, lane *lane)) {
	free := make(chan *lane, len(l.lanes))
	for _, lane := range l.lanes {
		free <- lane
	}
	order := newSequencer()
	llama.Each(len(shards), l.workers, func(i int) {
		lane := <-free
		live := ctx.Err() == nil
		if live {
			compute(i, lane)
		}
		order.wait(i)
		if live {
			add(i, lane)
		}
		order.done()
		free <- lane
	})
}

func (n *lane) forward(samples []*Sample, dropout float64, seed uint64) []float32 {
	n.batch.Reset()
	for _, s := range samples {
		n.batch.Add(s.Tokens, s.Scored)
		if r := s.Rejected; r != nil {
			n.batch.Add(r.Tokens, r.Scored)
		}
	}
	return n.pass.ForwardDropout(&n.batch, dropout, seed)
}

// loss computes the losses of samples, and adds them to n.metrics. It writes the derivatives of the
// losses to n.grads, which are not yet divided by the sum of the weights.
func (n *lane) loss(o objective, samples []*Sample, logp []float32) {
	n.metrics = means{}
	n.grads = slices.Grow(n.grads[:0], len(logp))[:len(logp)]
	at := 0
	for _, s := range samples {
		to := at + s.scored()
		n.metrics.add("loss", o.loss(s, logp[at:to], n.grads[at:to], n.metrics), o.weight(s))
		at = to
	}
}

// cut divides samples into shards of about shardTokens tokens. A shard has only samples with Replay
// or none.
func cut(samples []*Sample) [][]*Sample {
	var out [][]*Sample
	for from := 0; from < len(samples); {
		to, tokens := from, 0
		for to < len(samples) && samples[to].Replay == samples[from].Replay &&
			(to == from || tokens+samples[to].inputs() <= shardTokens) {
			tokens += samples[to].inputs()
			to++
		}
		out = append(out, samples[from:to])
		from = to
	}
	return out
}
