package main

import "math"

var minusInfinity = math.Inf(-1)

// kernels are the vector operations. plainvec.go of package kernel defines what each computes. The
// body of an operation may use the registers 0 to 7 or, without a reduction, 0 to 12.
var kernels = []kernel{
	{name: "dot", doc: "returns Σ a·b.", arrays: []string{"a", "b"}, reduce: "VADDPS", body: func(v vec) {
		v.load("a", 0)
		v.load("b", 1)
		v.do("VFMADD231PS", 1, 0, v.sum())
	}},
	{name: "dot3", doc: "returns Σ a·b·c.", arrays: []string{"a", "b", "c"}, reduce: "VADDPS", body: func(v vec) {
		v.load("a", 0)
		v.load("b", 1)
		v.load("c", 2)
		v.do("VMULPS", 1, 0, 0)
		v.do("VFMADD231PS", 2, 0, v.sum())
	}},
	{name: "sum", doc: "returns Σ x.", arrays: []string{"x"}, reduce: "VADDPS", body: func(v vec) {
		v.load("x", 0)
		v.do("VADDPS", 0, v.sum(), v.sum())
	}},
	{name: "greatest", doc: "returns the maximum of x.", arrays: []string{"x"}, reduce: "VMAXPS", body: func(v vec) {
		v.load("x", 0)
		v.fillRest(0, 1)
		v.do("VMAXPS", v.sum(), 0, v.sum())
	}},
	{
		name: "axpy", doc: "computes y += alpha·x.", arrays: []string{"x", "y"}, scalars: []string{"alpha"},
		body: func(v vec) {
			v.load("x", 0)
			v.load("y", 1)
			v.do("VFMADD231PS", 0, scalarRegister, 1)
			v.store(1, "y")
		},
	},
	{name: "add", doc: "computes dst = x + y.", arrays: []string{"dst", "x", "y"}, body: func(v vec) {
		v.load("x", 0)
		v.load("y", 1)
		v.do("VADDPS", 1, 0, 0)
		v.store(0, "dst")
	}},
	{name: "mul", doc: "computes dst = x·y.", arrays: []string{"dst", "x", "y"}, body: func(v vec) {
		v.load("x", 0)
		v.load("y", 1)
		v.do("VMULPS", 1, 0, 0)
		v.store(0, "dst")
	}},
	{name: "scale", doc: "computes x *= alpha.", arrays: []string{"x"}, scalars: []string{"alpha"}, body: func(v vec) {
		v.load("x", 0)
		v.do("VMULPS", scalarRegister, 0, 0)
		v.store(0, "x")
	}},
	{name: "exp", doc: "computes dst = eˣ.", arrays: []string{"dst", "x"}, body: func(v vec) {
		v.load("x", 0)
		v.exponential(0, 1, 2, 3)
		v.store(0, "dst")
	}},
	{
		name: "expSum", doc: "computes dst = e^(x−shift) and its sum.", arrays: []string{"dst", "x"},
		scalars: []string{"shift"}, reduce: "VADDPS", body: func(v vec) {
			v.load("x", 0)
			v.do("VSUBPS", scalarRegister, 0, 0)
			v.exponential(0, 1, 2, 3)
			v.store(0, "dst")
			v.clearRest(0)
			v.do("VADDPS", 0, v.sum(), v.sum())
		},
	},
	{
		name: "softmaxGrad", doc: "computes dp = p·(dp − mean).", arrays: []string{"dp", "p"}, scalars: []string{"mean"},
		body: func(v vec) {
			v.load("dp", 0)
			v.load("p", 1)
			v.do("VSUBPS", scalarRegister, 0, 0)
			v.do("VMULPS", 1, 0, 0)
			v.store(0, "dp")
		},
	},
	{name: "silu", doc: "computes dst = x/(1+e⁻ˣ).", arrays: []string{"dst", "x"}, body: func(v vec) {
		v.load("x", 4)
		v.onePlusExpMinus(4, 0)
		v.do("VDIVPS", 0, 4, 0)
		v.store(0, "dst")
	}},
	{name: "swiglu", doc: "computes dst = silu(gate)·up.", arrays: []string{"dst", "gate", "up"}, body: func(v vec) {
		v.load("gate", 4)
		v.load("up", 5)
		v.onePlusExpMinus(4, 0)
		v.do("VDIVPS", 0, 4, 0)
		v.do("VMULPS", 5, 0, 0)
		v.store(0, "dst")
	}},
	{
		name: "swigluGrad", doc: "computes the gradients of swiglu.", arrays: []string{"dGate", "dUp", "gate", "up", "d"},
		body: func(v vec) {
			v.load("gate", 4)
			v.load("up", 5)
			v.load("d", 6)
			v.onePlusExpMinus(4, 0)
			v.with("VMOVUPS", "one", 1, 7)
			v.do("VDIVPS", 0, 7, 0)      // s, the logistic function
			v.do("VSUBPS", 0, 7, 1)      // 1−s
			v.do("VFMADD213PS", 7, 4, 1) // 1 + x·(1−s)
			v.do("VMULPS", 0, 1, 1)      // the derivative of silu
			v.do("VMULPS", 5, 6, 5)      // d·up
			v.do("VMULPS", 1, 5, 5)
			v.do("VMULPS", 4, 0, 0) // silu
			v.do("VMULPS", 0, 6, 6)
			v.store(6, "dUp")
			v.store(5, "dGate")
		},
	},
	{
		name: "scaleMul", doc: "computes dst = factor·x·w.", arrays: []string{"dst", "x", "w"}, scalars: []string{"factor"},
		body: func(v vec) {
			v.load("x", 0)
			v.load("w", 1)
			v.do("VMULPS", scalarRegister, 0, 0)
			v.do("VMULPS", 1, 0, 0)
			v.store(0, "dst")
		},
	},
	{
		name: "normGrad", doc: "computes dx += p·w·dy + q·x.", arrays: []string{"dx", "dy", "w", "x"},
		scalars: []string{"p", "q"}, body: func(v vec) {
			v.load("dx", 0)
			v.load("dy", 1)
			v.load("w", 2)
			v.load("x", 3)
			v.do("VMULPS", 2, 1, 1)
			v.do("VFMADD231PS", 1, scalarRegister, 0)
			v.do("VFMADD231PS", 3, scalarRegister+1, 0)
			v.store(0, "dx")
		},
	},
	{
		name: "mulAdd", doc: "computes dst += factor·x·y.", arrays: []string{"dst", "x", "y"}, scalars: []string{"factor"},
		body: func(v vec) {
			v.load("x", 0)
			v.load("y", 1)
			v.load("dst", 2)
			v.do("VMULPS", 1, 0, 0)
			v.do("VFMADD231PS", 0, scalarRegister, 2)
			v.store(2, "dst")
		},
	},
	{
		name: "rope", doc: "rotates (x, y) by an angle; direction -1 rotates back.",
		arrays: []string{"x", "y", "cos", "sin"}, scalars: []string{"direction"}, body: func(v vec) {
			v.load("x", 0)
			v.load("y", 1)
			v.load("cos", 2)
			v.load("sin", 3)
			v.do("VMULPS", scalarRegister, 3, 3)
			v.do("VMULPS", 2, 0, 4)
			v.do("VFNMADD231PS", 3, 1, 4)
			v.do("VMULPS", 2, 1, 5)
			v.do("VFMADD231PS", 3, 0, 5)
			v.store(4, "x")
			v.store(5, "y")
		},
	},
	{name: "adam", doc: "takes one step of AdamW.", arrays: []string{"w", "m", "v", "grad"}, factors: true, body: adam},
}

