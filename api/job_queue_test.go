package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/rest"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/schedulers"
)

const jobsPath = "/supervisedFineTuningJobs"

// trainer returns the intent that registers a node with cores for training.
func trainer(id string, cores int64) domain.Intent {
	return domain.Intend(domain.Nodes, domain.NewName(domain.System, domain.Nodes.Collection, id),
		domain.RegisterNode{NodeSpec: domain.NodeSpec{Pool: domain.PoolTraining,
			Engines: []string{"train"}, Capacity: domain.Resources{CPUMilli: 1000 * cores, MemoryMiB: 1024 * cores}}})
}

// queueIn creates a dataset and a job in an account, and makes the job PENDING.
func (s *harness) queueIn(account, id string) domain.Name {
	s.Helper()
	alias := map[string]string{"acme": "user", "other": "other"}[account]
	path := "/v1/accounts/" + account
	s.call("POST", path+"/datasets", alias, `{"datasetId": "rows"}`)
	if row, ok := s.world.View().Datasets.Get(domain.NewName(account, "datasets", "rows")); ok &&
		row.State.State != domain.DatasetReady {
		s.upload(path+"/datasets/rows:upload", alias, "file", "rows.jsonl", strings.NewReader(rowsOfThree))
	}
	a := s.call("POST", path+jobsPath+"?supervisedFineTuningJobId="+id, alias,
		`{"dataset":"accounts/`+account+`/datasets/rows","baseModel":"accounts/default/models/anneal-base"}`)
	require.Equal(s, http.StatusOK, a.status, "%s", a.body)
	name := domain.NewName(account, domain.SupervisedJobs.Collection, id)
	s.do(domain.IntendJob(name, domain.StartValidation{}), domain.IntendJob(name, domain.QueueJob{}))
	return name
}

// queueOf returns the field queue of a job, as a client of the account sees it; nil without one.
func (s *harness) queueOf(name domain.Name) *rest.JobQueue {
	s.Helper()
	alias := map[string]string{"acme": "user", "other": "other"}[name.Account()]
	a := s.call("GET", "/v1/"+string(name), alias, "")
	require.Equal(s, http.StatusOK, a.status, "%s", a.body)
	var job rest.SupervisedJob
	require.NoError(s, json.Unmarshal(a.body, &job))
	return job.Queue
}

// TestPositionsAreTheOrderOfStarts checks over HTTP, on the server whose scheduler runs and on another
// one, that waiting jobs of two accounts have distinct positions, that the job with position 1 starts
// when capacity becomes free, and that an account sees the number of the other jobs and nothing else. The
// account whose job is next frees the capacity, because the order depends on who exceeds its share.
func TestPositionsAreTheOrderOfStarts(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.do(trainer("machine-7", 4))
	running := map[string]domain.Name{}
	for _, account := range []string{"acme", "other"} {
		running[account] = s.queueIn(account, "running")
		s.queueIn(account, "runs-too")
	}
	s.runPlans()
	require.Nil(t, s.queueOf(running["acme"]), "a running job does not wait")
	var waiting []domain.Name
	for i := range 3 {
		waiting = append(waiting, s.queueIn("acme", fmt.Sprintf("mine-%d", i)),
			s.queueIn("other", fmt.Sprintf("hidden-%d", i)))
	}
	created := s.queueIn("acme", "new")
	require.Equal(t, "the scheduler", s.queueOf(created).WaitingFor)
	require.Equal(t, 7, s.queueOf(created).Length)
	waiting = append(waiting, created)
	s.runPlans()
	second := s.another(func(o *Options) { o.Queue = &schedulers.Places{} })
	for len(waiting) > 0 {
		first := domain.Name("")
		positions := map[int]bool{}
		for _, name := range waiting {
			q := s.queueOf(name)
			require.NotNil(t, q, name)
			require.Equal(t, len(waiting), q.Length)
			require.True(t, strings.HasPrefix(q.WaitingFor, "capacity: 1000m CPU"), q.WaitingFor)
			if q.EstimatedStartTime == nil && q.WaitingFor != "the scheduler" {
				require.Contains(t, q.NoEstimateReason, "an estimate needs 4 earlier jobs")
			}
			require.False(t, positions[q.Position], "two jobs have position %d", q.Position)
			if positions[q.Position] = true; q.Position == 1 {
				first = name
			}
			other := second.queueOf(name)
			q.EstimatedStartTime, other.EstimatedStartTime = nil, nil // may begin with the time of the request
			require.Equal(t, q, other, "every control plane shows the same")
		}
		list := string(s.call("GET", acme+jobsPath, "user", "").body)
		require.Equal(t, len(waiting), strings.Count(list, `"position":`)+countIn(waiting, "other"))
		for _, secret := range []string{"machine-7", "hidden", "accounts/other"} {
			require.NotContains(t, list, secret)
		}
		s.do(domain.IntendJob(running[first.Account()], domain.CompleteJob{Attempt: 1}))
		for _, step := range (schedulers.Allocations{}).Plan(s.world.View(), s.clock.tick()).Steps {
			s.do(step.Intents()...)
		}
		s.runPlans()
		row, _ := s.world.View().Job(first)
		require.True(t, row.State.Life().Active(), "%s has position 1 and starts first", first)
		running[first.Account()] = first
		waiting = slices.DeleteFunc(waiting, func(name domain.Name) bool { return name == first })
		last := s.last()
		require.NoError(t, second.world.WaitFor(t.Context(), last.Position))
	}
}

