package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/eventlog"
)

// outputJobs are create requests of all kinds of jobs, with the field that names the output model.
var outputJobs = map[string]struct{ body, field string }{
	"supervisedFineTuningJobs": {`{"dataset": "accounts/acme/datasets/rows", "outputModel": %q}`, "outputModel"},
	"dpoJobs": {`{"dataset": "accounts/acme/datasets/rows", "trainingConfig": {"outputModel": %q}}`,
		"trainingConfig.outputModel"},
	"reinforcementFineTuningJobs": {`{"dataset": "accounts/acme/datasets/rows", ` +
		`"evaluator": "accounts/acme/evaluators/exact", "trainingConfig": {"outputModel": %q}}`,
		"trainingConfig.outputModel"},
	"rlorTrainerJobs": {`{"dataset": "accounts/acme/datasets/rows", "keepAlive": true, ` +
		`"trainingConfig": {"outputModel": %q}}`, "trainingConfig.outputModel"},
}

// createJob creates a job of a kind with an output model.
func (s *harness) createJob(collection, id, output string) response {
	s.Helper()
	kind, ok := outputJobs[collection]
	require.True(s, ok, "outputJobs has no %s", collection)
	idParam := strings.TrimSuffix(collection, "s") + "Id"
	return s.call(http.MethodPost, acme+"/"+collection+"?"+idParam+"="+id, "user", fmt.Sprintf(kind.body, output))
}

// TestOutputModelIsReserved checks for every kind of job that a job reserves the name of its output
// model when it is created: other jobs of every kind, train steps and new models cannot have the
// name until the job has ended.
func TestOutputModelIsReserved(t *testing.T) {
	for kind := range domain.JobKinds() {
		t.Run(kind.CollectionID(), func(t *testing.T) { reservesOutput(t, kind.CollectionID()) })
	}
}

func reservesOutput(t *testing.T, collection string) {
	s := newHarness(t, request.Limits{})
	s.makeDataset("rows")
	s.do(domain.Intend(domain.Evaluators, "accounts/acme/evaluators/exact", domain.CreateEvaluator{}))
	first := domain.NewName("acme", collection, "first")
	a := s.createJob(collection, "first", "wanted")
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	refused := func(a response, field string) {
		t.Helper()
		require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
		require.Contains(t, string(a.body), field)
		require.Contains(t, string(a.body), "accounts/acme/models/wanted is reserved")
		require.Contains(t, string(a.body), first)
	}
	for other := range domain.JobKinds() {
		refused(s.createJob(other.CollectionID(), "second", "wanted"), outputJobs[other.CollectionID()].field)
	}
	refused(s.call(http.MethodPost, acme+"/models", "user",
		`{"modelId": "wanted", "model": {"baseModel": "`+publicBase+`"}}`), "modelId")

	a = s.call(http.MethodPost, acme+"/rlorTrainerJobs?rlorTrainerJobId=steps", "user", `{"keepAlive": true}`)
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	const steps = domain.Name("accounts/acme/rlorTrainerJobs/steps")
	s.do(domain.IntendJob(steps, domain.StartValidation{}))
	s.do(domain.Intend(domain.TrainerJobs, steps, domain.AwaitStep{}))
	step := func() response {
		return s.call(http.MethodPost, "/v1/"+string(steps)+":executeTrainStep", "user",
			`{"dataset": "accounts/acme/datasets/rows", "outputModel": "wanted"}`)
	}
	refused(step(), "outputModel")

	s.do(domain.IntendJob(first, domain.CancelJob{}))
	require.Equal(t, http.StatusBadRequest, step().status, "the job is still being cancelled")
	s.do(domain.IntendJob(first, domain.ConfirmCancel{}))
	a = step()
	require.Equal(t, http.StatusOK, a.status, "a job that has ended reserves nothing: %s", a.body)
	a = s.call(http.MethodPost, "/v1/"+string(first)+":resume", "user", "{}")
	require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
	require.Equal(t, "OUTPUT_RESERVED", reasonOf(t, a))
	require.Contains(t, string(a.body), steps)
	s.do(domain.IntendJob(steps, domain.CancelJob{}))
	s.do(domain.IntendJob(steps, domain.ConfirmCancel{}))
	a = s.call(http.MethodPost, "/v1/"+string(first)+":resume", "user", "{}")
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	require.Equal(t, http.StatusBadRequest, s.createJob(collection, "third", "wanted").status)
}