// fillRest sets the lanes of register r after the end of the arrays to minus infinity. It
// overwrites register t.
func (v vec) fillRest(r, t int) {
	if !v.masked {
		return
	}
	v.with("VMOVUPS", "neginf", minusInfinity, t)
	if v.wide {
		v.op("VBLENDMPS %s, %s, K1, %s", v.reg(r), v.reg(t), v.reg(r))
		return
	}
	v.do("VBLENDVPS", maskRegister, r, t, r)
}

// onePlusExpMinus writes 1+e⁻ˣ to register r for the value x in register x. It overwrites r+1 to
// r+3.
func (v vec) onePlusExpMinus(x, r int) {
	v.op("VXORPS X%d, X%d, X%d", r, r, r)
	v.do("VSUBPS", x, r, r)
	v.exponential(r, r+1, r+2, r+3)
	v.with("VADDPS", "one", 1, r, r)
}

// exponential replaces the value x in register x by eˣ = 2ⁿ·eʳ, where n = round(x·log₂e) and r =
// x−n·ln 2, computed in two steps (Cody and Waite, 1980). eʳ is the Taylor polynomial of degree
// seven, with an error of 2⁻²⁷ for |r| ≤ ln 2/2. Results below the smallest normal number are zero.
// It overwrites the registers n, p and t.
func (v vec) exponential(x, n, p, t int) {
	const lowest, highest = -87.33654, 89 // e^lowest is the smallest normal number
	if v.wide {
		// K3 gets the lanes in which x is at least lowest, or NaN.
		v.op("VCMPPS $5, %s, %s, K3", v.constant("lowest", lowest), v.reg(x))
	} else {
		v.op("VCMPPS $5, %s, %s, %s", v.constant("lowest", lowest), v.reg(x), v.reg(t))
	}
	v.with("VMOVUPS", "highest", highest, p)
	v.do("VMINPS", x, p, x) // if one source is NaN, VMINPS returns its second source
	v.with("VMOVUPS", "lowest", lowest, p)
	v.do("VMAXPS", x, p, x)
	v.with("VMULPS", "log2e", math.Log2E, x, n)
	if v.wide {
		v.op("VRNDSCALEPS $0, %s, %s", v.reg(n), v.reg(n))
	} else {
		v.op("VROUNDPS $0, %s, %s", v.reg(n), v.reg(n))
	}
	const ln2High = 0.693359375 // has nine significant bits, so n·ln2High is exact
	v.with("VFNMADD231PS", "ln2High", ln2High, n, x)
	v.with("VFNMADD231PS", "ln2Low", math.Ln2-ln2High, n, x)
	v.with("VMOVUPS", "inverse7", 1.0/5040, p)
	for _, c := range []struct {
		name  string
		value float64
	}{
		{"inverse6", 1.0 / 720}, {"inverse5", 1.0 / 120}, {"inverse4", 1.0 / 24}, {"inverse3", 1.0 / 6}, {"half", 0.5},
		{"one", 1}, {"one", 1},
	} {
		v.with("VFMADD213PS", c.name, c.value, x, p)
	}
	v.power(x, n, p, t)
}

