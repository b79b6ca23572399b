package domain

import (
	"math/bits"
	"time"
)

// ArmSamples has what a deployment did with the requests of one step of a release. Gateways count
// samples; see TrafficSplit.Evaluate.
type ArmSamples struct {
	// Requests is the number of requests that succeeded, failed by a fault of the deployment, or were cut
	// off, for example because the client has disconnected.
	Requests int64 `json:"requests"`
	Errors   int64 `json:"errors,omitempty"`
	// FirstToken and PerToken have the number of requests by LatencyBin of their time to the first
	// token, and of their mean time for each further token.
	FirstToken Latencies `json:"firstToken,omitempty"`
	PerToken   Latencies `json:"perToken,omitempty"`
}

// Latencies has numbers of latencies by LatencyBin.
type Latencies []int64

// Each bin spans an eighth of a doubling: its upper end is 9 % above its lower one. The first bin
// has all latencies below minLatency, so differences below it are ignored.
const (
	binsPerDoubling = 8
	minLatency      = 64 // µs, 2^6
	LatencyBins     = 21*binsPerDoubling + 1
)

// binStarts has 2^(k/8) × 2^63 for the bins of a doubling, rounded.
var binStarts = [binsPerDoubling]uint64{0x8000000000000000, 0x8b95c1e3ea8bd6e7, 0x9837f0518db8a96f,
	0xa5fed6a9b15138ea, 0xb504f333f9de6484, 0xc5672a115506dadd, 0xd744fccad69d6af4, 0xeac0c6e7dd24392f}

// LatencyBin returns the bin of a latency, from 0 to LatencyBins-1. The last bin has all latencies
// above 123 s.
func LatencyBin(latency time.Duration) int {
	us := uint64(max(0, latency.Microseconds()))
	if us < minLatency {
		return 0
	}
	doublings := bits.Len64(us) - 1
	mantissa, part := us<<(63-doublings), binsPerDoubling-1
	for mantissa < binStarts[part] {
		part--
	}
	return min(1+(doublings-6)*binsPerDoubling+part, LatencyBins-1)
}

// latencyOf returns the lower end of a bin in microseconds.
func latencyOf(bin int) int64 {
	if bin == 0 {
		return 0
	}
	doublings, part := 6+(bin-1)/binsPerDoubling, (bin-1)%binsPerDoubling
	return int64(binStarts[part] >> (63 - doublings))
}

// Add counts a latency.
func (l *Latencies) Add(latency time.Duration) {
	bin := LatencyBin(latency)
	for len(*l) <= bin {
		*l = append(*l, 0)
	}
	(*l)[bin]++
}

// plus returns the sums of the counts of l and m.
func (l Latencies) plus(m Latencies) Latencies {
	sum := make(Latencies, max(len(l), len(m)))
	copy(sum, l)
	for bin, n := range m {
		sum[bin] += n
	}
	return sum
}

// count returns the number of latencies in the bins that are at least first.
func (l Latencies) count(first int) (n int64) {
	for bin := first; bin < len(l); bin++ {
		n += l[bin]
	}
	return n
}

// quantile returns the bin below or in which percent of the latencies are; -1 if there are none.
func (l Latencies) quantile(percent int64) int {
	total, n := l.count(0), int64(0)
	for bin, count := range l {
		if n += count; n > 0 && n*100 >= total*percent {
			return bin
		}
	}
	return -1
}

// Plus returns the sum of the samples of two gateways.
func (a ArmSamples) Plus(b ArmSamples) ArmSamples {
	return ArmSamples{a.Requests + b.Requests, a.Errors + b.Errors, a.FirstToken.plus(b.FirstToken),
		a.PerToken.plus(b.PerToken)}
}

func (a ArmSamples) valid() bool {
	for _, l := range []Latencies{a.FirstToken, a.PerToken} {
		if len(l) > LatencyBins || l.count(0) > a.Requests {
			return false
		}
		for _, n := range l {
			if n < 0 {
				return false
			}
		}
	}
	return a.Errors >= 0 && a.Errors <= a.Requests && a.Requests <= maxSampled
}

// maxSampled is more than the number of requests that a gateway can count in a step.
const maxSampled = 1 << 48

// ReleaseSamples has the samples of one step of a release.
type ReleaseSamples struct {
	Stable    ArmSamples `json:"stable"`
	Candidate ArmSamples `json:"candidate"`
	// Failed is why a gateway stopped sending requests to the candidate: the reason of an evaluation of
	// some of these samples, which further samples do not change. It is "" if none did.
	Failed string `json:"failed,omitempty"`
}

const maxFailed = 1000 // maximum length of ReleaseSamples.Failed in bytes

// Valid reports whether the samples can be those of a gateway.
func (s ReleaseSamples) Valid() bool {
	return s.Stable.valid() && s.Candidate.valid() && len(s.Failed) <= maxFailed
}

// Plus returns the sum of the samples of two gateways.
func (s ReleaseSamples) Plus(other ReleaseSamples) ReleaseSamples {
	return ReleaseSamples{s.Stable.Plus(other.Stable), s.Candidate.Plus(other.Candidate),
		orDefault(s.Failed, other.Failed)}
}

// Figures returns the figures of the samples.
func (s ReleaseSamples) Figures() ReleaseFigures {
	return ReleaseFigures{s.Stable.figures(), s.Candidate.figures()}
}

// ArmFigures summarizes the requests to one deployment in a step. Latencies are in microseconds, rounded
// down by at most 9 %.
type ArmFigures struct {
	Requests      int64 `json:"requests"`
	Errors        int64 `json:"errors"`
	FirstTokenP50 int64 `json:"firstTokenP50Micros,omitempty"`
	FirstTokenP90 int64 `json:"firstTokenP90Micros,omitempty"`
	PerTokenP50   int64 `json:"perTokenP50Micros,omitempty"`
	PerTokenP90   int64 `json:"perTokenP90Micros,omitempty"`
}

func (a ArmSamples) figures() ArmFigures {
	at := func(l Latencies, percent int64) int64 { return latencyOf(max(0, l.quantile(percent))) }
	return ArmFigures{Requests: a.Requests, Errors: a.Errors, FirstTokenP50: at(a.FirstToken, 50),
		FirstTokenP90: at(a.FirstToken, 90), PerTokenP50: at(a.PerToken, 50), PerTokenP90: at(a.PerToken, 90)}
}
