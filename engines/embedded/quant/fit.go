package quant

import "math"

// Each function below searches for integers q that represent values x. It rounds x to grids of
// several widths. For each result it computes the scale with the least squared error, by a linear
// regression of x on q.
const (
	widths    = 19   // number of grids that are tried
	widthStep = 0.1  // difference between the numbers of steps of successive grids
	narrowest = -0.9 // number of steps of the narrowest grid, minus the range of q
)

// sums are the sums from which a linear regression of x on q is computed.
type sums struct{ n, q, qq, x, qx float64 }

// squared returns the squared error of scale·q + low, without the constant Σx².
func (s *sums) squared(scale, low float64) float64 {
	return scale*(scale*s.qq-2*s.qx) + low*(low*s.n+2*scale*s.q-2*s.x)
}

// regress rounds (x-low)·inverse to integers from 0 to top, and returns the sums of a regression of
// x on these integers minus shift.
func regress(x []float32, inverse, low float32, top int, shift float64) sums {
	var q, qq, total, qx float64
	limit := float32(top)
	for _, v := range x {
		at := float64(nearest((v-low)*inverse, limit)) - shift
		q += at
		qq += at * at
		total += float64(v)
		qx += at * float64(v)
	}
	return sums{float64(len(x)), q, qq, total, qx}
}

// nearest rounds v to the nearest integer from 0 to limit.
func nearest(v, limit float32) int32 {
	if !(v > 0) {
		return 0
	}
	if v > limit {
		v = limit
	}
	return int32(v + 0.5)
}

// affine returns the scale and low for which scale·q + low best approximates x, with integers q
// from 0 to top. If below is true, low is at most 0.
func affine(x []float32, top int, below bool) (scale, low float32) {
	lo, hi := x[0], x[0]
	for _, v := range x {
		lo, hi = min(lo, v), max(hi, v)
	}
	if below {
		lo = min(lo, 0)
	}
	if hi <= lo {
		return 0, lo
	}
	best := math.Inf(1)
	for i := range widths {
		inverse := (float32(top) + narrowest + float32(i)*widthStep) / (hi - lo)
		s := regress(x, inverse, lo, top, 0)
		divisor := s.n*s.qq - s.q*s.q
		if divisor <= 0 {
			continue // all integers are equal, so there is no scale
		}
		a, b := (s.n*s.qx-s.q*s.x)/divisor, (s.qq*s.x-s.q*s.qx)/divisor
		if below && b > 0 {
			a, b = s.qx/s.qq, 0
		}
		if e := s.squared(a, b); a > 0 && e < best {
			best, scale, low = e, float32(a), float32(b)
		}
	}
	if math.IsInf(best, 1) {
		return (hi - lo) / float32(top), lo
	}
	return scale, low
}

// symmetric returns the scale for which scale·(q-middle) best approximates x, with integers q from
// 0 to 2·middle-1. q-middle has one more negative value than positive ones, so the scale gets the
// sign with which the value of the largest magnitude has a negative q-middle.
func symmetric(x []float32, middle int) float32 {
	peak := float32(0)
	for _, v := range x {
		if math.Abs(float64(v)) > math.Abs(float64(peak)) {
			peak = v
		}
	}
	if peak == 0 {
		return 0
	}
	best, scale := 0.0, peak/float32(-middle)
	for i := range widths {
		inverse := -(float32(middle) + narrowest + float32(i)*widthStep) / peak
		s := regress(x, inverse, -float32(middle)/inverse, 2*middle-1, float64(middle))
		// The least squared error is Σx² - (Σqx)²/Σq².
		if s.qq > 0 && s.qx*s.qx/s.qq > best {
			best, scale = s.qx*s.qx/s.qq, float32(s.qx/s.qq)
		}
	}
	return scale
}

// scaleOf returns the 6-bit integers s and t for which d·s·q - m·t best approximates values x that
// scale·q + low approximates. It tries the integers s next to scale/d, each with its best t, and
// returns those with the least squared error.
func scaleOf(x []float32, top int, d, m, scale, low float32) (s, t uint8) {
	wanted, best := 0, math.Inf(1)
	if d > 0 {
		wanted = int(scale/d + 0.5)
	}
	offset := 0
	if m > 0 {
		offset = min(int(-low/m+0.5), maxScale)
	}
	for one := max(wanted-1, 0); one <= min(wanted+1, maxScale); one++ {
		step, inverse := float64(d)*float64(one), float32(0)
		if step > 0 {
			inverse = float32(1 / step)
		}
		r := regress(x, inverse, -m*float32(offset), top, 0)
		other := offset
		if m > 0 {
			other = int(nearest(float32((step*r.q-r.x)/r.n/float64(m)), maxScale))
		}
		if e := r.squared(step, -float64(m)*float64(other)); e < best {
			best, s, t = e, uint8(one), uint8(other)
		}
	}
	return s, t
}

// signedScaleOf returns the signed 8-bit integer s for which d·s·(q-middle) best approximates
// values x that scale·(q-middle) approximates: of the integers next to scale/d, the one with the
// least squared error.
func signedScaleOf(x []float32, middle int, d, scale float32) (found int8) {
	if d == 0 {
		return 0
	}
	wanted, best := int(math.Round(float64(scale/d))), math.Inf(1)
	for one := max(wanted-1, math.MinInt8); one <= min(wanted+1, math.MaxInt8); one++ {
		step, inverse := float64(d)*float64(one), float32(0)
		if step != 0 {
			inverse = float32(1 / step)
		}
		r := regress(x, inverse, -float32(middle)*float32(step), 2*middle-1, float64(middle))
		if e := r.squared(step, 0); e < best {
			best, found = e, int8(one)
		}
	}
	return found
}

// roundTo stores in q the integers from 0 to top for which step·q + low is closest to x.
func roundTo(q []uint8, x []float32, step, low float32, top int) {
	inverse, limit := float32(0), float32(top)
	if step != 0 {
		inverse = 1 / step
	}
	for i, v := range x {
		q[i] = uint8(nearest((v-low)*inverse, limit))
	}
}