// power writes p·2ⁿ to register x. A lane becomes zero if exponential has found x below lowest: the
// result of that comparison is in K3 or, with 256 bits, in register t.
func (v vec) power(x, n, p, t int) {
	if v.wide {
		v.op("VSCALEFPS.Z %s, %s, K3, %s", v.reg(n), v.reg(p), v.reg(x))
		return
	}
	// 2ⁿ is multiplied in two steps, because 2¹²⁸ is not representable.
	v.do("VCVTPS2DQ", n, n)
	v.op("VPSRAD $1, %s, %s", v.reg(n), v.reg(x))
	v.do("VPSUBD", x, n, n)
	for _, half := range []int{x, n} {
		v.op("VPSLLD $23, %s, %s", v.reg(half), v.reg(half))
	}
	// VPADDD adds the register x, half of n and from -64 to 64, to the exponent of p, which is
	// between ½ and 2.
	v.do("VPADDD", x, p, p)
	v.with("VPADDD", "one", 1, n, n)
	v.do("VMULPS", n, p, x)
	v.do("VANDPS", t, x, x)
}

// adam generates the body of a step of AdamW. It reads the constants in the order of adamFactors.
func adam(v vec) {
	const clip, beta1, rest1, beta2, rest2, root, epsilon, keep, step = 0, 1, 2, 3, 4, 5, 6, 7, 8
	v.load("grad", 0)
	v.load("m", 1)
	v.load("v", 2)
	v.load("w", 3)
	v.factor(clip, 4)
	v.do("VMULPS", 4, 0, 0)
	v.factor(beta1, 4)
	v.do("VMULPS", 4, 1, 1)
	v.factor(rest1, 4)
	v.do("VFMADD231PS", 4, 0, 1)
	v.store(1, "m")
	v.do("VMULPS", 0, 0, 0)
	v.factor(beta2, 4)
	v.do("VMULPS", 4, 2, 2)
	v.factor(rest2, 4)
	v.do("VFMADD231PS", 4, 0, 2)
	v.store(2, "v")
	v.do("VSQRTPS", 2, 2)
	v.factor(root, 4)
	v.factor(epsilon, 5)
	v.do("VFMADD213PS", 5, 4, 2)
	v.factor(step, 4)
	v.do("VMULPS", 4, 1, 1)
	v.do("VDIVPS", 2, 1, 1)
	v.factor(keep, 4)
	v.do("VFMSUB213PS", 1, 4, 3)
	v.store(3, "w")
}
