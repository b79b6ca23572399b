package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/internal/testutil"
)

const (
	rolloutJob   = domain.Name("accounts/acme/reinforcementFineTuningJobs/r")
	rolloutsPath = "/v1/" + string(rolloutJob) + "/rollouts"
)

// rollout returns a rollout with a valid score.
func rollout(step, row, candidate int, score float64) engines.Rollout {
	return engines.Rollout{Step: step, Epoch: float64(step) / 2, Time: epoch, Row: row, Candidate: candidate,
		Input: json.RawMessage(`{"messages":[{"role":"user","content":"2 + 2?"}],"ground_truth":"4"}`), Response: "4",
		Score: score, Valid: true, Reason: "equal", Metrics: map[string]float64{"length": 1}}
}

// storeRollouts stores the rollouts file of an attempt, as its agent does.
func (s *harness) storeRollouts(job domain.Name, attempt int, rollouts ...engines.Rollout) {
	s.Helper()
	var lines bytes.Buffer
	for _, r := range rollouts {
		line := testutil.Marshal(s, r)
		lines.Write(append(line, '\n'))
	}
	key := blobs.RolloutsPrefix(job, s.world.Lookup(job).CreateEvent, attempt) + engines.RolloutsFile
	s.putFile(key, lines.String())
}

// rolloutHarness returns a server with a reinforcement job in an attempt.
func rolloutHarness(t *testing.T, attempt int) *harness {
	s := newHarness(t, request.Limits{})
	s.makeDataset("rows")
	s.startRollouts(attempt)
	return s
}

func (s *harness) startRollouts(attempts int) {
	s.Helper()
	s.do(domain.Intend(domain.ReinforcementJobs, rolloutJob,
		domain.CreateReinforcementJob{ID: "r",
			ReinforcementSpec: domain.ReinforcementSpec{Dataset: "accounts/acme/datasets/rows",
				Evaluator: "accounts/acme/evaluators/e"}}))
	s.do(domain.IntendJob(rolloutJob, domain.StartValidation{}))
	s.do(domain.IntendJob(rolloutJob, domain.QueueJob{}))
	for attempt := 1; attempt <= attempts; attempt++ {
		s.do(domain.IntendJob(rolloutJob, domain.StartJob{Attempt: attempt,
			Nodes: []domain.Name{"accounts/system/nodes/n1"}, Evaluator: 1}))
		if attempt < attempts {
			s.do(domain.IntendJob(rolloutJob, domain.RequeueJob{Attempt: attempt, Reason: "lost", Preempted: true}))
			s.do(domain.IntendJob(rolloutJob, domain.QueueJob{}))
		}
	}
}

// rolloutIDs returns the IDs of a list of rollouts, and its last page.
func (s *harness) rolloutIDs(query url.Values) (ids []string, last map[string]any) {
	s.Helper()
	for {
		last = s.ok("GET", rolloutsPath+"?"+query.Encode(), "").json(s)
		for _, each := range last["rollouts"].([]any) {
			ids = append(ids, filepath.Base(each.(map[string]any)["name"].(string)))
		}
		token, more := last["nextPageToken"].(string)
		if !more {
			return ids, last
		}
		query.Set("pageToken", token)
	}
}

func TestRollouts(t *testing.T) {
	s := rolloutHarness(t, 1)
	ids, page := s.rolloutIDs(url.Values{})
	require.Empty(t, ids, "there are no rollouts yet")
	require.Equal(t, 0.0, page["totalSize"])
	held, invalid := rollout(1, 2, 1, 0.5), rollout(2, 10, 1, 0)
	held.Evaluation, invalid.Valid, invalid.Reason = true, false, "KeyError: 'x'"
	s.storeRollouts(rolloutJob, 1, rollout(1, 3, 1, 0.25), rollout(1, 3, 2, 1), held, rollout(2, 9, 1, 0.75), invalid,
		rollout(10, 1, 1, 0.1))
	for query, want := range map[string][]string{
		"":                                {"1-3-1", "1-3-2", "eval-1-2-1", "2-9-1", "2-10-1", "10-1-1"},
		"step = 1":                        {"1-3-1", "1-3-2", "eval-1-2-1"},
		"score >= 0.5":                    {"1-3-2", "eval-1-2-1", "2-9-1"},
		"success = true AND score <= 0.1": {"10-1-1"},
		"success = false":                 {"2-10-1"},
		"evaluation = true":               {"eval-1-2-1"},
		"epoch >= 1 AND row < 10":         {"2-9-1", "10-1-1"},
		"reason:KeyError":                 {"2-10-1"},
		`name = "` + string(rolloutJob) + `/rollouts/2-9-1"`: {"2-9-1"},
	} {
		ids, page := s.rolloutIDs(url.Values{"filter": {query}, "pageSize": {"2"}})
		require.Equal(t, want, ids, query)
		require.Equal(t, float64(len(want)), page["totalSize"], query)
	}
	ids, page = s.rolloutIDs(url.Values{"orderBy": {"score desc"}, "pageSize": {"1"}, "filter": {"score > 0.3"}})
	require.Equal(t, []string{"1-3-2", "2-9-1", "eval-1-2-1"}, ids)
	require.Equal(t, map[string]any{"name": string(rolloutJob) + "/rollouts/eval-1-2-1",
		"createTime": page["rollouts"].([]any)[0].(map[string]any)["createTime"], "step": 1.0, "epoch": 0.5,
		"evaluation": true, "row": 2.0, "candidate": 1.0, "response": "4", "success": true, "score": 0.5, "reason": "equal",
		"truncated": false, "perMetricEvals": map[string]any{"length": 1.0}, "input": map[string]any{"ground_truth": "4",
			"messages": []any{map[string]any{"role": "user", "content": "2 + 2?"}}}}, page["rollouts"].([]any)[0])
	a := s.call("GET", rolloutsPath+"?filter=prompt+%3D+1&orderBy=input", "user", "")
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), `"field":"filter"`)
	require.Contains(t, string(a.body), `"field":"orderBy"`)
}

