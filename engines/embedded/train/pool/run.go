package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
)

// A run implements engines.TrainRun.
type run struct {
	pool      *Pool
	config    engines.TrainRunConfig
	adapter   *llama.TrainedAdapter
	optimizer *Optimizer
	warnings  []string
	bytes     int64 // memory that is reserved in the pool; 0 after Close; guarded by pool.mu

	gradient    *llama.Gradient // sum since the last step
	order       *llama.Order    // order of the passes that add to gradient
	turn        int             // number of passes that have added to gradient, or will; guarded by pool.mu
	failed      error           // the gradient or the adapter may be damaged; guarded by pool.mu
	accumulated bool            // gradient may not be zero
	diverged    bool            // a loss since the last step was not finite
}

// CreateRun implements engines.TrainPool.
func (p *Pool) CreateRun(_ context.Context, config engines.TrainRunConfig) (_ engines.TrainRun, err error) {
	defer recovered(&err)
	r, err := p.newRun(config)
	if err != nil {
		return nil, err
	}
	complete := false
	defer r.closeUnless(&complete)
	r.adapter.Initialize(config.Seed)
	r.adapter.Pack()
	complete = true
	return r, nil
}

// newRun returns a run whose adapter has zero matrices. It reserves the memory, which Close frees.
func (p *Pool) newRun(config engines.TrainRunConfig) (*run, error) {
	if config.Alpha == 0 {
		config.Alpha = engines.DefaultTrainAlpha
	}
	var modules []llama.Module
	if config.TrainAttn {
		modules = append(modules, llama.Query, llama.Key, llama.Value, llama.Output)
	}
	if config.TrainMLP {
		modules = append(modules, llama.Gate, llama.Up, llama.Down)
	}
	var v domain.Violations
	v.Require(config.Rank >= 1 && config.Rank <= engines.MaxTrainRank, "rank", "must be 1 to %d, is %d",
		engines.MaxTrainRank, config.Rank)
	v.Require(float32(config.Alpha/engines.MaxTrainRank) > 0 && finite32(config.Alpha), "alpha",
		"must be above 0 and finite as float32, also divided by the rank, is %g", config.Alpha)
	v.Require(len(modules) > 0, "train_attn", "train_attn or train_mlp must be true: the embedded engine trains no others")
	v.Require(config.Share.Weight >= 0 && config.Share.Weight <= engines.MaxTrainWeight, "share",
		"must have a weight of 0 to %d, has %d", engines.MaxTrainWeight, config.Share.Weight)
	if err := v.Err(); err != nil {
		return nil, err
	}
	c := &p.net.Weights.Config
	bytes := c.TrainedBytes(config.Rank, modules)
	if err := p.reserve(bytes); err != nil {
		return nil, err
	}
	a := llama.NewAdapter(*c, config.Rank, config.Alpha, modules)
	a.BaseHash = p.hash
	r := &run{pool: p, bytes: bytes, config: config, adapter: llama.NewTrainedAdapter(c, a), order: llama.NewOrder(c)}
	if config.TrainUnembed {
		r.warnings = append(r.warnings, "train_unembed: the embedded engine does not train the unembedding; "+
			"the adapter changes the projections of attention and MLP only")
	}
	r.gradient = r.adapter.NewGradient(c)
	r.optimizer = NewOptimizer([]llama.Part{{Len: len(a.Flat()), Matrix: true}})
	return r, nil
}

// Config implements engines.TrainRun.
func (r *run) Config() engines.TrainRunConfig { return r.config }

// Warnings implements engines.TrainRun.
func (r *run) Warnings() []string { return slices.Clone(r.warnings) }

// Forward implements engines.TrainRun.
func (r *run) Forward(ctx context.Context, pass engines.TrainPass) (engines.TrainPassResult, error) {
	return r.compute(ctx, pass, false)
}

// ForwardBackward implements engines.TrainRun.
func (r *run) ForwardBackward(ctx context.Context, pass engines.TrainPass) (engines.TrainPassResult, error) {
	return r.compute(ctx, pass, true)
}

func (r *run) compute(ctx context.Context, pass engines.TrainPass, backward bool) (
	result engines.TrainPassResult, err error,
) {
	defer recovered(&err)
	if err := r.err(); err != nil {
		return result, err
	}
	pass.Loss = cmp.Or(pass.Loss, engines.LossCrossEntropy)
	c := &call{run: r, pass: &pass, backward: backward}
	if c.loss, err = lossOf(&pass); err != nil {
		return result, err
	}
	if err := r.pool.check(&pass, &c.loss); err != nil {
		return result, err
	}
	if err := r.pool.do(ctx, c); err != nil {
		return result, err
	}
	sum := 0.0
	for _, one := range c.losses {
		sum += one
	}
	if backward { // Forward changes nothing, and may run several times concurrently
		r.accumulated, r.diverged = true, r.diverged || !finite(sum)
	}
	if !finite(sum) {
		return result, errDiverged("the loss is not finite: lower the learning rate, or check logprobs and advantages")
	}
	return engines.TrainPassResult{Outputs: c.outputs, Metrics: map[string]float64{engines.MetricLossSum: sum}}, nil
}

