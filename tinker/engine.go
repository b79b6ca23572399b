package tinker

import (
	"maps"
	"math"
	"slices"
	"strconv"

	"anneal/domain"
	"anneal/engines"
)

// A lossForm lists the inputs and settings that a loss reads.
type lossForm struct {
	required, optional []string // inputs of a datum
	settings           []string
	multiple           bool // a token can have several targets
}

var lossForms = map[engines.TrainLoss]lossForm{
	engines.LossCrossEntropy: {required: []string{TargetTokens}, optional: []string{Weights}, multiple: true},
	engines.LossImportanceSampling: {required: []string{TargetTokens, Logprobs, Advantages},
		optional: []string{Weights}},
	engines.LossPPO: {required: []string{TargetTokens, Logprobs, Advantages}, optional: []string{Weights},
		settings: []string{ClipLow, ClipHigh}},
	engines.LossCISPO: {required: []string{TargetTokens, Logprobs, Advantages}, optional: []string{Weights},
		settings: []string{ClipLow, ClipHigh}},
	engines.LossDRO: {required: []string{TargetTokens, Logprobs, Advantages}, optional: []string{Weights},
		settings: []string{Beta}},
}

// Losses returns the names of the losses.
func Losses() []string {
	var names []string
	for name := range lossForms {
		names = append(names, string(name))
	}
	slices.Sort(names)
	return names
}

// Pass validates the request and converts it to the pass of an engine. The engine also checks that
// the tokens are in the model's vocabulary and that the data fit into its context. A request that
// DecodePass returned must not be modified before the call, because its converted pass is cached.
func (r *ForwardBackwardRequest) Pass() (engines.TrainPass, error) {
	if r.pass != nil {
		return *r.pass, nil
	}
	var v domain.Violations
	pass := r.Input.pass(&v)
	return pass, v.Err()
}

func (f *ForwardBackwardInput) pass(v *domain.Violations) engines.TrainPass {
	pass := engines.TrainPass{Loss: engines.TrainLoss(f.LossFn)}
	form, ok := lossForms[pass.Loss]
	if !ok {
		v.Add("loss_fn", "is %s; %s", quote(f.LossFn), domain.OneOfRule(short(f.LossFn), Losses()))
		return pass
	}
	f.settings(v, &pass, form)
	if n := len(f.Data); n == 0 || n > MaxDatums {
		v.Add("data", "must have 1 to %d entries, has %d: divide the data into several passes", MaxDatums, n)
		return pass
	}
	pass.Data = make([]engines.TrainDatum, len(f.Data))
	targets := 0
	for i := range f.Data {
		for _, tensor := range f.Data[i].LossFnInputs {
			targets += max(0, tensor.elements())
		}
		if targets > MaxPassTargets*4 {
			v.Add(index("data", i), "the tensors of the pass must have at most %d elements: divide the data into several "+
				"passes", MaxPassTargets*4)
			break
		}
		pass.Data[i] = f.Data[i].convert(v, index("data", i), form)
		if len(*v) > domain.MaxViolations {
			break
		}
	}
	return pass
}

// settings converts loss_fn_config.
func (f *ForwardBackwardInput) settings(v *domain.Violations, pass *engines.TrainPass, form lossForm) {
	for _, name := range slices.Sorted(maps.Keys(f.LossFnConfig)) {
		value, at := f.LossFnConfig[name], "loss_fn_config."+quoteKey(name)
		switch {
		case !slices.Contains(form.settings, name) && len(form.settings) == 0:
			v.Add(at, "is not a setting of %s, which has none: leave it out", f.LossFn)
			continue
		case !slices.Contains(form.settings, name):
			v.Add(at, "is not a setting of %s%s", f.LossFn,
				domain.UnknownName(short(name), "settings of this loss: ", form.settings))
			continue
		}
		switch name {
		case ClipLow:
			pass.ClipLow = &value
			v.Require(value >= 0 && value <= 1, at, "must be 0 to 1, is %g; it is a bound of the ratio, such as %g", value,
				engines.DefaultClipLow)
		case ClipHigh:
			pass.ClipHigh = &value
			v.Require(value >= 1 && !math.IsInf(value, 0), at, "must be a finite number of at least 1, is %g; it is a bound "+
				"of the ratio, such as %g", value, engines.DefaultClipHigh)
		case Beta:
			pass.Beta = &value
			v.Require(value >= 0 && !math.IsInf(value, 0), at, "must be a finite number of at least 0, is %g", value)
		}
	}
}

