package api

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/projections/live"
)

// TestJobsWithReusedID checks that a job that is created under the ID of a deleted job shows no
// data of the deleted job, even while files or live status of the deleted job are still present.
func TestJobsWithReusedID(t *testing.T) {
	s := newHarness(t, request.Limits{})
	const path = "/v1/accounts/acme/dpoJobs"
	name := domain.Name("accounts/acme/dpoJobs/again")
	create := func() {
		a := s.call("POST", path+"?dpoJobId=again", "user", `{"dataset": "accounts/acme/datasets/rows"}`)
		require.Equal(t, 200, a.status, "%s", a.body)
	}
	a := s.call("POST", "/v1/accounts/acme/datasets", "user", `{"datasetId": "rows", "dataset": {}}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	create()
	made := madeAt(s, name)
	s.world.Live().Report(name, live.Progress{Made: made, Attempt: 1, Step: 5, Steps: 10},
		live.MetricRow{Step: 5, Values: map[string]float64{"train/loss": 1}})
	s.putFile(blobs.MetricsFile(name, s.world.Lookup(name).CreateEvent), "{}\n")
	a = s.call("GET", path+"/again", "user", "")
	require.Contains(t, string(a.body), `"percent":50`)
	a = s.call("GET", path+"/again:getMetricsFileEndpoint", "user", "")
	require.Equal(t, 200, a.status, "%s", a.body)

	s.do(domain.IntendJob(name, domain.DeleteJob{}))
	s.do(domain.IntendJob(name, domain.CleanJob{}))
	s.do(domain.IntendJob(name, domain.PurgeJob{}))
	create()
	a = s.call("GET", path+"/again", "user", "")
	require.Equal(t, 200, a.status, "%s", a.body)
	require.NotContains(t, string(a.body), "jobProgress")
	a = s.call("GET", path+"/again:getMetricsFileEndpoint", "user", "")
	require.Equal(t, 400, a.status, "%s", a.body)
	require.Contains(t, string(a.body), "NO_METRICS")
}

// TestProgressSurvivesRestart checks that the server reports the progress of a job from the log
// when it has no live status of the job, and that the live status takes precedence while the job
// runs.
func TestProgressSurvivesRestart(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.makeDataset("rows")
	const name = domain.Name("accounts/acme/reinforcementFineTuningJobs/j")
	s.do(domain.Intend(domain.ReinforcementJobs, name,
		domain.CreateReinforcementJob{ID: "j",
			ReinforcementSpec: domain.ReinforcementSpec{Dataset: "accounts/acme/datasets/rows",
				Evaluator: "accounts/acme/evaluators/e"}}))
	s.do(domain.IntendJob(name, domain.StartValidation{}))
	s.do(domain.IntendJob(name, domain.QueueJob{}))
	s.do(domain.IntendJob(name, domain.StartJob{Attempt: 1, Nodes: []domain.Name{"accounts/system/nodes/n1"},
		Evaluator: 1}))
	progress := func() map[string]any {
		return s.ok("GET", "/v1/"+string(name), "").json(t)["jobProgress"].(map[string]any)
	}
	files := domain.Files{Prefix: "f/", Sizes: map[string]int64{"a": 1}}
	s.do(domain.IntendJob(name,
		domain.RecordCheckpoint{JobCheckpoint: domain.JobCheckpoint{Step: 2, Attempt: 1, Files: files},
			Progress: &domain.JobProgress{Step: 2, Steps: 8, Tokens: 100}}))
	require.Equal(t, 25.0, progress()["percent"])
	require.Equal(t, "100", progress()["trainedTokens"])
	require.Equal(t, "0", progress()["inputTokens"], "no rollout has been generated")
	row, _ := projections.TableOf(s.world.View(), domain.ReinforcementJobs).Get(name)
	s.world.Live().Report(name, live.Progress{Made: row.CreateTime, Attempt: 1, Step: 4, Steps: 8, Tokens: 200,
		Time: epoch})
	require.Equal(t, 50.0, progress()["percent"], "the live status is newer")
	require.NotContains(t, progress(), "secondsLeft", "no step has a duration yet")
	for step := range 4 {
		s.world.Live().Report(name, live.Progress{Made: row.CreateTime, Attempt: 1, Step: 4 + step, Steps: 16, Time: epoch},
			live.MetricRow{Step: 4 + step, Time: epoch.Add(time.Duration(step) * 2500 * time.Millisecond)})
	}
	require.Equal(t, 23.0, progress()["secondsLeft"], "nine more steps, each as long as the average of the last three")
	s.world.Live().Report(name, live.Progress{Made: row.CreateTime, Attempt: 1, Step: 8, Steps: 16, Time: epoch},
		live.MetricRow{Step: 8, Time: epoch.Add(time.Hour)})
	require.Equal(t, 20.0, progress()["secondsLeft"], "eight more; the pause before the last one does not count")
	s.do(domain.IntendJob(name, domain.CompleteJob{Attempt: 1, Output: "accounts/acme/models/m", Results: files,
		Progress: &domain.JobProgress{Step: 8, Steps: 8, Epoch: 1, Tokens: 400,
			Metrics: map[string]float64{"reward/mean": 0.5, engines.RolloutsExpected: 32, engines.RolloutsDone: 24,
				engines.RolloutsFailed: 2, engines.RolloutRows: 6, engines.RolloutTokens: 999, engines.RolloutCached: 7,
				engines.RolloutPrompts: 240}}}))
	s.world.Live().Forget(name)
	p := progress()
	stats := s.ok("GET", "/v1/"+string(name), "").json(t)["outputStats"].(string)
	require.JSONEq(t, `{"reward/mean": 0.5, "rollout/expected": 32, "rollout/done": 24, "rollout/failed": 2, `+
		`"rollout/rows": 6, "rollout/tokens": 999, "rollout/cached_tokens": 7, "rollout/prompt_tokens": 240}`, stats)
	delete(p, "metrics")
	require.Equal(t, map[string]any{"percent": 100.0, "epoch": 1.0, "step": 8.0, "steps": 8.0, "totalInputRequests": 32.0,
		"totalProcessedRequests":        24.0,
		"successfullyProcessedRequests": 22.0, "failedRequests": 2.0, "outputRows": 6.0, "inputTokens": "240",
		"outputTokens": "999", "cachedInputTokenCount": "7", "trainedTokens": "400"}, p)
}

// TestClusters checks that a deployment shows the name of the installation that has created the
// deployment.
func TestClusters(t *testing.T) {
	s := newHarness(t, request.Limits{})
	const body = `{"baseModel": "accounts/default/models/anneal-base"}`
	require.Equal(t, DefaultCluster, s.ok("POST", acme+"/deployments?deploymentId=here", body).json(t)["cluster"])
	elsewhere := s.another(func(o *Options) { o.Cluster = "site-b" })
	require.Equal(t, "site-b", elsewhere.ok("POST", acme+"/deployments?deploymentId=there", body).json(t)["cluster"])
	require.Len(t, s.ok("GET", acme+"/deployments?filter=cluster+%3D+%22site-b%22", "").json(t)["deployments"], 1)
}
