package main_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReplayOfRecordedJobs replays the log of a server that has trained jobs, while it runs and after it
// has stopped, as docs/what-if.md describes.
func TestReplayOfRecordedJobs(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	s.joined()
	user := s.user()
	user.dataset("codes", 20)
	const jobs = 3
	for _, id := range []string{"a", "b", "c"} {
		user.job(id, "codes", 1)
	}
	for _, id := range []string{"a", "b", "c"} {
		user.until("/supervisedFineTuningJobs/"+id, "state", "JOB_STATE_COMPLETED")
	}
	replay := func() {
		t.Helper()
		var report struct {
			Results []struct {
				Name string
				Jobs struct{ Arrived, Started, Completed int }
				Wait struct {
					Jobs     int
					Mean     float64
					P95, Max float64
				}
				Utilization []struct{ Percent float64 }
			}
		}
		out := s.run("replay", "--data", s.dir, "--with", "nodes=+2xCPU", "--with", "weight:default=3,placement=SPREAD", "-o",
			"json").ok(t)
		require.NoError(t, json.Unmarshal([]byte(out), &report))
		require.Len(t, report.Results, 4, "recorded, simulated, and two variants")
		for _, r := range report.Results {
			require.Equal(t, []int{jobs, jobs}, []int{r.Jobs.Arrived, r.Jobs.Started}, r.Name)
			require.Equal(t, jobs, r.Wait.Jobs, r.Name)
			require.NotEmpty(t, r.Utilization, r.Name)
		}
		require.Equal(t, jobs, report.Results[0].Jobs.Completed)
		require.LessOrEqual(t, report.Results[2].Wait.Max, report.Results[1].Wait.Max, "with more nodes no job waits longer")
		require.Contains(t, s.run("replay", "--data", s.dir, "--with", "nodes=+2xCPU").ok(t), "variant 1")
	}
	replay()
	require.NotZero(t, s.run("replay", "--data", s.dir, "--with", "nodes=+2xNOSUCH").code)
	require.Zero(t, s.end())
	replay()
}
