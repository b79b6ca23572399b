package queue_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/schedulers/queue"
)

const now = 1_000_000

// cluster returns GPU nodes with the given numbers of free units, of 8.
func cluster(free ...int64) []queue.Node {
	var nodes []queue.Node
	for _, f := range free {
		nodes = append(nodes, queue.Node{Type: "GPU", Capacity: queue.Amount{Units: 8}, Free: queue.Amount{Units: f}})
	}
	return nodes
}

// memory returns one GPU node with the given amount of memory and units, and 16 cores.
func memory(mib, units int64) []queue.Node {
	a := queue.Amount{Units: units, CPUMilli: 16_000, MemoryMiB: mib}
	return []queue.Node{{Type: "GPU", Capacity: a, Free: a}}
}

// waits returns a waiting job of nodes × units that arrived age seconds ago.
func waits(id, account string, nodes, units, age int64) *queue.Job {
	return &queue.Job{ID: id, Account: account, Type: "GPU", Nodes: nodes, Takes: queue.Amount{Units: units},
		Arrival: now - age}
}

// runs returns a job that has run on the nodes for run seconds. Its last checkpoint was since
// seconds ago.
func runs(id, account string, units, run, since int64, nodes ...int) *queue.Job {
	j := waits(id, account, int64(len(nodes)), units, run)
	j.On, j.Start, j.Checkpoint, j.Work = nodes, now-run, now-since, run-since
	return j
}

// as returns a job with a role.
func as(role queue.Role, j *queue.Job) *queue.Job {
	j.Role = role
	return j
}

// capped returns a job that has been preempted as often as the rules allow.
func capped(j *queue.Job) *queue.Job {
	j.Preemptions = queue.Default().MaxPreemptions
	return j
}

// decide returns the decisions of one pass, one line for each.
func decide(nodes []queue.Node, jobs ...*queue.Job) []string {
	return decideWith(nil, nodes, jobs...)
}

// decideWith does the same as decide, with the accelerators that are guaranteed to accounts.
func decideWith(guaranteed map[string]int64, nodes []queue.Node, jobs ...*queue.Job) []string {
	accounts := map[string]bool{}
	s := queue.Snapshot{Nodes: nodes, Jobs: jobs}
	for _, j := range jobs {
		if !accounts[j.Account] {
			accounts[j.Account] = true
			s.Accounts = append(s.Accounts, queue.Account{Name: j.Account, Weight: 1, Limit: -1,
				Guaranteed: guaranteed[j.Account]})
		}
	}
	var lines []string
	for _, d := range queue.Of(queue.Default(), s).Pass(now) {
		line := fmt.Sprint(d.Job.ID, " on ", d.Nodes)
		for _, v := range d.Preempt {
			line += " for " + v.ID
		}
		if d.Reason != queue.Fits {
			line += ": " + d.Reason.String()
		}
		lines = append(lines, line)
	}
	return lines
}

const (
	hour = 3600
	day  = 24 * hour
)