// convert converts a datum.
func (d *Datum) convert(v *domain.Violations, path string, form lossForm) engines.TrainDatum {
	out := engines.TrainDatum{Tokens: d.ModelInput.tokens(v, path+".model_input")}
	inputs := path + ".loss_fn_inputs"
	for _, name := range form.required {
		_, ok := d.LossFnInputs[name]
		v.Require(ok, inputs+"."+name, "is required by this loss")
	}
	n := len(out.Tokens)
	target := d.LossFnInputs[TargetTokens]
	targets := target.elements()
	valid := n > 0 && targets > 0 && targets%n == 0 && targets/n <= MaxTargetsPerToken && (form.multiple || targets == n)
	if _, ok := d.LossFnInputs[TargetTokens]; ok && n > 0 && !valid {
		limit := 1
		if form.multiple {
			limit = MaxTargetsPerToken
		}
		v.Add(inputs+"."+TargetTokens, "must have 1 to %d targets for each of %d tokens, has %d elements", limit, n, targets)
	}
	for _, name := range slices.Sorted(maps.Keys(d.LossFnInputs)) {
		tensor, at := d.LossFnInputs[name], inputs+"."+quoteKey(name)
		if !slices.Contains(form.required, name) && !slices.Contains(form.optional, name) {
			if isEmptyTensor(&tensor) || name == Advantages || name == Logprobs {
				continue // cross_entropy reads neither
			}
			v.Add(at, "is not an input of this loss%s",
				domain.UnknownName(short(name), "inputs of this loss: ", slices.Concat(form.required, form.optional)))
			continue
		}
		if !tensor.check(v, at) || !valid {
			continue
		}
		if tensor.elements() != targets || len(tensor.Shape) == 2 && tensor.Shape[0] != int64(n) {
			v.Add(at, "must have a value for each of %d targets in %d rows, has the shape %v", targets, n, tensor.Shape)
			continue
		}
		set(v, &out, name, at, &tensor)
	}
	return out
}

func isEmptyTensor(t *Tensor) bool { return t.stored() == 0 && t.Sparse == nil }

// set converts one input of a loss.
func set(v *domain.Violations, out *engines.TrainDatum, name, path string, t *Tensor) {
	if name == TargetTokens {
		if t.DType != Int64 {
			v.Add(path+".dtype", "must be %q, is %s", Int64, quote(string(t.DType)))
			return
		}
		out.Targets = make([]int32, t.elements())
		for i, token := range dense(t, t.Ints) {
			if token < 0 || token > math.MaxInt32 {
				v.Add(path, "token %d must be 0 to %d, is %d", i, math.MaxInt32, token)
				return
			}
			out.Targets[i] = int32(token)
		}
		return
	}
	values := dense(t, t.Floats)
	if t.DType == Int64 {
		ints := dense(t, t.Ints)
		values = make([]float32, len(ints))
		for i, x := range ints {
			values[i] = float32(x)
		}
	}
	for i, x := range values {
		if x != x || math.IsInf(float64(x), 0) {
			v.Add(path, "number %d must be finite, is %s", i, strconv.FormatFloat(float64(x), 'g', -1, 32))
			return
		}
	}
	switch name {
	case Weights:
		out.Weights = values
	case Advantages:
		out.Advantages = values
	case Logprobs:
		out.Logprobs = values
	}
}

// Dense returns the elements of a tensor in row-major order, including the zeros of a sparse one.
func (t Tensor) Dense() ([]float32, error) {
	var v domain.Violations
	if !t.check(&v, "tensor") {
		return nil, v.Err()
	}
	if t.DType == Float32 {
		return dense(&t, t.Floats), nil
	}
	ints := dense(&t, t.Ints)
	values := make([]float32, len(ints))
	for i, x := range ints {
		values[i] = float32(x)
	}
	return values, nil
}

// TargetsPerToken returns, for each datum of a pass, the number of targets of each of its tokens;
// nil if that is 1 for all data. OutputOf needs it for the shapes of the outputs.
func TargetsPerToken(pass *engines.TrainPass) []int {
	counts, several := make([]int, len(pass.Data)), false
	for i := range pass.Data {
		counts[i] = max(1, len(pass.Data[i].Targets)/max(1, len(pass.Data[i].Tokens)))
		several = several || counts[i] > 1
	}
	if !several {
		return nil
	}
	return counts
}