func countIn(names []domain.Name, account string) (n int) {
	for _, name := range names {
		if name.Account() == account {
			n++
		}
	}
	return n
}

// TestWhatAJobWaitsFor checks the field queue of jobs that wait for something other than capacity, and
// the estimated start time of a job that waits for capacity.
func TestWhatAJobWaitsFor(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.do(trainer("n1", 1))
	name := s.queueIn("acme", "j")
	since := s.queueOf(name).Since
	row, _ := s.world.View().Job(name)
	require.Equal(t, row.State.Life().QueueTime.UTC(), since.UTC())
	s.do(domain.IntendJob(name, domain.HoldJob{For: "a node that can train"}))
	require.Equal(t, &rest.JobQueue{WaitingFor: "a node that can train", Since: since}, s.queueOf(name))

	estimate := domain.WaitEstimate{Low: 600, Median: 1200, High: 3600}
	s.do(domain.IntendJob(name, domain.HoldJob{For: domain.HeldForCapacity, Wait: &domain.JobWait{Estimate: &estimate}}))
	row, _ = s.world.View().Job(name)
	begin := row.State.Life().Wait.Time
	q := s.queueOf(name)
	require.Equal(t, 1, q.Position)
	require.Equal(t, begin.Add(10*time.Minute), q.EstimatedStartTime.Earliest.UTC())
	require.Equal(t, begin.Add(20*time.Minute), q.EstimatedStartTime.Median.UTC())
	require.Equal(t, begin.Add(time.Hour), q.EstimatedStartTime.Latest.UTC())
	s.clock.add(time.Hour)
	require.Nil(t, s.queueOf(name).EstimatedStartTime, "the interval has passed")
	require.Contains(t, s.queueOf(name).NoEstimateReason, "needs 4 earlier jobs that have waited for longer")
	s.do(domain.IntendJob(name, domain.CancelJob{}))
	require.Nil(t, s.queueOf(name), "a job that is being cancelled does not wait")
}

// TestListOfWaitingJobsIsFast lists 10,000 jobs, first while they are idle and then while they wait. The
// positions are computed once for all of them, so the list takes not much longer.
func TestListOfWaitingJobsIsFast(t *testing.T) {
	const n = 10_000
	s := startHarness(t, epoch, request.Limits{}, func(o *Options) { o.Now = func() time.Time { return epoch } })
	s.createAccounts()
	s.do(trainer("n1", 1))
	act := func(commands ...domain.Command[domain.JobLife]) {
		for i := range n {
			name := domain.NewName("acme", domain.SupervisedJobs.Collection, fmt.Sprintf("j%05d", i))
			if s.world.Lookup(name).Version == 0 {
				spec := domain.SupervisedSpec{Dataset: "accounts/acme/datasets/rows",
					TrainingConfig: domain.TrainingConfig{BaseModel: "accounts/default/models/anneal-base"}}
				s.record(domain.Intend(domain.SupervisedJobs, name, domain.CreateSupervisedJob{ID: name.ID(),
					SupervisedSpec: spec}))
			}
			for _, command := range commands {
				s.record(domain.IntendJob(name, command))
			}
		}
		last := s.last()
		require.NoError(t, s.world.WaitFor(t.Context(), last.Position))
	}
	list := func() (waiting int, took time.Duration) {
		token := ""
		began := time.Now()
		for {
			r := s.request("GET", acme+jobsPath+"?pageSize=200&pageToken="+token, "user", nil)
			response, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			var page struct {
				Jobs  []rest.SupervisedJob `json:"supervisedFineTuningJobs"`
				Token string               `json:"nextPageToken"`
			}
			require.NoError(t, json.NewDecoder(response.Body).Decode(&page))
			require.NoError(t, response.Body.Close())
			for _, job := range page.Jobs {
				if job.Queue != nil && job.Queue.Position > 0 {
					waiting++
				}
			}
			if token = page.Token; token == "" {
				return waiting, time.Since(began)
			}
		}
	}
	shortest := func() (waiting int, took time.Duration) {
		took = time.Hour
		for range 3 {
			w, d := list()
			waiting, took = w, min(took, d)
		}
		return waiting, took
	}
	act(domain.StartValidation{})
	waiting, idle := shortest()
	require.Zero(t, waiting)
	act(domain.QueueJob{})
	waiting, queued := shortest()
	require.Equal(t, n, waiting)
	t.Logf("list of %d jobs: %v, and while they wait %v", n, idle, queued)
	require.Less(t, queued, 5*idle, "one computation for each job would take minutes")
}

// record records an intent, without waiting for the world except for the row of the intent.
func (s *harness) record(intent domain.Intent) {
	s.Helper()
	change, err := eventlog.Do(s.Context(), s.log, s.world, eventlog.Request{Time: epoch, Actor: "test"}, intent)
	require.NoError(s, err)
	require.NoError(s, s.world.WaitFor(s.Context(), change.Position()))
}
