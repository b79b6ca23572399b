package placement_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/schedulers/placement"
)

// TestRulesAllocateMoreThanThePublication replays the default trace with two seeds. It checks that
// FGD is reproduced, and that the rules of this package allocate at least as much.
func TestRulesAllocateMoreThanThePublication(t *testing.T) {
	nodes, requests := readNodes(t), readRequests(t, "default")
	expected := published(t, "default", "FGD")
	for _, seed := range []int64{42, 43} {
		s := newScenario(nodes, requests, seed)
		fgd := s.replay(newSimulator(s, "FGD"))
		ours := s.replay(newRules(t, s))
		t.Logf("seed %d: published %.2f, FGD %.2f, rules %.2f", seed, expected[seed], fgd, ours)
		require.InDelta(t, expected[seed][1], fgd[1], 0.5)
		require.GreaterOrEqual(t, ours[1], fgd[1])
	}
}

// TestChoicesDependOnNothingElse replays the start of a trace several times, with different numbers
// of threads and concurrently, and compares all choices.
func TestChoicesDependOnNothingElse(t *testing.T) {
	s := newScenario(readNodes(t), readRequests(t, "gpuspec33"), 42)
	replay := func() string {
		p, hash := newRules(t, s), sha256.New()
		for i, r := range s.arrivals[:3000] {
			choice, ok := p.Place(r, nil)
			if ok && i%7 == 0 {
				p.Release(choice.Node, r, choice.Devices)
			}
			if err := json.NewEncoder(hash).Encode(choice); err != nil {
				return err.Error()
			}
		}
		return fmt.Sprintf("%x", hash.Sum(nil))
	}
	first := replay()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, threads := range []int{1, 2, 4} {
		runtime.GOMAXPROCS(threads)
		results := make(chan string)
		for range 2 {
			go func() { results <- replay() }()
		}
		for range 2 {
			require.Equal(t, first, <-results)
		}
	}
}

// full reports whether the long replays run: see make bench-placement.
func full(t *testing.T) {
	if os.Getenv("ANNEAL_PLACEMENT") == "" {
		t.Skip("set ANNEAL_PLACEMENT=full, or run make bench-placement")
	}
}

// A mean is the mean percentage of allocated GPUs when 95 % and when 100 % of the GPUs have
// arrived.
type mean struct {
	sum [2]float64
	n   float64
}

func (m *mean) add(v [2]float64) {
	m.sum[0], m.sum[1], m.n = m.sum[0]+v[0], m.sum[1]+v[1], m.n+1
}

func (m *mean) at95() float64  { return m.sum[0] / m.n }
func (m *mean) at100() float64 { return m.sum[1] / m.n }

// TestPublishedTraces replays the 17 traces with the ten published seeds, and with ten others, and
// prints the allocated GPUs in % when 100 % of the GPUs have arrived.
func TestPublishedTraces(t *testing.T) {
	full(t)
	nodes := readNodes(t)
	fmt.Printf("\n| trace | %s | rules | published FGD | FGD, 52..61 | rules, 52..61 |\n|---|%s---|---|---|---|\n",
		strings.Join(publishedPolicies, " | "), strings.Repeat("---|", len(publishedPolicies)))
	for _, workload := range workloads {
		requests := readRequests(t, workload)
		row := "| " + workload
		var fgd, rules [2]mean
		for _, policy := range publishedPolicies {
			expected, ours := mean{}, mean{}
			for seed, at := range published(t, workload, policy) {
				expected.add(at)
				s := newScenario(nodes, requests, seed)
				ours.add(s.replay(newSimulator(s, policy)))
			}
			row += fmt.Sprintf(" | %.2f", ours.at100())
			delta := 0.5
			if workload == "default" {
				delta = 0.25
			}
			if workload == "default" || policy == "FGD" {
				require.InDelta(t, expected.at100(), ours.at100(), delta, "%s %s", workload, policy)
			}
			if policy == "FGD" {
				fgd[0], row = ours, row+" | RULES"+fmt.Sprintf(" | %.2f", expected.at100())
			}
		}
		for i, first := range []int64{42, 52} {
			for seed := first; seed < first+10; seed++ {
				s := newScenario(nodes, requests, seed)
				rules[i].add(s.replay(newRules(t, s)))
				if i == 1 {
					fgd[i].add(s.replay(newSimulator(s, "FGD")))
				}
			}
		}
		row = strings.Replace(row, "RULES", fmt.Sprintf("%.2f", rules[0].at100()), 1)
		fmt.Printf("%s | %.2f | %.2f |\n", row, fgd[1].at100(), rules[1].at100())
		for i := range rules {
			require.GreaterOrEqual(t, rules[i].at100(), fgd[i].at100(), workload)
			require.GreaterOrEqual(t, rules[i].at95(), fgd[i].at95()-0.3, workload)
			if workload == "default" {
				require.GreaterOrEqual(t, rules[i].at100(), 95.7)
			}
			if workload == "gpuspec33" {
				require.GreaterOrEqual(t, rules[i].at100(), 93.5)
			}
		}
	}
}

