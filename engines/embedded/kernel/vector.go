package kernel

import "math"

// Dot returns the sum of a[i]·b[i].
func Dot(a, b []float32) float32 {
	same("length of b", len(b), len(a))
	return dot(a, b)
}

// SumSquares returns the sum of x[i]².
func SumSquares(x []float32) float32 { return dot(x, x) }

// Sum returns the sum of x[i].
func Sum(x []float32) float32 { return sum(x) }

// Max returns the maximum of x; minus infinity if x is empty.
func Max(x []float32) float32 { return greatest(x) }

// Axpy computes y += alpha·x, element by element.
func Axpy(alpha float32, x, y []float32) {
	same("length of y", len(y), len(x))
	axpy(x, y, alpha)
}

// Add computes dst = x + y, element by element. dst may be x or y.
func Add(dst, x, y []float32) {
	same("length of x", len(x), len(dst))
	same("length of y", len(y), len(dst))
	add(dst, x, y)
}

// Mul computes dst = x·y, element by element. dst may be x or y.
func Mul(dst, x, y []float32) {
	same("length of x", len(x), len(dst))
	same("length of y", len(y), len(dst))
	mul(dst, x, y)
}

// Scale computes x *= alpha, element by element.
func Scale(alpha float32, x []float32) { scale(x, alpha) }

// Exp computes dst = eˣ, with an error of at most two units in the last place. dst may be x.
// Results below the smallest normal number are zero, and results above the largest number are
// infinite.
func Exp(dst, x []float32) {
	same("length of x", len(x), len(dst))
	exp(dst, x)
}

// Softmax replaces a row of logits by their probabilities. A logit of minus infinity has the
// probability 0. If all logits are minus infinity, all probabilities are 0.
func Softmax(row []float32) {
	top := greatest(row)
	if math.IsInf(float64(top), -1) {
		clear(row)
		return
	}
	scale(row, 1/expSum(row, row, top))
}

// SoftmaxLog is like Softmax, and returns the result of LogSumExp64 for the logits.
func SoftmaxLog(row []float32) float64 {
	top := greatest(row)
	if math.IsInf(float64(top), -1) {
		clear(row)
		return math.Inf(-1)
	}
	sum := expSum(row, row, top)
	scale(row, 1/sum)
	return float64(top) + math.Log(float64(sum))
}

// SoftmaxGrad replaces dp, the gradient with respect to the result p of Softmax, by the gradient
// with respect to the logits: p·(dp − Σ p·dp).
func SoftmaxGrad(dp, p []float32) {
	same("length of p", len(p), len(dp))
	softmaxGrad(dp, p, dot(dp, p))
}

// LogSumExp returns log Σ e^x[i], which normalizes a row of logits. It overwrites scratch, which
// must have the length of x and may be x.
func LogSumExp(scratch, x []float32) float32 {
	same("length of scratch", len(scratch), len(x))
	top := greatest(x)
	if math.IsInf(float64(top), 0) {
		return top
	}
	return top + float32(math.Log(float64(expSum(scratch, x, top))))
}

// LogSumExp64 is like LogSumExp, and does not round the logarithm and the result to float32.
func LogSumExp64(scratch, x []float32) float64 {
	same("length of scratch", len(scratch), len(x))
	top := greatest(x)
	if math.IsInf(float64(top), 0) {
		return float64(top)
	}
	return float64(top) + math.Log(float64(expSum(scratch, x, top)))
}

// Silu computes dst = x/(1+e⁻ˣ), element by element. dst may be x.
func Silu(dst, x []float32) {
	same("length of x", len(x), len(dst))
	silu(dst, x)
}

// SwiGLU computes dst = silu(gate)·up (Shazeer, "GLU Variants Improve
// Transformer", 2020); dst may be gate or up.
func SwiGLU(dst, gate, up []float32) {
	same("length of gate", len(gate), len(dst))
	same("length of up", len(up), len(dst))
	swiglu(dst, gate, up)
}

