package live

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func steps(v View, job domain.Name, after int) []int {
	found := []int{}
	for row := range v.Metrics(job, after) {
		found = append(found, row.Step)
	}
	return found
}

func TestNodesCountAsSeenWhenListeningBegins(t *testing.T) {
	p := NewStatus(epoch)
	require.Equal(t, epoch, p.View().Seen("n"))
	before := p.View()
	p.Heartbeat("n", epoch.Add(time.Second))
	p.Heartbeat("n", epoch)
	require.Equal(t, epoch.Add(time.Second), p.View().Seen("n"))
	require.Equal(t, epoch, before.Seen("n"))
	p.ListenFrom(epoch.Add(time.Hour))
	require.Equal(t, epoch.Add(time.Hour), p.View().Seen("n"))
	require.Zero(t, View{}.Seen("n"))
}

func TestTheLastUseOfKeysIsKept(t *testing.T) {
	p := NewStatus(epoch)
	require.Zero(t, View{}.KeyUsed("k"))
	require.Zero(t, p.View().KeyUsed("k"))
	require.True(t, p.UseKey("k", epoch))
	require.False(t, p.UseKey("k", epoch), "known already")
	require.False(t, p.UseKey("k", epoch.Add(-time.Second)))
	before := p.View()
	require.True(t, p.UseKey("k", epoch.Add(time.Second)))
	require.Equal(t, epoch, before.KeyUsed("k"))
	require.Equal(t, epoch.Add(time.Second), p.View().KeyUsed("k"))
	p.ForgetKey("k")
	require.Zero(t, p.View().KeyUsed("k"))
	for i := range MaxKeys + 1 {
		p.UseKey(domain.Name(fmt.Sprint("k", i)), epoch.Add(time.Duration(i)))
	}
	require.Zero(t, p.View().KeyUsed("k0"), "the oldest is dropped")
	require.Equal(t, epoch.Add(1), p.View().KeyUsed("k1"))
}

func TestReportsOfAnEarlierAttemptAreDropped(t *testing.T) {
	p := NewStatus(epoch)
	report := func(attempt, step int, seconds int, rows ...int) {
		var metrics []MetricRow
		for _, s := range rows {
			metrics = append(metrics,
				MetricRow{Step: s, Tokens: int64(attempt), Values: map[string]float64{"train/loss": 1, "bad": math.NaN()}})
		}
		p.Report("j", Progress{Attempt: attempt, Step: step, Steps: 10,
			Time: epoch.Add(time.Duration(seconds) * time.Second)}, metrics...)
	}
	report(1, 4, 1, 1, 2, 3, 4)
	first := p.View()
	report(2, 2, 5)
	require.Equal(t, []int{1, 2}, steps(p.View(), "j", 0), "a new attempt starts at its checkpoint")
	report(1, 9, 6, 5, 9)
	report(2, 3, 7, 3)
	report(2, 1, 6, 2) // sent before the report above, but received after it
	report(2, 2, 8)    // has a later time, but an earlier step
	progress, ok := p.View().Progress("j")
	require.True(t, ok)
	require.Equal(t, 3, progress.Step)
	require.Equal(t, 30, progress.Percent())
	require.Equal(t, []int{2, 3}, steps(p.View(), "j", 1))
	last, ok := p.View().Latest("j")
	require.True(t, ok)
	require.Equal(t, map[string]float64{"train/loss": 1}, last.Values)
	require.Equal(t, []int{1, 2, 3, 4}, steps(first, "j", 0), "a view never changes")

	_, ok = p.View().Progress("other")
	require.False(t, ok)
	p.Forget("j")
	_, ok = p.View().Latest("j")
	require.False(t, ok)
}

// TestReportsOfANamesakeAreDropped checks that a job that is created again under its name starts
// without progress, and that late reports of the earlier job are dropped.
func TestReportsOfANamesakeAreDropped(t *testing.T) {
	status, job := NewStatus(epoch), domain.Name("accounts/a/dpoJobs/j")
	of := func(made time.Time, attempt, step int) {
		status.Report(job, Progress{Made: made, Attempt: attempt, Step: step, Time: epoch}, MetricRow{Step: step})
	}
	of(epoch, 3, 40)
	of(epoch.Add(time.Hour), 1, 5)
	of(epoch, 3, 41)
	view := status.View()
	progress, ok := view.Progress(job)
	require.True(t, ok)
	require.Equal(t, 5, progress.Step)
	require.Equal(t, 1, progress.Attempt)
	require.Equal(t, []int{5}, steps(view, job, 0))
}