// A LoraConfig describes the adapter of a run.
type LoraConfig struct {
	Rank         int    `json:"rank"`
	Seed         *int64 `json:"seed,omitempty"`
	TrainUnembed *bool  `json:"train_unembed,omitempty"` // default true
	TrainMLP     *bool  `json:"train_mlp,omitempty"`     // default true
	TrainAttn    *bool  `json:"train_attn,omitempty"`    // default true
}

func (c *LoraConfig) check(v *domain.Violations, prefix string) {
	v.Require(c.Rank >= 1 && c.Rank <= engines.MaxTrainRank, prefix+"rank", "must be 1 to %d, is %d", engines.MaxTrainRank,
		c.Rank)
	v.Require(c.Seed == nil || *c.Seed >= 0 && *c.Seed <= domain.MaxTrainingSeed, prefix+"seed",
		"must be 0 to %d, is %d; leave it out for a seed that the server chooses", int64(domain.MaxTrainingSeed),
		valueOf(c.Seed, 0))
	v.Require(valueOf(c.TrainMLP, true) || valueOf(c.TrainAttn, true), prefix+"train_attn",
		"must be true if train_mlp is false: nothing else would be trained")
}

// RunConfig converts the configuration. seed is the seed of the run if c has none.
func (c *LoraConfig) RunConfig(seed uint64) engines.TrainRunConfig {
	if c.Seed != nil {
		seed = uint64(*c.Seed)
	}
	return engines.TrainRunConfig{Rank: c.Rank, Alpha: engines.DefaultTrainAlpha, Seed: seed,
		TrainAttn: valueOf(c.TrainAttn, true), TrainMLP: valueOf(c.TrainMLP, true),
		TrainUnembed: valueOf(c.TrainUnembed, true)}
}

// AdamParams are the parameters of a step. Absent ones have the default of
// engines.DefaultAdamParams.
type AdamParams struct {
	LearningRate *float64 `json:"learning_rate,omitempty"`
	Beta1        *float64 `json:"beta1,omitempty"`
	Beta2        *float64 `json:"beta2,omitempty"`
	Eps          *float64 `json:"eps,omitempty"`
	WeightDecay  *float64 `json:"weight_decay,omitempty"`
	GradClipNorm *float64 `json:"grad_clip_norm,omitempty"`
}

// NewAdamParams returns the wire form of parameters.
func NewAdamParams(p engines.AdamParams) AdamParams {
	return AdamParams{&p.LearningRate, &p.Beta1, &p.Beta2, &p.Epsilon, &p.WeightDecay, &p.GradClipNorm}
}

// Params converts the parameters.
func (a *AdamParams) Params() engines.AdamParams {
	d := engines.DefaultAdamParams()
	return engines.AdamParams{
		LearningRate: valueOf(a.LearningRate, d.LearningRate), Beta1: valueOf(a.Beta1, d.Beta1),
		Beta2: valueOf(a.Beta2, d.Beta2), Epsilon: valueOf(a.Eps, d.Epsilon),
		WeightDecay: valueOf(a.WeightDecay, d.WeightDecay), GradClipNorm: valueOf(a.GradClipNorm, d.GradClipNorm),
	}
}

func (a *AdamParams) check(v *domain.Violations, prefix string) {
	p := a.Params()
	for _, f := range []struct {
		name  string
		value float64
		hint  string
	}{{"learning_rate", p.LearningRate, ""}, {"weight_decay", p.WeightDecay, ""},
		{"grad_clip_norm", p.GradClipNorm, "; 0 stands for no maximum"}} {
		v.Require(f.value >= 0 && finite32(f.value), prefix+f.name, "must be at least 0 and finite as float32, is %g%s",
			f.value, f.hint)
	}
	v.Require(!(p.LearningRate*p.WeightDecay > 1), prefix+"weight_decay", "must be at most 1/learning_rate, because each "+
		"step multiplies weights by 1 − learning_rate·weight_decay; the product is %g", p.LearningRate*p.WeightDecay)
	for i, beta := range []float64{p.Beta1, p.Beta2} {
		v.Require(beta >= 0 && float32(beta) < 1, prefix+"beta"+strconv.Itoa(i+1), "must be at least 0 and below 1, is %g",
			beta)
	}
	v.Require(float32(p.Epsilon) > 0 && finite32(p.Epsilon), prefix+"eps",
		"must be above 0 and finite as float32, is %g", p.Epsilon)
}

func finite32(x float64) bool { return math.Abs(x) <= math.MaxFloat32 }
