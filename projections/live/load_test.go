package live

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// heartbeats records the load of a replica every two seconds, first at the time from and last
// before the time to.
func heartbeats(p *Status, replica string, from, to time.Time, load ReplicaLoad) {
	for at := from; at.Before(to); at = at.Add(2 * time.Second) {
		load.Time = at
		p.Load("d", replica, load)
	}
}

func newest(h LoadHistory) []LoadSample { return slices.Collect(h.Newest()) }

func TestLoadsAreSampled(t *testing.T) {
	p := NewStatus(epoch)
	busy := ReplicaLoad{Ready: true, Active: 3, Queued: 1, Slots: 8, RequestsPerSecond: 2, CompletedPerSecond: 1,
		PromptTokensPerSecond: 50, TokensPerSecond: 100}
	// The heartbeats of two nodes alternate.
	for at := epoch; at.Before(epoch.Add(20 * time.Second)); at = at.Add(2 * time.Second) {
		heartbeats(p, "r1", at, at.Add(time.Second), busy)
		heartbeats(p, "r2", at.Add(time.Second), at.Add(2*time.Second), busy)
	}
	before := p.View()
	samples := newest(p.View().Loads("d"))
	require.Len(t, samples, 3, "the fourth is in progress")
	require.Equal(t, LoadSample{Start: epoch.Add(10 * time.Second), End: epoch.Add(15 * time.Second), InFlight: 8,
		Peak: 8, Slots: 8,
		RequestsPerSecond: 4, CompletedPerSecond: 2, PromptTokensPerSecond: 100, TokensPerSecond: 200}, samples[0])
	require.Equal(t, epoch.Add(19*time.Second), p.View().Loads("d").LastRequest)

	heartbeats(p, "r1", epoch.Add(20*time.Second), epoch.Add(40*time.Second), ReplicaLoad{Ready: true, Slots: 8})
	require.Equal(t, epoch.Add(19*time.Second), p.View().Loads("d").LastRequest, "idle replicas received no requests")
	require.Len(t, newest(before.Loads("d")), 3, "a view never changes")
	heartbeats(p, "r1", epoch.Add(61*time.Second), epoch.Add(69*time.Second), ReplicaLoad{})
	require.Equal(t, epoch.Add(61*time.Second), newest(p.View().Loads("d"))[0].Start,
		"after a gap a sample begins with the first report")
	p.RecordRequest("d", epoch.Add(50*time.Second))
	require.Equal(t, epoch.Add(50*time.Second), p.View().Loads("d").LastRequest)
	p.Forget("d")
	require.Equal(t, LoadHistory{}, p.View().Loads("d"))
	require.Equal(t, LoadHistory{}, View{}.Loads("d"))
}

// TestPeaksAreKept checks that a peak between two steps' means is in the sample, in the minute, and,
// before the step has ended, in Latest.
func TestPeaksAreKept(t *testing.T) {
	p := NewStatus(epoch)
	report := func(seconds int, replica string, active, queued int) {
		p.Load("d", replica, ReplicaLoad{Ready: true, Active: active, Queued: queued, Slots: 8, CompletedPerSecond: 3,
			Time: epoch.Add(time.Duration(seconds) * time.Second)})
	}
	for i, inFlight := range []int{1, 20, 1, 1} {
		report(i, "r1", min(inFlight, 8), max(0, inFlight-8))
		report(i, "r2", 2, 0)
	}
	require.Equal(t, LoadSample{Start: epoch, End: epoch.Add(3 * time.Second), Peak: 22, CompletedPerSecond: 6,
		Slots: 8}, p.View().Loads("d").Latest)
	report(5, "r1", 0, 0)
	require.EqualValues(t, 22, newest(p.View().Loads("d"))[0].Peak)
	require.Zero(t, p.View().Loads("d").Latest.Peak)
	for i := range 20 {
		report(10+5*i, "r1", 0, 0)
	}
	require.EqualValues(t, 22, p.View().Loads("d").Minutes[0].Peak)
}

func TestReportsAreWeightedByTheirTime(t *testing.T) {
	p := NewStatus(epoch)
	for _, one := range []struct {
		millis int
		rate   float64
		// The first report covers no time, and the third covers 10 ms.
	}{{0, 1000}, {2000, 10}, {2010, 100}, {4010, 0}, {6000, 0}} {
		p.Load("d", "r1", ReplicaLoad{Ready: true, Slots: 1, RequestsPerSecond: one.rate,
			Time: epoch.Add(time.Duration(one.millis) * time.Millisecond)})
	}
	require.InDelta(t, 21/4.01, newest(p.View().Loads("d"))[0].RequestsPerSecond, 1e-9)
}

func TestLoadsHaveLimits(t *testing.T) {
	p := NewStatus(epoch)
	end := epoch.Add(3 * time.Hour)
	for at := epoch; at.Before(end); at = at.Add(LoadStep) {
		load := ReplicaLoad{Ready: true, Slots: 8, Time: at}
		if at.Truncate(LoadMinute).Equal(at) {
			load.Active = 5
		}
		p.Load("d", "r1", load)
	}
	h := p.View().Loads("d")
	require.LessOrEqual(t, len(h.Steps), int((LoadDetail+LoadMinute)/LoadStep))
	require.LessOrEqual(t, len(h.Minutes), int(loadRetention/LoadMinute)+1)
	samples := newest(h)
	for i, s := range samples[1:] {
		require.False(t, s.End.After(samples[i].Start), "samples overlap at %s", s.End)
		require.LessOrEqual(t, samples[i].Start.Sub(s.End), LoadStep, "there is a gap after %s", s.End)
	}
	oldest := samples[len(samples)-1]
	require.GreaterOrEqual(t, end.Sub(oldest.Start), domain.MaxWindow, "the history covers the longest window")
	require.EqualValues(t, 5, oldest.InFlight, "the maximum of a minute is kept")

	for i := range MaxLoads + 3 {
		p.Load(domain.Name(fmt.Sprint("d", i)), "r1", ReplicaLoad{Time: end.Add(time.Duration(i) * time.Second)})
	}
	require.Equal(t, MaxLoads, p.View().loads.Len())
	require.Len(t, p.steps, MaxLoads)
	require.Empty(t, newest(p.View().Loads("d")), "the one with the oldest report is dropped")
}