// SwiGLUGrad computes the gradients with respect to gate and up from d, the gradient with respect
// to the result of SwiGLU. dGate and dUp may be gate, up or d, but must be different slices.
func SwiGLUGrad(dGate, dUp, gate, up, d []float32) {
	same("length of dGate", len(dGate), len(d))
	same("length of dUp", len(dUp), len(d))
	same("length of gate", len(gate), len(d))
	same("length of up", len(up), len(d))
	swigluGrad(dGate, dUp, gate, up, d)
}

// RMSNorm computes dst = x·w/√(mean(x²)+eps) (Zhang and Sennrich, 2019). It returns
// 1/√(mean(x²)+eps), which RMSNormGrad needs. dst may be x.
func RMSNorm(dst, x, w []float32, eps float32) (inv float32) {
	same("length of x", len(x), len(dst))
	same("length of w", len(w), len(dst))
	inv = float32(1 / math.Sqrt(float64(dot(x, x))/float64(max(1, len(x)))+float64(eps)))
	scaleMul(dst, x, w, inv)
	return inv
}

// RMSNormGrad adds the gradients of RMSNorm with respect to x and w to dx and dw. dy is the
// gradient with respect to the result of RMSNorm. If dw is nil, only dx is computed.
func RMSNormGrad(dx, dw, dy, x, w []float32, inv float32) {
	same("length of dx", len(dx), len(dy))
	same("length of x", len(x), len(dy))
	same("length of w", len(w), len(dy))
	mean := dot3(dy, w, x) / float32(max(1, len(dy)))
	normGrad(dx, dy, w, x, inv, -mean*inv*inv*inv)
	if dw != nil {
		same("length of dw", len(dw), len(dy))
		mulAdd(dw, dy, x, inv)
	}
}

// Rope rotates the pairs (x[i], x[i+h]) of one head by their angles, where h = len(x)/2. cos and
// sin have h elements (Su et al., "RoFormer", 2021). Hugging Face checkpoints pair elements in this
// way.
func Rope(x, cos, sin []float32) {
	h := len(cos)
	same("length of x", len(x), 2*h)
	same("length of sin", len(sin), h)
	rope(x[:h], x[h:], cos, sin, 1)
}

// RopeGrad computes the gradient of Rope: it rotates the pairs by the negative angles.
func RopeGrad(dx, cos, sin []float32) {
	h := len(cos)
	same("length of dx", len(dx), 2*h)
	same("length of sin", len(sin), h)
	rope(dx[:h], dx[h:], cos, sin, -1)
}

// An Adam has the parameters of one step of AdamW (Loshchilov and Hutter, 2019).
type Adam struct {
	Rate, Beta1, Beta2, Epsilon, Decay float64
	Clip                               float64 // factor by which the gradient is multiplied; 0 stands for 1
	Step                               int     // number of the step, beginning with 1
}

// Update updates the weights w by one step, from the gradient g and the moments m and v, which it
// also updates.
func (a Adam) Update(w, m, v, g []float32) {
	same("length of m", len(m), len(w))
	same("length of v", len(v), len(w))
	same("length of g", len(g), len(w))
	clip := a.Clip
	if clip == 0 {
		clip = 1
	}
	c1, c2 := 1-math.Pow(a.Beta1, float64(a.Step)), 1-math.Pow(a.Beta2, float64(a.Step))
	adam(w, m, v, g, &adamFactors{
		clip: float32(clip), beta1: float32(a.Beta1), rest1: float32(1 - a.Beta1),
		beta2: float32(a.Beta2), rest2: float32(1 - a.Beta2), root: float32(1 / math.Sqrt(c2)),
		epsilon: float32(a.Epsilon), keep: float32(1 - a.Rate*a.Decay), step: float32(a.Rate / c1),
	})
}

// adamFactors are the constants of a step of AdamW: with g' = clip·g, m = beta1·m + rest1·g', v =
// beta2·v + rest2·g'² and w = keep·w − step·m/(root·√v + epsilon).
type adamFactors struct {
	clip, beta1, rest1, beta2, rest2, root, epsilon, keep, step float32
}
