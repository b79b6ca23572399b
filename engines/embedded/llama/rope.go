package llama

import (
	"math"

	"anneal/engines/embedded/kernel"
)

// A Rope rotates query and key heads by rotary embeddings (Su et al. 2021). As in Hugging Face
// ("rotate half"), element j is paired with element j + HeadDim/2.
type Rope struct {
	half     int
	cos, sin []float32 // cosines and sines of the angles: [positions, half]
}

// NewRope computes the angles position · theta^(-2j/HeadDim), with the configured scaling, for
// positions from 0 on.
func NewRope(c *Config, positions int) *Rope {
	half := c.HeadDim / 2
	r := &Rope{half: half, cos: make([]float32, positions*half), sin: make([]float32, positions*half)}
	for j := range half {
		step := math.Pow(c.RopeTheta, -2*float64(j)/float64(c.HeadDim)) / c.RopeDivisor(j)
		for p := range positions {
			s, c := math.Sincos(float64(p) * step)
			r.cos[p*half+j], r.sin[p*half+j] = float32(c), float32(s)
		}
	}
	return r
}

// RopeDivisor returns the number by which rope scaling divides the angles of element j; 1 if there
// is no scaling.
func (c *Config) RopeDivisor(j int) float64 {
	r := c.Scaling()
	switch {
	case r == nil:
		return 1
	case r.Kind() == LinearRope:
		return r.Factor
	}
	// Llama 3.1 divides the angles of long wavelengths by the factor, keeps the angles of short
	// wavelengths, and interpolates between the two bounds. The bounds are numbers of rotations
	// within the original context.
	step := math.Pow(c.RopeTheta, -2*float64(j)/float64(c.HeadDim))
	turns := float64(r.OriginalPositions) * step / (2 * math.Pi)
	switch {
	case turns > r.HighFreqFactor:
		return 1
	case turns < r.LowFreqFactor:
		return r.Factor
	}
	kept := (turns - r.LowFreqFactor) / (r.HighFreqFactor - r.LowFreqFactor)
	return 1 / ((1-kept)/r.Factor + kept)
}

// Turn rotates heads, which have HeadDim values each, by the angles of a position.
func (r *Rope) Turn(heads []float32, position int) {
	cos, sin := r.angles(position)
	for ; len(heads) > 0; heads = heads[2*r.half:] {
		kernel.Rope(heads[:2*r.half], cos, sin)
	}
}

// TurnBack reverses Turn. It also computes the gradient of Turn.
func (r *Rope) TurnBack(heads []float32, position int) {
	cos, sin := r.angles(position)
	for ; len(heads) > 0; heads = heads[2*r.half:] {
		kernel.RopeGrad(heads[:2*r.half], cos, sin)
	}
}

func (r *Rope) angles(position int) (cos, sin []float32) {
	return r.cos[position*r.half:][:r.half], r.sin[position*r.half:][:r.half]
}
