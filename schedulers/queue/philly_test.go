package queue_test

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/schedulers/queue"
)

// TestPhilly replays a part of the trace on a small cluster that it overloads for days, and checks
// the invariants after every pass: no node is overcommitted, every gang is whole, no job is
// preempted more than MaxPreemptions times, every job ends, and two replays make the same
// decisions.
func TestPhilly(t *testing.T) {
	trace := readTrace(t)[:7000]
	trace = slices.DeleteFunc(trace, func(j traceJob) bool { return j.gpus > 32 })
	const nodes = 44
	replay := func() (uint64, *simulator) {
		s, decided, hash := newSimulator(trace, nodes, weights(trace, nodes, true)), 0, fnv.New64a()
		running := map[string]*queue.Job{}
		s.check = func(now int64, decisions []queue.Decision) {
			for _, d := range decisions {
				fmt.Fprint(hash, now, d.Job.ID, d.Nodes, d.Reason, len(d.Preempt))
				decided++
				running[d.Job.ID] = d.Job
				require.Len(t, d.Nodes, int(d.Job.Nodes), "gangs are whole")
				require.True(t, slices.IsSorted(d.Nodes))
				require.Len(t, slices.Compact(slices.Clone(d.Nodes)), len(d.Nodes), "on distinct nodes")
			}
			if len(decisions) == 0 {
				return
			}
			var used [nodes]int64
			for id, j := range running {
				if s.byID[id].end > 0 {
					delete(running, id)
					continue
				}
				require.LessOrEqual(t, j.Preemptions, queue.Default().MaxPreemptions)
				for _, n := range j.On {
					used[n] += j.Takes.Units
				}
			}
			require.LessOrEqual(t, slices.Max(used[:]), int64(nodeUnits), "no node is overcommitted")
		}
		s.run()
		require.Greater(t, decided, len(trace), "some jobs are preempted")
		return hash.Sum64(), s
	}
	first, s := replay()
	second, _ := replay()
	require.Equal(t, first, second, "replays differ")
	sum := s.summary()
	for _, j := range s.jobs {
		require.GreaterOrEqual(t, j.delay(), int64(0), "%s ends after its work", j.ID)
	}
	t.Logf("%d jobs: mean delay %.2f h, gangs %.2f h, longest %.1f h, lost %.2f %%, at most %d preemptions", len(s.jobs),
		sum.mean, sum.gangs, sum.longest, sum.lost, sum.preemptions)
	require.Less(t, sum.mean, 6.0)
	require.Less(t, sum.longest, 80.0, "no job waits for ever")
	require.Positive(t, sum.preemptions)
}

// BenchmarkPhilly replays the whole trace in the scenarios of BENCHMARKS.md and prints a row of the
// table for each. It fails when a goal is missed.
func BenchmarkPhilly(b *testing.B) {
	trace := readTrace(b)
	for _, c := range []struct {
		name               string
		nodes              int64
		equal              bool
		mean, gangs, worst float64 // goals in hours
		lost               float64
	}{
		{"75 nodes, weighted", 75, false, 0.75, 1.5, 55, 0.2},
		{"75 nodes, equal", 75, true, 0.75, 1.5, 55, 0.2},
		{"65 nodes, weighted", 65, false, 2.5, 2, 1e9, 1},
		{"65 nodes, equal", 65, true, 2.5, 2, 1e9, 1},
		{"90 nodes, equal", 90, true, 0.75, 1.5, 55, 0.2},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				w := weights(trace, c.nodes, c.equal)
				s := newSimulator(trace, int(c.nodes), w)
				var e estimates
				e.watch(s)
				s.run()
				sum := s.summary()
				fair, whose := fairness(trace, int(c.nodes), w, sum)
				fmt.Printf("| %s | %.2f | %.2f | %.1f | %.2f (%s) | %.3f | %d | %.2f | %.1f %% of %d | %.0f |\n", c.name,
					sum.mean, sum.gangs, sum.longest, fair, whose, sum.lost, sum.preemptions, sum.often, e.coverage(), e.queued,
					e.width())
				goal := func(name string, value, limit float64) {
					if value > limit {
						b.Errorf("%s is %.3f, and the goal is %.3f or less", name, value, limit)
					}
				}
				goal("mean", sum.mean, c.mean)
				goal("gangs", sum.gangs, c.gangs)
				goal("longest", sum.longest, c.worst)
				goal("fair", fair, 1.5)
				goal("lost", sum.lost, c.lost)
				goal("preemptions", float64(sum.preemptions), 6)
			}
		})
	}
	b.Run("flood", func(b *testing.B) {
		for b.Loop() {
			flood(b, trace)
		}
	})
}

// flood adds 20,000 jobs of half an hour of one account at once, and prints how much they slow down
// the jobs of the other accounts.
func flood(b *testing.B, trace []traceJob) {
	const nodes, jobs, day, account = 75, 20_000, 86_400, "11cb48"
	w := weights(trace, nodes, true)
	baseline := newSimulator(trace, nodes, w)
	baseline.run()
	more := slices.Clone(trace)
	for range jobs {
		more = append(more, traceJob{20 * day, 1800, 1, account})
	}
	slices.SortStableFunc(more, func(a, b traceJob) int { return cmp.Compare(a.arrival, b.arrival) })
	busy := newSimulator(more, nodes, w)
	busy.run()
	before, after := baseline.summary().slowdown, busy.summary().slowdown
	within, worst := 0, 0.0
	for other := range before {
		if other == account {
			continue
		}
		raised := 100 * (after[other]/before[other] - 1)
		if raised <= 36 {
			within++
		}
		worst = max(worst, raised)
	}
	fmt.Printf("flood: %d of %d other accounts slow down by 36 %% or less, the worst by %.0f %%\n", within, len(before)-1,
		worst)
	if within < len(before)-3 {
		b.Error("a flood of one account slows down the others")
	}
}
