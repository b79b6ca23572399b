package pool

import (
	"cmp"
	"math"

	"anneal/domain"
	"anneal/engines"
)

// A target has the values of one target that losses read.
type target struct {
	logp      float64 // log-probability of the target
	weight    float64
	advantage float64
	old       float64 // log-probability under the old policy, which generated the target
}

// A loss is a loss function.
type loss struct {
	// value returns the loss of a target, and its derivative with respect to the log-probability.
	value  func(t target) (value, grad float64)
	policy bool // it reads the advantages, and the log-probabilities under the old policy
}

// lossOf returns the loss function of a pass, which engines.TrainLoss defines.
func lossOf(p *engines.TrainPass) (loss, error) {
	low, high := valueOf(p.ClipLow, engines.DefaultClipLow), valueOf(p.ClipHigh, engines.DefaultClipHigh)
	beta := valueOf(p.Beta, engines.DefaultDROBeta)
	var v domain.Violations
	v.Require(low >= 0 && low <= 1, "clip_low_threshold", "must be 0 to 1, is %g", low)
	v.Require(high >= 1 && finite(high), "clip_high_threshold", "must be a finite number of at least 1, is %g", high)
	v.Require(beta >= 0 && finite(beta), "beta", "must be a finite number of at least 0, is %g", beta)
	if err := v.Err(); err != nil {
		return loss{}, err
	}
	switch cmp.Or(p.Loss, engines.LossCrossEntropy) {
	case engines.LossCrossEntropy:
		return loss{value: func(t target) (value, grad float64) { return -t.weight * t.logp, -t.weight }}, nil
	case engines.LossImportanceSampling:
		return loss{policy: true, value: masked(func(t target) (value, grad float64) {
			value = -t.weight * math.Exp(t.logp-t.old) * t.advantage
			return value, value
		})}, nil
	case engines.LossPPO:
		return loss{policy: true, value: masked(func(t target) (value, grad float64) {
			ratio := math.Exp(t.logp - t.old)
			free, bound := ratio*t.advantage, min(max(ratio, low), high)*t.advantage
			if bound < free { // the clipping has an effect
				return -t.weight * bound, 0
			}
			return -t.weight * free, -t.weight * free
		})}, nil
	case engines.LossCISPO:
		return loss{policy: true, value: masked(func(t target) (value, grad float64) {
			grad = -t.weight * min(max(math.Exp(t.logp-t.old), low), high) * t.advantage
			return grad * t.logp, grad
		})}, nil
	case engines.LossDRO:
		return loss{policy: true, value: func(t target) (value, grad float64) {
			shift := t.logp - t.old
			return -t.weight * (t.advantage*t.logp - beta/2*shift*shift), -t.weight * (t.advantage - beta*shift)
		}}, nil
	}
	return loss{}, domain.Errorf(domain.InvalidArgument,
		"loss_fn: %q is not supported: use cross_entropy, importance_sampling, ppo, cispo or dro", p.Loss)
}

// masked returns a loss function that is 0 where the advantage is 0, even if the ratio of the policies
// is not finite.
func masked(value func(t target) (value, grad float64)) func(t target) (value, grad float64) {
	return func(t target) (float64, float64) {
		if t.advantage == 0 {
			return 0, 0
		}
		return value(t)
	}
}

func valueOf(p *float64, otherwise float64) float64 {
	if p == nil {
		return otherwise
	}
	return *p
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// finite32 reports whether x is finite as float32.
func finite32(x float64) bool { return finite(float64(float32(x))) }

// apply computes the losses of the targets of a datum from lo on from their log-probabilities, and
// writes their derivatives to grads. A target with the weight 0 has the loss and the derivative 0. It
// writes the losses to values unless that is nil, and returns their sum with that of the targets
// before. The sum is not finite if a loss or a derivative is not finite as float32.
func (l *loss) apply(sum float64, d *engines.TrainDatum, lo int, logp, grads, values []float32) float64 {
	for i, lp := range logp {
		t := target{logp: float64(lp), weight: 1}
		if d.Weights != nil {
			t.weight = float64(d.Weights[lo+i])
		}
		if l.policy {
			t.advantage, t.old = float64(d.Advantages[lo+i]), float64(d.Logprobs[lo+i])
		}
		value, grad := 0.0, 0.0
		if t.weight != 0 {
			value, grad = l.value(t)
		}
		if !finite32(value) || !finite32(grad) {
			value = math.NaN()
		}
		grads[i], sum = float32(grad), sum+value
		if values != nil {
			values[i] = float32(value)
		}
	}
	return sum
}

// check returns an InvalidArgument error with all violations if a pass with the loss l is not valid
// for the model.
func (p *Pool) check(pass *engines.TrainPass, l *loss) error {
	var v domain.Violations
	entropy := cmp.Or(pass.Loss, engines.LossCrossEntropy) == engines.LossCrossEntropy
	c := &p.net.Weights.Config
	v.Require(len(pass.Data) > 0, "data", "must not be empty")
	for i := range pass.Data {
		d := &pass.Data[i]
		n, m := len(d.Tokens), len(d.Targets)
		field := func(name string) string { return fieldName(i, name) }
		v.Require(n > 0 && n <= c.MaxPositions, field("model_input"), "must have 1 to %d tokens, has %d", c.MaxPositions, n)
		v.Require(n <= p.maxTokens || n > c.MaxPositions, field("model_input"), "has %d tokens, but this pool has memory "+
			"for data of at most %d: shorten it, or open the pool with a higher maximum", n, p.maxTokens)
		if n == 0 {
			continue
		}
		v.Require(m > 0 && m%n == 0 && (entropy || m == n), field("target_tokens"),
			"must have a target for each of %d tokens, has %d", n, m)
		within(&v, field("model_input"), d.Tokens, c.VocabSize)
		within(&v, field("target_tokens"), d.Targets, c.VocabSize)
		numbers(&v, field("weights"), d.Weights, m, d.Weights == nil)
		numbers(&v, field("advantages"), d.Advantages, m, !l.policy)
		numbers(&v, field("logprobs"), d.Logprobs, m, !l.policy)
	}
	return v.Err()
}

func within(v *domain.Violations, field string, tokens []int32, vocab int) {
	for i, token := range tokens {
		if token < 0 || int(token) >= vocab {
			v.Require(false, field, "token %d must be 0 to %d, is %d", i, vocab-1, token)
			return
		}
	}
}

// numbers requires n finite numbers, or none if they are optional.
func numbers(v *domain.Violations, field string, numbers []float32, n int, optional bool) {
	if optional && len(numbers) == 0 {
		return
	}
	v.Require(len(numbers) == n, field, "must have a number for each of %d targets, has %d", n, len(numbers))
	for i, x := range numbers {
		if !finite(float64(x)) {
			v.Require(false, field, "number %d must be finite, is %g", i, x)
			return
		}
	}
}
