package live

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestReleaseSamples checks that a View sums the samples of the processes of all gateways in one step,
// that earlier steps and older messages are ignored, and that few releases are kept.
func TestReleaseSamples(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s := NewStatus(now)
	step := ReleaseStep{Deployment: "accounts/a/deployments/d", Created: 7, Number: 1}
	samples := func(n int64) domain.ReleaseSamples {
		return domain.ReleaseSamples{Stable: domain.ArmSamples{Requests: n}}
	}
	total := func(v View, step ReleaseStep) int64 { return v.Release(step).Stable.Requests }
	s.RecordRelease("", step, samples(3), now)
	before := s.View()
	s.RecordRelease("b", step, samples(5), now)
	s.RecordRelease("b", step, samples(4), now)
	s.RecordRelease("c", step, samples(1), now)
	other := step
	other.Deployment += "2"
	s.RecordRelease("c", other, samples(100), now)
	require.EqualValues(t, 9, total(s.View(), step))
	require.EqualValues(t, 6, s.View().ReleaseElsewhere(step).Stable.Requests)
	require.EqualValues(t, 3, total(before, step), "a View does not change")
	require.Zero(t, total(View{}, step))

	next := step
	next.Step = 1
	s.RecordRelease("b", next, samples(2), now)
	s.RecordRelease("b", step, samples(50), now)
	require.EqualValues(t, 4, total(s.View(), step))
	require.EqualValues(t, 2, total(s.View(), next))
	for later, earlier := range map[ReleaseStep]ReleaseStep{next: step, {Created: 8}: next,
		{Created: 7, Number: 2}: next} {
		require.True(t, later.After(earlier))
		require.False(t, earlier.After(later))
		require.False(t, later.After(later))
	}
	for i := range MaxReleases {
		s.RecordRelease(fmt.Sprint("g", i), step, samples(1), now.Add(time.Second))
	}
	require.LessOrEqual(t, s.now.releases.Len(), MaxReleases)
}