// TestDecisions checks single rules.
func TestDecisions(t *testing.T) {
	change := func(j *queue.Job, f func(*queue.Job)) *queue.Job {
		f(j)
		return j
	}
	idle := ": the account of the job runs no other job"
	for name, c := range map[string]struct {
		nodes []queue.Node
		jobs  []*queue.Job
		want  []string
	}{
		"the oldest first, on the fullest node": {cluster(8, 3, 8),
			[]*queue.Job{waits("a", "x", 1, 2, 10), waits("b", "x", 1, 2, 20)}, []string{"b on [1]", "a on [0]"}},
		"gangs on the first empty nodes": {cluster(8, 7, 8, 8),
			[]*queue.Job{waits("a", "x", 2, 8, 10)}, []string{"a on [0 2]"}},
		"a gang that does not fit is skipped": {cluster(8, 7),
			[]*queue.Job{waits("a", "x", 2, 8, 500), waits("b", "x", 1, 1, 10)}, []string{"b on [1]"}},
		"an older job does not exclude a due gang from the nodes that are held for it": {cluster(8, 8),
			[]*queue.Job{waits("a", "x", 1, 8, 900), waits("b", "x", 2, 8, 700)}, []string{"b on [0 1]"}},
		"no nodes are held for a gang that cannot start while others use them": {cluster(8, 8, 7),
			[]*queue.Job{waits("gang", "x", 3, 8, 700), waits("a", "x", 1, 8, 10)}, []string{"a on [0]"}},
		"nodes are held for a due gang that can start when jobs end": {cluster(8, 8),
			[]*queue.Job{waits("gang", "x", 2, 8, 700), waits("a", "x", 1, 2, 10), runs("b", "x", 7, 60, 0, 0)}, nil},
		"a lack of memory preempts no more jobs than necessary": {memory(1600, 8),
			[]*queue.Job{change(waits("new", "y", 1, 1, 10), func(j *queue.Job) { j.Takes.MemoryMiB = 400 }),
				change(runs("a", "x", 1, day, 100, 0), func(j *queue.Job) { j.Takes.MemoryMiB = 300 }),
				change(runs("b", "x", 1, day, 200, 0), func(j *queue.Job) { j.Takes.MemoryMiB = 300 }),
				change(runs("c", "x", 1, day, 300, 0), func(j *queue.Job) { j.Takes.MemoryMiB = 1000 })},
			[]string{"new on [0] for a for b" + idle}},
		"the cores of a stopping job do not count as accelerators": {memory(0, 8),
			[]*queue.Job{waits("new", "y", 1, 4, 10), runs("a", "x", 4, day, 10, 0), runs("b", "x", 4, day, 20, 0),
				change(runs("cpu", "x", 0, 60, 0, 0), func(j *queue.Job) {
					j.Type, j.Takes.CPUMilli, j.Stopping = "", 8000, true
				})},
			[]string{"new on [0] for a" + idle}},
		"a job that is Last starts after the others": {cluster(1),
			[]*queue.Job{change(waits("a", "x", 1, 1, day), func(j *queue.Job) { j.Last = true }), waits("b", "x", 1, 1, 1)},
			[]string{"b on [0]"}},
		"the cheapest subset is preempted": {cluster(8, 8), []*queue.Job{waits("new", "y", 1, 4, 10),
			runs("big", "x", 8, day, 100, 0), runs("costly", "x", 4, day, 290, 1), runs("cheap", "x", 2, day, 10, 1),
			runs("cheap-too", "x", 2, day, 20, 1)}, []string{"new on [1] for cheap for cheap-too" + idle}},
		"a job is not preempted before MinRun": {cluster(8),
			[]*queue.Job{waits("new", "y", 1, 4, 10), runs("old", "x", 8, 1799, 0, 0)}, nil},
		"a job is not preempted after MaxPreemptions": {cluster(8), []*queue.Job{waits("new", "y", 1, 4, 10),
			change(runs("old", "x", 8, day, 0, 0), func(j *queue.Job) { j.Preemptions = 6 })}, nil},
		"no job is preempted for a gang that still lacks a node": {cluster(8, 8), []*queue.Job{waits("new", "y", 2, 8, 10),
			runs("old", "x", 8, day, 0, 0), runs("young", "x", 8, 60, 0, 1)}, nil},
		"gangs are preempted only for gangs": {cluster(8, 8),
			[]*queue.Job{waits("new", "y", 1, 8, 10), runs("gang", "x", 8, day, 0, 0, 1)}, nil},
		"a job of the same account waits until it is due": {cluster(8),
			[]*queue.Job{waits("new", "x", 1, 8, 599), runs("old", "x", 8, day, 0, 0)}, nil},
		"a job within the margin is not preempted": {cluster(8, 8), []*queue.Job{waits("new", "x", 1, 1, day),
			runs("a", "x", 8, day, 0, 0), change(runs("b", "x", 8, day, 0, 1), func(j *queue.Job) { j.Arrival -= 4 * day })},
			[]string{"new on [0] for a: the deadline in the queue has passed"}},
		"a stopping job costs nothing": {cluster(8, 8), []*queue.Job{waits("new", "y", 1, 8, 10),
			runs("a", "x", 8, day, 0, 0), change(runs("b", "x", 8, 60, 0, 1), func(j *queue.Job) { j.Stopping = true })},
			[]string{"new on [1]" + idle}},
		"nodes that were freed for a job are kept for it": {cluster(8, 8), []*queue.Job{
			change(waits("gang", "x", 2, 8, day), func(j *queue.Job) { j.Promised = true }), waits("new", "y", 1, 8, 10),
			change(runs("b", "x", 8, 60, 0, 1), func(j *queue.Job) { j.Stopping = true })},
			[]string{"gang on [0 1]: capacity was freed by preemption"}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, decide(c.nodes, c.jobs...)) })
	}
}