// fail makes all later calls return an error. pool.mu is locked.
func (r *run) fail(err error) {
	r.order.Fail()
	if r.failed != nil {
		return
	}
	var f *domain.Error
	if r.failed = err; errors.As(err, &f) {
		r.failed = &domain.Error{Code: f.Code, Reason: f.Reason,
			Message: "the run has failed, so restore it from its last saved state: " + f.Message}
	}
}

// err returns the error of a run, or of a pool, that has failed.
func (r *run) err() error {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	return cmp.Or(r.failed, r.pool.failed)
}

// recovered is deferred by methods. It recovers from a panic and sets err.
func recovered(err *error) {
	if cause := recover(); cause != nil {
		*err = engines.ErrPanicked(cause)
	}
}

func errDiverged(why string) error {
	return &domain.Error{Code: domain.FailedPrecondition, Reason: engines.TrainingDiverged, Message: why}
}

// Step implements engines.TrainRun.
func (r *run) Step(ctx context.Context, o engines.AdamParams) (result engines.TrainStepResult, err error) {
	if err := cmp.Or(ctx.Err(), r.err(), checkAdam(&o)); err != nil {
		return result, err
	}
	defer func() {
		if cause := recover(); cause != nil {
			err = engines.ErrPanicked(cause)
			r.pool.mu.Lock()
			defer r.pool.mu.Unlock()
			r.fail(err)
		}
	}()
	defer r.clearGradient()
	norm := r.optimizer.Norm(r.gradient.Flat)
	if r.diverged || !finite(norm) {
		return engines.TrainStepResult{}, errDiverged("the loss or its gradient is not finite, so the step was not taken: " +
			"lower the learning rate")
	}
	adam := kernel.Adam{
		Rate: o.LearningRate, Beta1: o.Beta1, Beta2: o.Beta2, Epsilon: o.Epsilon, Decay: o.WeightDecay, Clip: 1,
	}
	if o.GradClipNorm > 0 {
		adam.Clip = Clip(o.GradClipNorm, norm)
	}
	if !r.optimizer.Step(r.adapter.Flat(), r.gradient.Flat, norm, adam, r.pool.workers) {
		return engines.TrainStepResult{}, errDiverged("the norm of the new weights is not finite, so the step was " +
			"not taken: lower the learning rate, or raise eps")
	}
	r.adapter.Pack()
	return engines.TrainStepResult{Step: r.optimizer.Steps, GradNorm: norm}, nil
}

func (r *run) clearGradient() {
	clear(r.gradient.Flat)
	r.accumulated, r.diverged = false, false
}

// checkAdam returns InvalidArgument if parameters are out of range.
func checkAdam(o *engines.AdamParams) error {
	var v domain.Violations
	fields := map[string]float64{
		"learning_rate": o.LearningRate, "weight_decay": o.WeightDecay, "grad_clip_norm": o.GradClipNorm,
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		x := fields[name]
		v.Require(x >= 0 && finite32(x), name, "must be at least 0 and finite as float32, is %g", x)
	}
	v.Require(!(o.LearningRate*o.WeightDecay > 1), "weight_decay",
		"must be at most 1/learning_rate, because each step multiplies weights by 1 − learning_rate·weight_decay; "+
			"the product is %g", o.LearningRate*o.WeightDecay)
	for i, beta := range []float64{o.Beta1, o.Beta2} {
		v.Require(beta >= 0 && float32(beta) < 1, fmt.Sprintf("beta%d", i+1), "must be at least 0 and below 1, is %g", beta)
	}
	v.Require(float32(o.Epsilon) > 0 && finite32(o.Epsilon), "eps", "must be above 0 and finite as float32, is %g",
		o.Epsilon)
	return v.Err()
}

// Steps implements engines.TrainRun.
func (r *run) Steps() int { return r.optimizer.Steps }

// Export implements engines.TrainRun.
func (r *run) Export(ctx context.Context, dir string) (err error) {
	defer recovered(&err)
	if err := cmp.Or(ctx.Err(), r.err()); err != nil {
		return err
	}
	return r.adapter.Save(dir, 0)
}

// Close implements engines.TrainRun.
func (r *run) Close() error {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.pool.used -= r.bytes
	r.bytes = 0
	return nil
}

// closeUnless is deferred by functions that return a run. It frees the memory of the run unless it
// is complete.
func (r *run) closeUnless(complete *bool) {
	if !*complete {
		_ = r.Close() // Close of a run never returns an error
	}
}

func fieldName(datum int, name string) string { return fmt.Sprintf("data[%d].%s", datum, name) }
