// Package train trains a Llama model, or a low-rank adapter on one, from rows
// that a user uploads.
package train

import (
	"context"
	"math"
	"slices"

	"anneal/domain"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
)

// shardTokens is where a batch is cut into shares for the cores. The cuts
// depend on the samples alone and the shares' gradients are added in their
// order, so the number of cores never changes a result.
const shardTokens = 256

// clipNorm is the length to which a longer gradient is shortened.
const clipNorm = 1

// A Loop holds a model in training: its packed weights, its optimiser (AdamW,
// Loshchilov and Hutter 2019) and a pass for each core.
type Loop struct {
	Net     *llama.Net
	Decay   float64 // weight decay of matrices, not of norms
	Dropout float64 // of an adapter's inputs
	Seed    uint64  // of dropout

	objective objective
	workers   int
	mean      []float32 // AdamW's first moment
	variance  []float32 // and second
	steps     int       // optimiser steps so far
	total     *llama.Gradient
	lanes     []*lane
	ranges    []decayRange
}

// A lane is what one core works with.
type lane struct {
	pass   *llama.Pass
	grad   *llama.Gradient
	batch  llama.Batch
	slopes []float32
	told   figures // of the last shard
}

// A decayRange is a stretch of the trained vector of bounded length.
type decayRange struct {
	lo, hi int
	decay  bool
}

// NewLoop prepares the training of net on that many cores. It learns by
// likelihood.
func NewLoop(net *llama.Net, workers int) *Loop {
	n := len(net.Trained())
	l := &Loop{Net: net, objective: likelihood{}, workers: workers, mean: make([]float32, n), variance: make([]float32, n), total: net.NewGradient()}
	for range workers {
		l.lanes = append(l.lanes, &lane{pass: llama.NewPass(net), grad: net.NewGradient()})
	}
	const most = 1 << 16
	at := 0
	for _, part := range net.Parts() {
		for end := at + part.Len; at < end; at = min(at+most, end) {
			l.ranges = append(l.ranges, decayRange{at, min(at+most, end), part.Matrix})
		}
	}
	return l
}

// newViewer makes a loop that measures and cannot learn.
func newViewer(net *llama.Net, workers int) *Loop {
	l := &Loop{Net: net, objective: likelihood{}, workers: workers}
	for range workers {
		l.lanes = append(l.lanes, &lane{pass: llama.NewPass(net)})
	}
	return l
}

// heat sets the temperature of the probabilities that are learnt.
func (l *Loop) heat(temperature float64) {
	for _, lane := range l.lanes {
		lane.pass.Temperature = temperature
	}
}

// A StepReport says how an optimiser step went.
type StepReport struct {
	Loss   float64 // of the objective, before the step; of likelihood in nats a token
	Norm   float64 // of the gradient, before it was clipped
	Tokens int     // inputs passed through the model
	told   figures
}

// Step takes one optimiser step on the samples at a learning rate. Batches of
// any size are worked off in shares of bounded memory. When ctx is done, or the
// loss or the gradient is not a number, nothing changes and the error says so.
func (l *Loop) Step(ctx context.Context, samples []*Sample, rate float64) (StepReport, error) {
	clear(l.total.Flat)
	report, err := l.gradient(ctx, samples)
	if err != nil {
		return report, err
	}
	sum := 0.0
	for _, r := range l.ranges {
		sum += float64(kernel.SumSquares(l.total.Flat[r.lo:r.hi]))
	}
	report.Norm = math.Sqrt(sum)
	if !finite(report.Loss) || !finite(report.Norm) {
		return report, errDiverged
	}
	l.update(rate, min(1, clipNorm/(report.Norm+1e-6)))
	return report, nil
}

// errDiverged is not tried again: the same rows and settings diverge again.
var errDiverged = &domain.Error{Code: domain.FailedPrecondition, Reason: "TRAINING_DIVERGED",
	Message: "the loss is no longer a number: lower learningRate, or add learningRateWarmupSteps"}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