// TestLimits checks that an account gets no more than its limit, and that jobs of other accounts
// start before its jobs then.
func TestLimits(t *testing.T) {
	jobs := []*queue.Job{waits("a", "x", 1, 3, 30), waits("b", "x", 1, 2, 20), waits("c", "y", 1, 3, 10)}
	accounts := []queue.Account{{Name: "x", Weight: 1, Limit: 4, Used: 1}, {Name: "y", Weight: 1, Limit: -1}}
	var started []string
	for _, d := range queue.Of(queue.Default(), queue.Snapshot{Nodes: cluster(8), Accounts: accounts,
		Jobs: jobs}).Pass(now) {
		started = append(started, d.Job.ID)
	}
	require.Equal(t, []string{"a", "c"}, started)
}

// TestWeights checks that a share in proportion to the weight decides whose deadlines are
// postponed.
func TestWeights(t *testing.T) {
	for weight, want := range map[int64]string{1: "b", 3: "a"} {
		nodes := cluster(8, 8)
		accounts := []queue.Account{{Name: "x", Weight: weight, Limit: -1}, {Name: "y", Weight: 1, Limit: -1}}
		// x holds 12 of 16: above a half, and not above three quarters. Its job is a little older.
		jobs := []*queue.Job{runs("x1", "x", 8, 60, 0, 0), runs("x2", "x", 4, 60, 0, 1), runs("y1", "y", 3, 60, 0, 1),
			waits("a", "x", 1, 1, 100), waits("b", "y", 1, 1, 90)}
		d := queue.Of(queue.Default(), queue.Snapshot{Nodes: nodes, Accounts: accounts, Jobs: jobs}).Pass(now)
		require.Equal(t, want, d[0].Job.ID, "with weight %d", weight)
	}
}

// TestPositions checks that positions are the order in which jobs start, after random additions and
// removals.
func TestPositions(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	accounts := []queue.Account{{Name: "x", Weight: 1, Limit: -1}, {Name: "y", Weight: 2, Limit: -1}}
	q := queue.New(queue.Default(), cluster(8), accounts, nil, nil)
	block := runs("block", "x", 8, 60, 0, 0)
	q.Add(block)
	waiting := map[string]bool{}
	for i := range 400 {
		id := fmt.Sprintf("j%03d", i)
		j := waits(id, accounts[random.IntN(2)].Name, 1, 8, random.Int64N(3000))
		j.Work = random.Int64N(2) * 10_000
		q.Add(j)
		waiting[id] = true
		if gone := fmt.Sprintf("j%03d", random.IntN(400)); random.IntN(2) == 0 {
			q.Remove(gone)
			delete(waiting, gone)
		}
	}
	require.Equal(t, len(waiting), q.Waiting())
	q.Remove("block")
	for len(waiting) > 0 {
		places, first := q.Places(now), ""
		require.Len(t, places, len(waiting))
		positions := make([]bool, len(waiting)+1)
		for id := range waiting {
			place := places[id]
			require.Equal(t, len(waiting), place.Length)
			require.False(t, positions[place.Position], "two jobs have position %d", place.Position)
			positions[place.Position] = true
			require.EqualValues(t, 8*(place.Position-1), place.Ahead)
			if place.Position == 1 {
				first = id
			}
		}
		d := q.Pass(now)
		require.Len(t, d, 1)
		require.Equal(t, first, d[0].Job.ID)
		q.Remove(first)
		delete(waiting, first)
	}
}

// TestPlacesOfTypes checks that jobs of another type do not count, and that promised jobs are first
// and pilots last.
func TestPlacesOfTypes(t *testing.T) {
	accounts := []queue.Account{{Name: "x", Weight: 1, Limit: -1}}
	jobs := []*queue.Job{waits("old", "x", 1, 2, 100), waits("promised", "x", 1, 4, 10), waits("pilot", "x", 1, 1, 900),
		waits("cpu", "x", 1, 1, 5)}
	jobs[1].Promised, jobs[2].Last, jobs[3].Type = true, true, ""
	q := queue.Of(queue.Default(), queue.Snapshot{Nodes: cluster(0), Accounts: accounts, Jobs: jobs})
	require.Equal(t, map[string]queue.Place{"promised": {1, 3, 0}, "old": {2, 3, 4}, "pilot": {3, 3, 6}, "cpu": {1, 1, 0}},
		q.Places(now))
}
