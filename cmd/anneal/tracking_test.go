package main_test

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/workers/tracking/trackertest"
)

// TestTrackersSurviveKills checks that an experiment tracker receives each step of a job once and the
// end of the job although the server and its worker are killed while the job runs, that the job shows
// the address of its run, and that the key is stored in clear nowhere.
func TestTrackersSurviveKills(t *testing.T) {
	t.Parallel()
	const key = "canary-77ab31"
	wandb, mlflow := trackertest.NewWandB(key), trackertest.NewMLflow(key)
	for kind, c := range map[string]struct {
		handler http.Handler
		run     func(t testing.TB) (steps map[int]int, ended bool)
	}{
		"wandb": {wandb, func(t testing.TB) (map[int]int, bool) {
			require.Empty(t, wandb.Violations())
			steps, ended := map[int]int{}, false
			for _, path := range wandb.Runs() {
				run, _ := wandb.Run(path)
				ended = run.Complete && run.ExitCode == 0
				for _, line := range run.History {
					steps[int(line["_step"].(float64))]++
				}
			}
			require.LessOrEqual(t, len(wandb.Runs()), 1)
			return steps, ended
		}},
		"mlflow": {mlflow, func(t testing.TB) (map[int]int, bool) {
			require.Empty(t, mlflow.Violations())
			steps, ended := map[int]int{}, false
			for _, run := range mlflow.Runs() {
				ended = run.Status == "FINISHED"
				for _, metric := range run.Metrics {
					if metric.Key == "train/loss" {
						steps[metric.Step]++
					}
				}
			}
			require.LessOrEqual(t, len(mlflow.Runs()), 1)
			return steps, ended
		}},
	} {
		t.Run(kind, func(t *testing.T) {
			server := httptest.NewServer(c.handler)
			t.Cleanup(server.Close)
			f, g := startBlockable(t, "--tracker", kind+"="+server.URL)
			user := f.user()
			user.dataset("rows", 20)
			f.work("one")
			job := jobOn("rows", 120)
			job["trackerConfig"] = map[string]any{"enabled": true, "apiKey": key, "project": "p", "entity": "e"}
			const path = "/supervisedFineTuningJobs/tracked"
			// The job cannot end before the tracker has received its first steps.
			_, open := g.block(afterFirst())
			defer open()
			user.must(http.MethodPost, "/supervisedFineTuningJobs?supervisedFineTuningJobId=tracked", job)
			require.Eventually(t, func() bool { steps, _ := c.run(t); return len(steps) > 0 }, time.Minute,
				10*time.Millisecond)
			require.NotEqual(t, "JOB_STATE_COMPLETED", user.get(path)["state"])
			f.kill()
			f.workers["one"].kill()
			open()
			f.start()
			f.work("one")
			user = f.user()
			done := user.until(path, "state", "JOB_STATE_COMPLETED")
			require.Contains(t, done["trackerConfig"].(map[string]any)["url"], server.URL+"/")
			require.Eventually(t, func() bool { _, ended := c.run(t); return ended }, time.Minute, 10*time.Millisecond)
			steps, _ := c.run(t)
			last := int(user.get(path)["jobProgress"].(map[string]any)["step"].(float64))
			require.Len(t, steps, last)
			for step := range last {
				require.Equal(t, 1, steps[step+1], "step %d of %d", step+1, last)
			}
			require.Zero(t, f.workers["one"].end())
			require.Zero(t, f.end())
			require.NotContains(t, f.log.output(), key)
			require.NoError(t, filepath.WalkDir(f.dir, func(path string, entry fs.DirEntry, err error) error {
				if err != nil || !entry.Type().IsRegular() {
					return err
				}
				data, err := os.ReadFile(path)
				require.NotContains(t, string(data), key, path)
				return err
			}))
		})
	}
}
