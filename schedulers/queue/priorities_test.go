package queue_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/schedulers/queue"
)

// TestPriorities checks what the priorities of jobs decide within an account, and that they decide
// nothing between accounts.
func TestPriorities(t *testing.T) {
	with := func(priority int64, j *queue.Job) *queue.Job {
		j.Priority = priority
		return j
	}
	last := func(j *queue.Job) *queue.Job {
		j.Last = true
		return j
	}
	waited := func(seconds int64, j *queue.Job) *queue.Job { // before it started
		j.Arrival -= seconds
		return j
	}
	for name, c := range map[string]struct {
		nodes []queue.Node
		jobs  []*queue.Job
		want  []string
	}{
		"the higher priority starts first": {cluster(8), []*queue.Job{
			waits("old", "a", 1, 8, hour), with(1, waits("high", "a", 1, 8, 0))}, []string{"high on [0]"}},
		"the lower priority starts last": {cluster(8), []*queue.Job{
			with(-1, waits("low", "a", 1, 8, hour)), waits("new", "a", 1, 8, 0)}, []string{"new on [0]"}},
		"also between a long and a new job": {cluster(8), []*queue.Job{
			waits("new", "a", 1, 8, 0), with(1, func() *queue.Job {
				j := waits("long", "a", 1, 1, 0)
				j.Work = hour
				return j
			}())}, []string{"long on [0]"}},
		"not before another account": {cluster(8), []*queue.Job{
			waits("old", "a", 1, 8, hour), with(1, waits("high", "b", 1, 8, 0))}, []string{"old on [0]"}},
		"an account's turn is used by its higher priority": {cluster(8), []*queue.Job{
			waits("other", "b", 1, 8, hour), waits("old", "a", 1, 8, 2*hour), with(1, waits("high", "a", 1, 8, 0))},
			[]string{"high on [0]"}},
		"a low job that has waited for days starts": {cluster(8), []*queue.Job{
			with(-1, waits("low", "a", 1, 8, 4*day)), waits("new", "a", 1, 8, 0)}, []string{"low on [0]"}},
		"a job that is due preempts a lower priority of its account": {cluster(8), []*queue.Job{
			with(-1, runs("low", "a", 8, hour, 0, 0)), waits("due", "a", 1, 8, day)},
			[]string{"due on [0] for low: the deadline in the queue has passed"}},
		"whatever their slack": {cluster(8), []*queue.Job{
			with(-1, waited(day, runs("low", "a", 8, hour, 0, 0))), waits("due", "a", 1, 8, 700)},
			[]string{"due on [0] for low: the deadline in the queue has passed"}},
		"the slack decides between equal priorities": {cluster(8), []*queue.Job{
			waited(day, runs("running", "a", 8, hour, 0, 0)), waits("due", "a", 1, 8, 700)}, nil},
		"and between accounts": {cluster(8), []*queue.Job{
			with(-1, waited(day, runs("low", "b", 8, hour, 0, 0))), waits("due", "a", 1, 8, 700)}, nil},
		"not one that was preempted six times": {cluster(8), []*queue.Job{
			with(-1, capped(runs("low", "a", 8, hour, 0, 0))), waits("due", "a", 1, 8, day)}, nil},
		"a replica has no priority": {cluster(8), []*queue.Job{
			with(-1, waited(day, runs("low", "a", 8, hour, 0, 0))), as(queue.Minimum, waits("r", "a", 1, 8, 700))}, nil},
		"a pilot stays the last": {cluster(8), []*queue.Job{
			with(1, last(waits("pilot", "a", 1, 8, hour))), waits("new", "a", 1, 8, 0)}, []string{"new on [0]"}},
		"but not one that has just started": {cluster(8), []*queue.Job{
			with(-1, runs("low", "a", 8, 1799, 0, 0)), waits("due", "a", 1, 8, day)}, nil},
		"nor a higher priority": {cluster(8), []*queue.Job{
			with(1, runs("high", "a", 8, 100*day, 0, 0)), waits("due", "a", 1, 8, day)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, decide(c.nodes, c.jobs...))
		})
	}
}

// TestPrioritiesDoNotDelayOtherAccounts checks that a job preempts another one, although a job of
// the same size, which another account prefers to its own older job, may not.
func TestPrioritiesDoNotDelayOtherAccounts(t *testing.T) {
	long := runs("long", "c", 1, hour, 0, 0)
	long.Arrival = now - 173_000 - hour             // slack: -65,000 s
	preferred := waits("preferred", "a", 1, 1, 700) // slack: -86,500 s, less than Margin below
	for _, priority := range []int64{0, 1} {
		preferred.Priority = priority
		older := waits("older", "a", 1, 1, 5*hour+1)
		other := waits("other", "b", 1, 1, 5*hour) // slack: -103,800 s
		victim := *long
		got := decide(cluster(1), &victim, preferred, older, other)
		want := "older on [0] for long: the deadline in the queue has passed"
		if priority > 0 {
			want = "other on [0] for long: the deadline in the queue has passed"
		}
		require.Equal(t, []string{want}, got, "priority %d", priority)
	}
}

// TestPlacesFollowPriorities checks that the places of waiting jobs are the order in which they
// start.
func TestPlacesFollowPriorities(t *testing.T) {
	var jobs []*queue.Job
	for i := range 12 {
		j := waits(fmt.Sprintf("j%02d", i), []string{"a", "b"}[i%2], 1, 8, int64(1000-i))
		j.Priority = int64(i*7%3) - 1
		jobs = append(jobs, j)
	}
	accounts := []queue.Account{{Name: "a", Weight: 1, Limit: -1}, {Name: "b", Weight: 1, Limit: -1}}
	q := queue.Of(queue.Default(), queue.Snapshot{Nodes: cluster(8), Jobs: jobs, Accounts: accounts})
	for left := len(jobs); left > 0; left-- {
		places := q.Places(now)
		started := q.Pass(now)
		require.Len(t, started, 1)
		require.Equal(t, queue.Place{Position: 1, Length: left}, places[started[0].Job.ID], started[0].Job.ID)
		q.Remove(started[0].Job.ID)
	}
}