func TestPercentOfUnknownLength(t *testing.T) {
	require.Zero(t, Progress{Step: 5}.Percent())
	require.Equal(t, 100, Progress{Step: 50, Steps: 10}.Percent())
}

func TestReplicasByDeployment(t *testing.T) {
	p := NewStatus(epoch)
	p.Load("d1", "r1", ReplicaLoad{Active: 1})
	p.Load("d1", "r2", ReplicaLoad{Active: 2})
	p.Load("d10", "r1", ReplicaLoad{Active: 3})
	loads := maps.Collect(p.View().Replicas("d1"))
	require.Equal(t, map[string]ReplicaLoad{"r1": {Active: 1}, "r2": {Active: 2}}, loads)
	p.ForgetReplica("d1", "r1")
	_, ok := p.View().Replica("d1", "r1")
	require.False(t, ok)
	p.Forget("d1")
	require.Empty(t, maps.Collect(p.View().Replicas("d1")))
	load, ok := p.View().Replica("d10", "r1")
	require.True(t, ok)
	require.Equal(t, 3, load.Active)
}

func TestStatusHasLimits(t *testing.T) {
	p := NewStatus(epoch)
	for i := range MaxNodes + 3 {
		p.Heartbeat(domain.Name(fmt.Sprint("n", i)), epoch.Add(time.Duration(i+1)*time.Second))
	}
	require.Equal(t, MaxNodes, p.View().nodes.Len())
	require.Equal(t, epoch, p.View().Seen("n0"), "the one with the oldest heartbeat is dropped")
	for i := range MaxJobs + 3 {
		p.Report(domain.Name(fmt.Sprint("j", i)), Progress{Time: epoch.Add(time.Duration(i) * time.Second)})
	}
	require.Equal(t, MaxJobs, p.View().jobs.Len())
	for i := range MaxReplicas + 3 {
		p.Load("d", fmt.Sprint(i), ReplicaLoad{Time: epoch.Add(time.Duration(i) * time.Second)})
	}
	require.Equal(t, MaxReplicas, p.View().replicas.Len())

	for i := range 3 * MaxMetricRows {
		values := map[string]float64{}
		for k := range MaxMetricValues + 5 {
			values[fmt.Sprintf("v%02d", k)] = 1
		}
		if i > 0 {
			values = nil
		}
		p.Report("long", Progress{Step: i + 1, Time: epoch.Add(time.Hour)}, MetricRow{Step: i + 1, Values: values})
	}
	kept := steps(p.View(), "long", 0)
	require.LessOrEqual(t, len(kept), MaxMetricRows)
	require.Greater(t, len(kept), MaxMetricRows/4)
	require.Equal(t, 1, kept[0])
	require.Equal(t, 3*MaxMetricRows, kept[len(kept)-1])
	require.True(t, slices.IsSorted(kept))
	for row := range p.View().Metrics("long", 0) {
		require.LessOrEqual(t, len(row.Values), MaxMetricValues)
	}
}

func TestStatusIsSafeForConcurrentUse(t *testing.T) {
	p := NewStatus(epoch)
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 200 {
				p.Heartbeat("n", epoch.Add(time.Duration(i)))
				p.Report("j", Progress{Step: i}, MetricRow{Step: i, Tokens: int64(g)})
				p.Load("d", fmt.Sprint(g), ReplicaLoad{Active: i})
				v := p.View()
				if n := len(steps(v, "j", -1)); n < 1 {
					t.Error("a recorded report is not in the view")
				}
				if len(maps.Collect(v.Replicas("d"))) == 0 {
					t.Error("a recorded load is not in the view")
				}
			}
		})
	}
	all.Wait()
	require.Len(t, steps(p.View(), "j", -1), 200)
}

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