// TestConcurrentOutputModels checks that of concurrent creates with the same output model one
// succeeds and the others are refused, on one server.
func TestConcurrentOutputModels(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.makeDataset("rows")
	statuses := make([]int, 8)
	var all sync.WaitGroup
	for i := range statuses {
		all.Go(func() {
			statuses[i] = s.createJob("supervisedFineTuningJobs", fmt.Sprint("j", i), "wanted").status
		})
	}
	all.Wait()
	counts := map[int]int{}
	for _, status := range statuses {
		counts[status]++
	}
	require.Equal(t, map[int]int{http.StatusOK: 1, http.StatusBadRequest: len(statuses) - 1}, counts)
}

// A stalledLog stalls the appends of one resource until it is released.
type stalledLog struct {
	*eventlog.Memory
	name             domain.Name
	stalled, release chan struct{} // stalled is closed by the first append that stalls
	once             sync.Once
}

func (l *stalledLog) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	if w.Name == l.name {
		l.once.Do(func() { close(l.stalled) })
		<-l.release
	}
	return l.Memory.Append(ctx, w)
}

// TestSlowCreatesStallOnlyTheirOutputModel checks that while the log does not acknowledge the create
// of one job, jobs with all other output models can be created, and a job with the same one waits
// and is refused.
func TestSlowCreatesStallOnlyTheirOutputModel(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.makeDataset("rows")
	log := &stalledLog{Memory: s.log, name: domain.NewName("acme", "supervisedFineTuningJobs", "slow"),
		stalled: make(chan struct{}), release: make(chan struct{})}
	server := s.another(func(o *Options) { o.Log = log })
	release := sync.OnceFunc(func() { close(log.release) })
	t.Cleanup(release) // a failed test does not wait for the stalled request for ever
	// The creates take much less than the time for which a request waits for another one (writeTime).
	slow, same, others := make(chan int, 1), make(chan int, 1), make(chan int, 20)
	create := func(status chan<- int, id, output string) {
		go func() { status <- server.createJob("supervisedFineTuningJobs", id, output).status }()
	}
	create(slow, "slow", "wanted")
	<-log.stalled
	create(same, "same", "wanted")
	deadline := time.After(patience / 2)
	for i := range cap(others) {
		create(others, fmt.Sprint("j", i), fmt.Sprint("m", i))
		select {
		case status := <-others:
			require.Equal(t, http.StatusOK, status)
		case <-deadline:
			t.Fatalf("the create of a job with another output model waits for the slow one, after %d others", i)
		}
	}
	require.Empty(t, same, "the create with the same output model waits")
	release()
	require.Equal(t, http.StatusOK, <-slow)
	require.Equal(t, http.StatusBadRequest, <-same)
}

// A reservation is a request of the job "slow" that reserves the name of its output model, "wanted".
type reservation struct {
	name    string // suffix of the type of the event that reserves the name
	job     domain.Name
	prepare func(s *harness) // makes the job ready for the request
	request func(s *harness) response
}

// reservations returns a request for each type of event that reserves the name of an output model.
func reservations() []reservation {
	const job, trainer = domain.Name("accounts/acme/supervisedFineTuningJobs/slow"),
		domain.Name("accounts/acme/rlorTrainerJobs/slow")
	create := func(s *harness) response { return s.createJob("supervisedFineTuningJobs", "slow", "wanted") }
	return []reservation{
		{".created.v1", job, func(*harness) {}, create},
		{".resumed.v1", job, func(s *harness) {
			require.Equal(s, http.StatusOK, create(s).status)
			s.do(domain.IntendJob(job, domain.CancelJob{}))
			s.do(domain.IntendJob(job, domain.ConfirmCancel{}))
		}, func(s *harness) response {
			return s.call(http.MethodPost, "/v1/"+string(job)+":resume", "user", "{}")
		}},
		{".stepGiven.v1", trainer, func(s *harness) {
			s.readyRows("samples", domain.FormatRL, `{"samples": [{"messages": [{"role": "user", "content": "2+2"}, `+
				`{"role": "assistant", "content": "4"}], "score": 1}]}`)
			a := s.call(http.MethodPost, acme+"/rlorTrainerJobs?rlorTrainerJobId=slow", "user",
				`{"keepAlive": true, "rewardWeights": ["score=1"]}`)
			require.Equal(s, http.StatusOK, a.status, "%s", a.body)
			s.do(domain.IntendJob(trainer, domain.StartValidation{}))
			s.do(domain.Intend(domain.TrainerJobs, trainer, domain.AwaitStep{}))
		}, func(s *harness) response {
			return s.call(http.MethodPost, "/v1/"+string(trainer)+":executeTrainStep", "user",
				`{"dataset": "accounts/acme/datasets/samples", "outputModel": "wanted"}`)
		}},
	}
}