func (l *Loop) update(rate, clip float64) {
	l.steps++
	w := l.Net.Trained()
	llama.Each(len(l.ranges), l.workers, func(i int) {
		r := l.ranges[i]
		adam := kernel.Adam{Rate: rate, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, Clip: clip, Step: l.steps}
		if r.decay {
			adam.Decay = l.Decay
		}
		adam.Update(w[r.lo:r.hi], l.mean[r.lo:r.hi], l.variance[r.lo:r.hi], l.total.Flat[r.lo:r.hi])
	})
	l.Net.Pack(l.workers)
}

// gradient adds the gradient of the objective's mean over the samples to total.
func (l *Loop) gradient(ctx context.Context, samples []*Sample) (StepReport, error) {
	weight, report := 0.0, StepReport{told: figures{}}
	for _, s := range samples {
		weight += l.objective.weight(s)
		report.Tokens += s.inputs()
	}
	shards := cut(samples)
	scale := float32(1 / max(weight, 1))
	l.each(ctx, shards, func(i int, lane *lane) {
		lane.judge(l.objective, shards[i], lane.forward(shards[i], l.Dropout, l.Seed+uint64(l.steps)<<20+uint64(i)))
		kernel.Scale(scale, lane.slopes)
		clear(lane.grad.Flat)
		lane.pass.Backward(lane.slopes, lane.grad)
	}, func(_ int, lane *lane) {
		report.told.merge(lane.told)
		kernel.Add(l.total.Flat, l.total.Flat, lane.grad.Flat)
	})
	report.Loss = report.told["loss"].value()
	return report, ctx.Err()
}

// Loss is the mean negative log-likelihood of the samples' learnt tokens, in
// nats, and the share of them that the model finds most likely.
func (l *Loop) Loss(ctx context.Context, samples []*Sample) (loss, accuracy float64, err error) {
	told, err := l.measure(ctx, samples)
	return told["loss"].value(), told["accuracy"].value(), err
}

// measure is the objective's figures of samples.
func (l *Loop) measure(ctx context.Context, samples []*Sample) (figures, error) {
	told, shards := figures{}, cut(samples)
	l.each(ctx, shards, func(i int, lane *lane) {
		logp := lane.forward(shards[i], 0, 0)
		lane.judge(l.objective, shards[i], logp)
		if l.objective == (likelihood{}) {
			lane.told.add("accuracy", float64(lane.pass.Hits()), float64(len(logp)))
		}
	}, func(_ int, lane *lane) { told.merge(lane.told) })
	return told, ctx.Err()
}

// logp is the log-probability of each learnt token of each sample.
func (l *Loop) logp(ctx context.Context, samples []*Sample) ([][]float32, error) {
	var out [][]float32
	shards := cut(samples)
	l.each(ctx, shards, func(i int, lane *lane) {
		lane.slopes = append(lane.slopes[:0], lane.forward(shards[i], 0, 0)...)
	}, func(i int, lane *lane) {
		for at, s := 0, 0; s < len(shards[i]); s++ {
			n := shards[i][s].scored()
			out = append(out, slices.Clone(lane.slopes[at:at+n]))
			at += n
		}
	})
	return out, ctx.Err()
}

// each has the lanes compute the shards, and adds up what they found one after
// another in the shards' order. It leaves out the rest when ctx is done.
func (l *Loop) each(ctx context.Context, shards [][]*Sample, compute, add func(i int, lane *lane)) {
	free := make(chan *lane, len(l.lanes))
	for _, lane := range l.lanes {
		free <- lane
	}
	order := newTurns()
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

// judge puts the slopes of the samples' losses, not yet divided by anything,
// into slopes.
func (n *lane) judge(o objective, samples []*Sample, logp []float32) {
	n.told = figures{}
	n.slopes = slices.Grow(n.slopes[:0], len(logp))[:len(logp)]
	at := 0
	for _, s := range samples {
		to := at + s.scored()
		n.told.add("loss", o.judge(s, logp[at:to], n.slopes[at:to], n.told), o.weight(s))
		at = to
	}
}

// cut divides samples into shares of about shardTokens.
func cut(samples []*Sample) [][]*Sample {
	var out [][]*Sample
	for from := 0; from < len(samples); {
		to, tokens := from, 0
		for to < len(samples) && (to == from || tokens+samples[to].inputs() <= shardTokens) {
			tokens += samples[to].inputs()
			to++
		}
		out = append(out, samples[from:to])
		from = to
	}
	return out
}