// processTime returns the CPU time of this process in seconds, which other processes do not affect.
func processTime(t testing.TB) float64 {
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

// BenchmarkShares measures decisions for the requests of the default trace, most of which need one
// device or a share of one, on 9,704 nodes: eight times the nodes of the trace.
func BenchmarkShares(b *testing.B) {
	var nodes []placement.Node
	for range 8 {
		nodes = append(nodes, readNodes(b)...)
	}
	requests := readRequests(b, "default")
	counts := countsOf(requests)
	var all []placement.Request
	for range 8 {
		all = append(all, requests...)
	}
	s := newScenario(nodes, all, 42)
	start := processTime(b)
	for b.Loop() {
		fleet, err := placement.NewFleet(s.nodes, placement.TypicalClasses(counts), placement.Prices(counts, nodes))
		require.NoError(b, err)
		for _, r := range s.arrivals {
			fleet.Place(r, nil)
		}
	}
	b.ReportMetric(float64(b.N*len(s.arrivals))/(processTime(b)-start), "decisions/CPU-s")
}

// BenchmarkWhole measures decisions for whole devices on 10,000 nodes of 8: gangs of up to 32
// members of eight devices, and requests for 1, 2, 4 and 8. With every second request, the oldest
// one ends.
func BenchmarkWhole(b *testing.B) {
	nodes := make([]placement.Node, 10000)
	for i := range nodes {
		nodes[i] = placement.Node{Model: "H100", Devices: 8, CPUMilli: 192000, MemoryMiB: 1 << 20}
	}
	sizes := []int{1, 1, 2, 1, 8, 1, 4, 1, 2, 8}
	request := func(n int) placement.Request {
		return placement.Request{CPUMilli: int64(n) * 20000, MemoryMiB: int64(n) << 16, Devices: n,
			Share: placement.WholeDevice}
	}
	counts := map[placement.Request]int64{}
	for _, n := range sizes {
		counts[request(n)]++
	}
	fleet, err := placement.NewFleet(nodes, placement.TypicalClasses(counts), placement.Prices(counts, nodes))
	require.NoError(b, err)
	type running struct {
		r      placement.Request
		choice placement.Choice
	}
	var queue []running
	decisions, start := 0, processTime(b)
	for i := 0; b.Loop(); i++ {
		r, members := request(sizes[i%len(sizes)]), 1
		if r.Devices == 8 && i%3 == 0 {
			members = 2 + i%31
		}
		choices, ok := fleet.PlaceGang(r, members, true, nil)
		decisions += members
		for _, choice := range choices {
			queue = append(queue, running{r, choice})
		}
		for !ok || len(queue) > 20000 {
			fleet.Release(queue[0].choice.Node, queue[0].r, queue[0].choice.Devices)
			queue, ok = queue[1:], true
		}
	}
	b.ReportMetric(float64(decisions)/(processTime(b)-start), "decisions/CPU-s")
}