// TestOrderOfLogDecidesOutputModels checks for every event that reserves the name of an output model:
// of two jobs that reserve the same name on two servers at the same time, the one whose event is
// second in the log fails before it trains, on every server and in every replay, whatever the clocks
// of the servers say and whatever each server had read when it decided.
func TestOrderOfLogDecidesOutputModels(t *testing.T) {
	const quick = domain.Name("accounts/acme/supervisedFineTuningJobs/quick")
	for _, r := range reservations() {
		for _, race := range []struct {
			name, before, after string
			slowFails           bool
		}{
			{name: "the other one is recorded first", before: r.name, slowFails: true},
			{name: "the other one is recorded second", after: r.name},
		} {
			t.Run(r.name[1:]+"/"+race.name, func(t *testing.T) {
				s := newHarness(t, request.Limits{})
				s.readyDataset("rows")
				r.prepare(s)
				other := s.another(func(o *Options) {
					o.Log = &racingLog{Memory: s.log, before: race.before, after: race.after, do: func() {
						s.do(domain.Intend(domain.SupervisedJobs, quick,
							domain.CreateSupervisedJob{ID: "quick",
								SupervisedSpec: domain.SupervisedSpec{Dataset: "accounts/acme/datasets/rows",
									TrainingConfig: domain.TrainingConfig{BaseModel: publicBase, OutputModel: "wanted"}}}))
					}}
				})
				require.NoError(t, other.world.WaitFor(t.Context(), s.events()))
				a := r.request(other)
				require.Equal(t, http.StatusOK, a.status, "%s", a.body)
				require.NoError(t, s.world.WaitFor(t.Context(), s.events()))
				require.NoError(t, other.world.WaitFor(t.Context(), s.events()))
				wins, fails := r.job, quick
				if race.slowFails {
					wins, fails = quick, r.job
				}
				replayed := s.another(func(*Options) {})
				require.NoError(t, replayed.world.WaitFor(t.Context(), s.events()))
				for _, server := range []*harness{s, other, replayed} {
					holder, _ := server.world.View().ReservedBy("accounts/acme/models/wanted", "")
					require.EqualValues(t, wins, holder)
				}
				s.runPlans()
				require.Contains(t, jobFailed(s.world.View(), fails), "accounts/acme/models/wanted is reserved by "+wins)
				require.Empty(t, jobFailed(s.world.View(), wins))
			})
		}
	}
}

// TestShapesOfLiveDeploymentsAreNotDeleted checks that a shape cannot be deleted while a live
// deployment, in whatever state, names one of its versions, and that the undelete of a deployment
// whose shape was deleted meanwhile clears its deploymentShape with a warning.
func TestShapesOfLiveDeploymentsAreNotDeleted(t *testing.T) {
	s := newHarness(t, request.Limits{})
	a := s.call(http.MethodPost, acme+"/deploymentShapes", "user",
		`{"deploymentShapeId": "small", "deploymentShape": {"baseModel": "`+publicBase+`", "maxContextLength": 64}}`)
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	a = s.call(http.MethodPost, acme+"/deployments?deploymentId=d&skipShapeValidation=true", "user",
		`{"baseModel": "`+publicBase+`", "deploymentShape": "accounts/acme/deploymentShapes/small"}`)
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	require.Equal(t, "accounts/acme/deploymentShapes/small/versions/v1", a.json(t)["deploymentShape"])
	remove := func() response {
		return s.call(http.MethodDelete, acme+"/deploymentShapes/small", "user", "")
	}
	for _, command := range []domain.Command[domain.Deployment]{nil, domain.MarkDeploymentReady{Generation: 1}} {
		if command != nil {
			s.deployment("accounts/acme/deployments/d", command)
		}
		a = remove()
		require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
		require.Equal(t, "IN_USE", reasonOf(t, a))
		require.Contains(t, string(a.body), "accounts/acme/deployments/d")
	}
	s.deployment("accounts/acme/deployments/d", domain.DeleteDeployment{IgnoreChecks: true})
	s.deployment("accounts/acme/deployments/d", domain.FinishDeletion{Keep: domain.RecentUse})
	a = remove()
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	a = s.call(http.MethodPost, acme+"/deployments/d:undelete", "user", "{}")
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	require.NotContains(t, a.json(t), "deploymentShape")
	require.Equal(t, 64.0, a.json(t)["maxContextLength"], "the settings stay")
	require.Contains(t, strings.Join(a.header.Values(request.WarningHeader), ";"),
		"accounts/acme/deploymentShapes/small/versions/v1 was deleted")
	s.runPlans()
	require.Empty(t, deploymentFailed(s.world.View(), "accounts/acme/deployments/d"))
}
