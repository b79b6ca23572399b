package kernel

import (
	"sync"
	"time"
)

// PeakGFlops measures how many thousand million multiplications and additions
// a second one core does at this level when nothing has to be read (a fused
// multiply-add is two). It takes the best of many
// rounds, because other work may share the core.
func PeakGFlops() float64 {
	const rounds = 200
	best := 0.0
	for range rounds {
		begin := time.Now()
		flops := spin()
		best = max(best, float64(flops)/float64(time.Since(begin).Nanoseconds()))
	}
	return best
}

// ReadBandwidth measures how many GB/s (10⁹ bytes) one core reads from memory,
// over a buffer larger than the usual caches.
func ReadBandwidth() float64 {
	const size = 256 << 20 / 4
	x := make([]float32, size)
	for i := 0; i < size; i += 1024 {
		x[i] = 1
	}
	best := 0.0
	for range 4 {
		begin := time.Now()
		sum(x)
		best = max(best, float64(size*4)/float64(time.Since(begin).Nanoseconds()))
	}
	return best
}

// spinGo is the plain multiply-add peak: eight independent sums.
func spinGo(steps int) (flops int) {
	var s [8]float32
	one := float32(0.5)
	s0, s1, s2, s3, s4, s5, s6, s7 := s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]
	for range steps {
		s0 = float32(s0*one) + one
		s1 = float32(s1*one) + one
		s2 = float32(s2*one) + one
		s3 = float32(s3*one) + one
		s4 = float32(s4*one) + one
		s5 = float32(s5*one) + one
		s6 = float32(s6*one) + one
		s7 = float32(s7*one) + one
	}
	sinkMu.Lock()
	sink = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7
	sinkMu.Unlock()
	return 16 * steps
}

// sink keeps the compiler from dropping the loop.
var (
	sinkMu sync.Mutex
	sink   float32
)
