package kernel

import "math"

func dotGo(a, b []float32) float32 {
	var s [4]float32
	i := 0
	for ; i+4 <= len(a); i += 4 {
		x, y := (*[4]float32)(a[i:]), (*[4]float32)(b[i:])
		s[0] += float32(x[0] * y[0])
		s[1] += float32(x[1] * y[1])
		s[2] += float32(x[2] * y[2])
		s[3] += float32(x[3] * y[3])
	}
	for ; i < len(a); i++ {
		s[0] += float32(a[i] * b[i])
	}
	return (s[0] + s[2]) + (s[1] + s[3])
}

func dot3Go(a, b, c []float32) (s float32) {
	for i := range a {
		s += float32(float32(a[i]*b[i]) * c[i])
	}
	return s
}

func sumGo(x []float32) (s float32) {
	for _, v := range x {
		s += v
	}
	return s
}

func greatestGo(x []float32) float32 {
	top := float32(math.Inf(-1))
	for _, v := range x {
		top = max(top, v)
	}
	return top
}

func axpyGo(x, y []float32, alpha float32) {
	for i, v := range x {
		y[i] += float32(alpha * v)
	}
}

func addGo(dst, x, y []float32) {
	for i := range dst {
		dst[i] = x[i] + y[i]
	}
}

func mulGo(dst, x, y []float32) {
	for i := range dst {
		dst[i] = x[i] * y[i]
	}
}

func scaleGo(x []float32, alpha float32) {
	for i := range x {
		x[i] *= alpha
	}
}

// exp1 returns eˣ, or zero if the result is below the smallest normal number.
func exp1(x float32) float32 {
	if x < -87.33654 {
		return 0
	}
	return float32(math.Exp(float64(x)))
}

func expGo(dst, x []float32) {
	for i, v := range x {
		dst[i] = exp1(v)
	}
}

func expSumGo(dst, x []float32, shift float32) (s float32) {
	for i, v := range x {
		dst[i] = exp1(v - shift)
		s += dst[i]
	}
	return s
}

func softmaxGradGo(dp, p []float32, mean float32) {
	for i := range dp {
		dp[i] = p[i] * (dp[i] - mean)
	}
}

func siluGo(dst, x []float32) {
	for i, v := range x {
		dst[i] = v / (1 + exp1(-v))
	}
}

func swigluGo(dst, gate, up []float32) {
	for i, v := range gate {
		dst[i] = v / (1 + exp1(-v)) * up[i]
	}
}

// swigluGradGo computes the gradients of SwiGLU. d silu(x)/dx is s·(1 + x·(1−s)), where s is the
// logistic function of x.
func swigluGradGo(dGate, dUp, gate, up, d []float32) {
	for i := range d {
		x, u, g := gate[i], up[i], d[i]
		s := 1 / (1 + exp1(-x))
		dUp[i], dGate[i] = g*(s*x), g*u*(s*(1+float32(x*(1-s))))
	}
}

func scaleMulGo(dst, x, w []float32, factor float32) {
	for i := range dst {
		dst[i] = x[i] * factor * w[i]
	}
}

// normGradGo computes dx += p·w·dy + q·x.
func normGradGo(dx, dy, w, x []float32, p, q float32) {
	for i := range dx {
		dx[i] += float32(p*float32(w[i]*dy[i])) + float32(q*x[i])
	}
}

// mulAddGo computes dst += factor·x·y.
func mulAddGo(dst, x, y []float32, factor float32) {
	for i := range dst {
		dst[i] += float32(factor * float32(x[i]*y[i]))
	}
}

// ropeGo rotates (x, y) by the angle if direction is 1, and by its negative if direction is -1.
func ropeGo(x, y, cos, sin []float32, direction float32) {
	for i := range x {
		a, b, c, s := x[i], y[i], cos[i], direction*sin[i]
		x[i], y[i] = float32(a*c)-float32(b*s), float32(b*c)+float32(a*s)
	}
}

func adamGo(w, m, v, g []float32, f *adamFactors) {
	for i := range w {
		d := f.clip * g[i]
		m[i] = float32(f.beta1*m[i]) + float32(f.rest1*d)
		v[i] = float32(f.beta2*v[i]) + float32(f.rest2*float32(d*d))
		step := f.step * m[i] / (float32(f.root*float32(math.Sqrt(float64(v[i])))) + f.epsilon)
		w[i] = float32(f.keep*w[i]) - step
	}
}
