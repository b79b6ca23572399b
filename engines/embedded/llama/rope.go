package llama

import (
	"math"

	"anneal/engines/embedded/kernel"
)

// A Rope turns query and key heads by their position (rotary embedding, Su et
// al. 2021) in the "rotate half" convention of Hugging Face: the pair of
// element j is element j + HeadDim/2.
type Rope struct {
	half     int
	cos, sin []float32 // [positions, half]
}

// NewRope tabulates the angles position · theta^(-2j/HeadDim) of the first
// positions of a model's window.
func NewRope(c *Config, positions int) *Rope {
	half := c.HeadDim / 2
	r := &Rope{half: half, cos: make([]float32, positions*half), sin: make([]float32, positions*half)}
	for j := range half {
		step := math.Pow(c.RopeTheta, -2*float64(j)/float64(c.HeadDim))
		for p := range positions {
			s, c := math.Sincos(float64(p) * step)
			r.cos[p*half+j], r.sin[p*half+j] = float32(c), float32(s)
		}
	}
	return r
}

// Turn rotates heads, which hold HeadDim values each, to a position.
func (r *Rope) Turn(heads []float32, position int) {
	cos, sin := r.angles(position)
	for ; len(heads) > 0; heads = heads[2*r.half:] {
		kernel.Rope(heads[:2*r.half], cos, sin)
	}
}

// TurnBack is the inverse, and so the gradient, of Turn.
func (r *Rope) TurnBack(heads []float32, position int) {
	cos, sin := r.angles(position)
	for ; len(heads) > 0; heads = heads[2*r.half:] {
		kernel.RopeGrad(heads[:2*r.half], cos, sin)
	}
}

func (r *Rope) angles(position int) (cos, sin []float32) {
	return r.cos[position*r.half:][:r.half], r.sin[position*r.half:][:r.half]
}
