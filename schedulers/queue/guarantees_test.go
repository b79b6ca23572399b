package queue_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/schedulers/queue"
)

// TestGuarantees checks who may use the accelerators that are guaranteed to accounts.
func TestGuarantees(t *testing.T) {
	const reclaimed = ": the account of the job uses less than is guaranteed to it"
	for name, c := range map[string]struct {
		guaranteed map[string]int64
		jobs       []*queue.Job
		want       []string
	}{
		"an account borrows what nobody needs": {map[string]int64{"a": 2, "b": 6}, []*queue.Job{
			waits("j", "a", 1, 8, 0)}, []string{"j on [0]"}},
		"an account without a guarantee borrows as well": {map[string]int64{"b": 8}, []*queue.Job{
			waits("j", "a", 1, 8, 0)}, []string{"j on [0]"}},
		"the account gives it back": {map[string]int64{"a": 2, "b": 6}, []*queue.Job{
			runs("a1", "a", 2, 600, 0, 0), runs("a2", "a", 6, 600, 0, 0), runs("b1", "b", 2, 60, 0, 1),
			waits("j", "b", 1, 4, 0)},
			[]string{"j on [0] for a2" + reclaimed}},
		"not before it has run for ten minutes": {map[string]int64{"a": 2, "b": 6}, []*queue.Job{
			runs("a1", "a", 8, 599, 0, 0), runs("b1", "b", 2, 60, 0, 1), waits("j", "b", 1, 4, 0)}, nil},
		"however often it was preempted": {map[string]int64{"a": 2, "b": 6}, []*queue.Job{
			capped(runs("a1", "a", 8, 600, 0, 0)), runs("b1", "b", 2, 60, 0, 1), waits("j", "b", 1, 4, 0)},
			[]string{"j on [0] for a1" + reclaimed}},
		"what is borrowed comes first, even if it costs more": {map[string]int64{"a": 5, "b": 5}, []*queue.Job{
			runs("a1", "a", 5, day, 0, 0), runs("a2", "a", 3, day, 2*hour, 0), runs("b1", "b", 2, 60, 0, 1),
			waits("j", "b", 1, 3, 0)}, []string{"j on [0] for a2" + reclaimed}},
		"a job is given back that is larger than what is borrowed": {map[string]int64{"a": 5, "b": 5}, []*queue.Job{
			runs("a1", "a", 8, day, 0, 0), runs("b1", "b", 2, 60, 0, 1), waits("j", "b", 1, 3, 0)},
			[]string{"j on [0] for a1" + reclaimed}},
		"only for what is guaranteed": {map[string]int64{"a": 2, "b": 5}, []*queue.Job{
			runs("a1", "a", 8, 600, 0, 0), runs("b1", "b", 2, 60, 0, 1), waits("j", "b", 1, 4, 0)}, nil},
		"not from an account within its guarantee": {map[string]int64{"a": 8, "b": 8}, []*queue.Job{
			runs("a1", "a", 8, 600, 0, 0), runs("b1", "b", 2, 60, 0, 1), waits("j", "b", 1, 4, 0)}, nil},
		"a job within a guarantee gives way to one that claims and is due": {map[string]int64{"a": 8, "b": 8},
			[]*queue.Job{runs("a1", "a", 8, day, 0, 0), runs("b1", "b", 2, 60, 0, 1), waits("j", "b", 1, 4, day)},
			[]string{"j on [0] for a1: the deadline in the queue has passed"}},
		"a job within a guarantee does not give way to one that borrows": {map[string]int64{"a": 8}, []*queue.Job{
			runs("a1", "a", 8, day, 0, 0), runs("b1", "b", 2, 60, 0, 1), waits("j", "b", 1, 4, day)}, nil},
		"it gives way to a replica within a minimum": {map[string]int64{"a": 8}, []*queue.Job{
			runs("a1", "a", 8, day, 0, 0), runs("b1", "b", 2, 60, 0, 1), as(queue.Minimum, waits("r", "b", 1, 4, day))},
			[]string{"r on [0] for a1: the deadline in the queue has passed"}},
		"a replica above the minimum is given back": {map[string]int64{"b": 6}, []*queue.Job{
			runs("a1", "a", 2, 60, 0, 1), as(queue.Elastic, runs("r", "a", 8, 600, 0, 0)), runs("b1", "b", 2, 60, 0, 1),
			waits("j", "b", 1, 4, 0)}, []string{"j on [0] for r" + reclaimed}},
		"a gang is given back": {map[string]int64{"b": 6}, []*queue.Job{
			runs("gang", "a", 6, 600, 0, 0, 1), runs("b1", "b", 2, 60, 0, 1), waits("j", "b", 1, 4, 0)},
			[]string{"j on [0] for gang" + reclaimed}},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := cluster(8, 4)
			nodes[1].Capacity.Units = 4 // too small for the jobs that wait
			if name == "a gang is given back" {
				nodes = cluster(8, 8)
			}
			require.Equal(t, c.want, decideWith(c.guaranteed, nodes, c.jobs...))
		})
	}
}