// TestRolloutsAreReadByTheirOwner checks that only the job's account reads its rollouts, and that no
// other kind of job has rollouts.
func TestRolloutsAreReadByTheirOwner(t *testing.T) {
	s := rolloutHarness(t, 1)
	s.storeRollouts(rolloutJob, 1, rollout(1, 1, 1, 1))
	require.Equal(t, 200, s.call("GET", rolloutsPath, "user", "").status)
	a := s.call("GET", rolloutsPath, "other", "")
	require.Equal(t, 403, a.status, "%s", a.body)
	require.NotContains(t, string(a.body), "2 + 2")
	require.Equal(t, 404, s.call("GET", "/v1/accounts/acme/reinforcementFineTuningJobs/none/rollouts", "user", "").status)
	require.Equal(t, 404, s.call("GET", "/v1/accounts/acme/rlorTrainerJobs/r/rollouts", "user", "").status)
}

// TestRolloutsOfAttempts checks that the rollouts of the newest attempt that has stored some are
// listed, and never those of two attempts together.
func TestRolloutsOfAttempts(t *testing.T) {
	s := rolloutHarness(t, 3)
	s.storeRollouts(rolloutJob, 1, rollout(1, 1, 1, 1), rollout(2, 1, 1, 1))
	ids, _ := s.rolloutIDs(url.Values{})
	require.Equal(t, []string{"1-1-1", "2-1-1"}, ids)
	s.storeRollouts(rolloutJob, 3, rollout(1, 1, 1, 1))
	ids, _ = s.rolloutIDs(url.Values{})
	require.Equal(t, []string{"1-1-1"}, ids)
	s.storeRollouts(rolloutJob, 4, rollout(9, 1, 1, 1))
	ids, _ = s.rolloutIDs(url.Values{})
	require.Equal(t, []string{"1-1-1"}, ids, "no attempt has the number 4")
}

// TestRolloutsOutliveFailedAttempts checks that the rollouts of an attempt are listed until a later one
// stores its own, however many attempts fail before they store any.
func TestRolloutsOutliveFailedAttempts(t *testing.T) {
	s := rolloutHarness(t, 12)
	s.storeRollouts(rolloutJob, 2, rollout(1, 1, 1, 1))
	ids, _ := s.rolloutIDs(url.Values{})
	require.Equal(t, []string{"1-1-1"}, ids)
	s.storeRollouts(rolloutJob, 10, rollout(2, 1, 1, 1))
	ids, _ = s.rolloutIDs(url.Values{})
	require.Equal(t, []string{"2-1-1"}, ids)
}

// TestRolloutsOfADeletedJob checks that a job that is created under the ID of a deleted job has no
// rollouts of the deleted job.
func TestRolloutsOfADeletedJob(t *testing.T) {
	s := rolloutHarness(t, 1)
	s.storeRollouts(rolloutJob, 1, rollout(1, 1, 1, 1))
	for _, command := range []domain.Command[domain.JobLife]{domain.DeleteJob{}, domain.CleanJob{}, domain.PurgeJob{}} {
		s.do(domain.IntendJob(rolloutJob, command))
	}
	require.Equal(t, 404, s.call("GET", rolloutsPath, "user", "").status)
	s.startRollouts(1)
	ids, _ := s.rolloutIDs(url.Values{})
	require.Empty(t, ids)
}

// TestDamagedRollouts checks that lines that are not rollouts are skipped, because an agent may store
// any content, and that a damaged file is an error.
func TestDamagedRollouts(t *testing.T) {
	s := rolloutHarness(t, 1)
	line := testutil.Marshal(t, rollout(1, 1, 1, 1))
	key := blobs.RolloutsPrefix(rolloutJob, s.world.Lookup(rolloutJob).CreateEvent, 1) + engines.RolloutsFile
	s.putFile(key, fmt.Sprintf("[1]\n%s\n{\"row\": \"x\"}\n", line))
	ids, _ := s.rolloutIDs(url.Values{})
	require.Equal(t, []string{"1-1-1"}, ids)
	s.putFile(key, strings.Repeat("x", 2*engines.MaxStepRolloutsBytes))
	a := s.call("GET", rolloutsPath, "user", "")
	require.Equal(t, 500, a.status)
	require.Contains(t, string(a.body), "rollouts of "+string(rolloutJob)+" are damaged")
}
