package kernel

import (
	"runtime"
	"time"
)

// PeakGFlops measures the peak rate of multiply-adds of one core at the active level, without
// memory accesses, in GFLOP/s. A multiply-add counts as two operations. The result is the best of
// many rounds, because other processes may use the core.
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

// ReadBandwidth measures the memory bandwidth of one core in GB/s (10⁹ bytes), over a buffer larger
// than common caches.
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

// spinGo executes multiply-adds in plain Go on eight independent sums, for PeakGFlops, and returns
// the number of operations.
func spinGo(steps int) (flops int) {
	const half = 0.5
	var s0, s1, s2, s3, s4, s5, s6, s7 float32
	for range steps {
		s0 = float32(s0*half) + half
		s1 = float32(s1*half) + half
		s2 = float32(s2*half) + half
		s3 = float32(s3*half) + half
		s4 = float32(s4*half) + half
		s5 = float32(s5*half) + half
		s6 = float32(s6*half) + half
		s7 = float32(s7*half) + half
	}
	runtime.KeepAlive(s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7)
	return 16 * steps
}