// TestGuaranteesHold simulates a week of three accounts on 64 accelerators, of which 32 and 16 are
// guaranteed to two of them. Two accounts always have more jobs than fit. A job that uses only what
// is guaranteed starts within ReclaimAfter and two passes, no job within a guarantee gives way to
// one that borrows, and every job ends.
func TestGuaranteesHold(t *testing.T) {
	const nodes, hours = 8, 7 * 24
	guaranteed := map[string]int64{"owner": 32, "busy": 16}
	random := rand.New(rand.NewPCG(1, 1))
	var trace []traceJob
	for hour := int64(0); hour < hours; hour++ {
		add := func(account string, n int, gpus, longest int64) {
			for range n {
				trace = append(trace, traceJob{hour * 3600, 600 + random.Int64N(longest*3600), 1 + random.Int64N(gpus), account})
			}
		}
		add("greedy", 5, 2, 8)
		add("busy", 3, 2, 8)
		if hour%12 == 6 {
			add("owner", 32, 1, 6)
		}
	}
	s := newSimulator(trace, nodes, map[string]int64{"owner": 1, "busy": 1, "greedy": 1})
	s.queue = queue.New(queue.Default(), cluster(8, 8, 8, 8, 8, 8, 8, 8), []queue.Account{
		{Name: "owner", Limit: -1, Guaranteed: 32}, {Name: "busy", Limit: -1, Guaranteed: 16},
		{Name: "greedy", Limit: -1}}, nil, nil)
	reclaims := 0
	s.check = func(now int64, decisions []queue.Decision) {
		used := map[string]int64{}
		for j := range s.running {
			used[j.Account] += j.size()
		}
		for _, d := range decisions {
			candidate := s.byID[d.Job.ID]
			claims := used[candidate.Account]+candidate.size() <= guaranteed[candidate.Account]
			for _, v := range d.Preempt {
				if within := guaranteed[v.Account] > 0 && used[v.Account] <= guaranteed[v.Account]; within && !claims {
					t.Fatalf("at %d, %s of %s gives way to %s of %s, which borrows", now, v.ID, v.Account, d.Job.ID, d.Job.Account)
				}
			}
			for _, v := range d.Preempt {
				used[v.Account] -= s.byID[v.ID].size()
			}
			used[candidate.Account] += candidate.size()
			if d.Reason == queue.Reclaimed {
				reclaims += len(d.Preempt)
			}
		}
	}
	longest := int64(0)
	s.started = func(j *simulated, now int64) {
		if j.Account == "owner" {
			longest = max(longest, now-j.Arrival)
		}
	}
	s.run()
	require.Positive(t, reclaims)
	require.Zero(t, s.queue.Waiting())
	limit := queue.Default().ReclaimAfter + 2*period
	t.Logf("%d jobs, %d reclaimed, the owner waited for %d s at most", len(trace), reclaims, longest)
	require.LessOrEqual(t, longest, limit)
}
