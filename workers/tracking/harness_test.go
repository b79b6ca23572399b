package tracking

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/blobs/reconcile/faults"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
	"anneal/internal/testutil"
	"anneal/projections"
	"anneal/projections/live"
	"anneal/workers/tracking/trackertest"
)

const canary = "canary-key-5d1f"

// A harness is a log with one job, a world that follows it, and a sender.
type harness struct {
	testing.TB
	log      eventlog.Log
	world    *projections.World
	blobs    *blobs.Store
	sender   *Sender
	sessions map[string]*session
	logged   testutil.Buffer
	now      time.Time
	job      domain.Name
	plan     atomic.Pointer[faults.Plan] // plan of injected faults; nil injects none
}

func newHarness(t testing.TB, kind string, handler http.Handler) *harness {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	service, err := ParseService(kind + "=" + server.URL)
	require.NoError(t, err)
	b := &harness{TB: t, log: eventlog.NewMemory(), world: projections.NewWorld(),
		now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	b.blobs = faults.OpenStore(t, t.TempDir(), &b.plan)
	b.sender = &Sender{Log: b.log, World: b.world, Blobs: b.blobs, Service: service,
		Now:    func() time.Time { return b.now },
		Logger: slog.New(slog.NewTextHandler(&b.logged, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Open: func(_ context.Context, _ secrets.Reader, _ domain.Name, sealed domain.Sealed) (domain.SecretValue, error) {
			return domain.SecretValue(sealed.Ciphertext), nil
		}}
	b.restart()
	go func() { _ = b.world.Run(t.Context(), b.log) }()
	return b
}

// restart drops what the control plane has in memory, as a crash does: the sessions of the sender
// and the live status.
func (b *harness) restart() {
	b.sessions = map[string]*session{}
	b.world.Live().Forget(b.job)
}

func (b *harness) do(intent domain.Intent) {
	b.Helper()
	change, err := eventlog.Do(b.Context(), b.log, b.world, eventlog.Request{Time: b.now}, intent)
	require.NoError(b, err)
	b.sync(change.Position())
}

func (b *harness) sync(position uint64) {
	require.NoError(b, b.world.WaitFor(b.Context(), position))
}

func (b *harness) life(command domain.Command[domain.JobLife]) {
	b.Helper()
	b.do(domain.IntendJob(b.job, command))
}

// trackerWith returns the configuration of an enabled tracker whose API key is key. The tests do
// not encrypt: the ciphertext of the key is the key itself.
func trackerWith(key string) *domain.TrackerConfig {
	return &domain.TrackerConfig{Enabled: true, Project: "tuning", Entity: "acme",
		APIKey: &domain.Sealed{KeyID: "k", Ciphertext: []byte(key)}}
}

// create has, for each kind of job, a function that returns the name of a job and the intent that
// creates it. Its keys are the names of the collections.
var create = map[string]func(key string) (domain.Name, domain.Intent){
	"supervisedFineTuningJobs": func(key string) (domain.Name, domain.Intent) {
		name := domain.NewName("acme", "supervisedFineTuningJobs", "job")
		return name, domain.Intend(domain.SupervisedJobs, name, domain.CreateSupervisedJob{ID: "job",
			SupervisedSpec: domain.SupervisedSpec{Dataset: "accounts/acme/datasets/d", TrackerConfig: trackerWith(key)}})
	},
	"dpoJobs": func(key string) (domain.Name, domain.Intent) {
		name := domain.NewName("acme", "dpoJobs", "job")
		return name, domain.Intend(domain.DPOJobs, name, domain.CreateDPOJob{ID: "job", DPOSpec: domain.DPOSpec{
			Dataset: "accounts/acme/datasets/d", TrackerConfig: trackerWith(key)}})
	},
	"reinforcementFineTuningJobs": func(key string) (domain.Name, domain.Intent) {
		name := domain.NewName("acme", "reinforcementFineTuningJobs", "job")
		return name, domain.Intend(domain.ReinforcementJobs, name, domain.CreateReinforcementJob{ID: "job",
			ReinforcementSpec: domain.ReinforcementSpec{Dataset: "accounts/acme/datasets/d",
				Evaluator: "accounts/acme/evaluators/e", TrackerConfig: trackerWith(key)}})
	},
	"rlorTrainerJobs": func(key string) (domain.Name, domain.Intent) {
		name := domain.NewName("acme", "rlorTrainerJobs", "job")
		return name, domain.Intend(domain.TrainerJobs, name, domain.CreateTrainerJob{ID: "job",
			TrainerSpec: domain.TrainerSpec{Dataset: "accounts/acme/datasets/d", TrackerConfig: trackerWith(key)}})
	},
}

// start creates a job and starts its first attempt.
func (b *harness) start(collection string) {
	b.startAs(create[collection](canary))
}

// startAs carries out the intent that creates the job, and starts its first attempt.
func (b *harness) startAs(job domain.Name, create domain.Intent) {
	b.job = job
	b.do(create)
	b.life(domain.StartValidation{})
	b.life(domain.QueueJob{})
	b.attempt(1)
}

func (b *harness) attempt(number int) {
	b.life(domain.StartJob{Attempt: number, Nodes: []domain.Name{"accounts/system/nodes/n"}})
}

// report adds the rows of the steps from first to last to the live status.
func (b *harness) report(attempt, first, last int) {
	row, ok := b.world.View().Job(b.job)
	require.True(b, ok)
	for step := first; step <= last; step++ {
		b.world.Live().Report(b.job, live.Progress{Made: row.CreateTime, Attempt: attempt, Step: step, Steps: 99,
			Time: b.now}, b.row(step))
	}
}

func (b *harness) row(step int) live.MetricRow {
	return live.MetricRow{Step: step, Steps: 99, Time: b.now.Add(time.Duration(step) * time.Second), Epoch: 0.5,
		LearningRate: 0.01, Tokens: int64(10 * step), Values: map[string]float64{"train/loss": 1 / float64(step)}}
}

// checkpoint records a checkpoint, with the metrics file of the steps from 1 to step.
func (b *harness) checkpoint(attempt, step int) {
	b.store(step)
	b.life(domain.RecordCheckpoint{JobCheckpoint: domain.JobCheckpoint{Attempt: attempt, Step: step},
		Progress: &domain.JobProgress{Step: step, Steps: 99}})
}

// store stores a metrics file with the rows of the steps from 1 to last.
func (b *harness) store(last int) {
	var file bytes.Buffer
	for step := 1; step <= last; step++ {
		row := b.row(step)
		line := testutil.Marshal(b, map[string]any{"step": row.Step, "epoch": row.Epoch, "time": row.Time,
			"learning_rate": row.LearningRate, "tokens": row.Tokens, "train/loss": row.Values["train/loss"]})
		file.Write(append(line, '\n'))
	}
	row, _ := b.world.View().Job(b.job)
	_, err := b.blobs.Put(b.Context(), blobs.MetricsFile(b.job, row.CreateEvent), &file)
	require.NoError(b, err)
}

// turn runs a turn of each session, and reports whether all succeeded.
func (b *harness) turn() bool {
	last, err := b.log.Last(b.Context())
	require.NoError(b, err)
	b.sync(last.Position)
	l := loop{Sender: b.sender, sessions: b.sessions}
	view := b.world.View()
	l.scan(view, b.now)
	good := true
	for _, one := range b.sessions {
		b.sender.turn(b.Context(), view, one)
		good = good && one.failures == 0
	}
	last, err = b.log.Last(b.Context())
	require.NoError(b, err)
	b.sync(last.Position)
	return good
}

// failJob runs a job that fails, and requires that its tracker has all rows and the end state. turn
// sends the rows up to a step.
func (b *harness) failJob(t *testing.T, p protocol, turn func(last int)) {
	t.Helper()
	b.start("supervisedFineTuningJobs")
	b.report(1, 1, 3)
	turn(3)
	b.report(1, 4, 8)
	turn(8)
	b.store(9)
	b.life(domain.FailJob{Attempt: 1, Status: domain.Status{Code: "INTERNAL", Message: "no"}})
	turn(9)
	require.Equal(t, upTo(9), p.steps(t))
	require.Equal(t, "failed", p.end(t))
}

func (b *harness) tracking() domain.JobTracking {
	row, ok := b.world.View().Job(b.job)
	require.True(b, ok)
	if t := row.State.Life().Tracking; t != nil {
		return *t
	}
	return domain.JobTracking{}
}

// requireNoKey checks that the tracker's API key is not in plain text in the event log, in the
// server's log or in the job's files. Events contain the key only as the ciphertext of a sealed
// value, in base64.
func (b *harness) requireNoKey() {
	for e, err := range b.log.Read(b.Context(), "events.>", 0) {
		require.NoError(b, err)
		require.NotContains(b, string(e.Data), canary)
	}
	require.NotContains(b, b.logged.String(), canary)
	for file, err := range b.blobs.List(b.Context(), "jobs/") {
		require.NoError(b, err)
		content, err := b.blobs.Get(b.Context(), file.Key)
		require.NoError(b, err)
		var text bytes.Buffer
		_, err = text.ReadFrom(content)
		require.NoError(b, err)
		require.NoError(b, content.Close())
		require.NotContains(b, text.String(), canary)
	}
}

// wandbSteps returns the steps of the rows that a tracker has, in order, and checks that each row
// is present once and has the right values.
func wandbSteps(t testing.TB, server *trackertest.WandB) (steps []int, run trackertest.WandBRun) {
	require.Empty(t, server.Violations())
	paths := server.Runs()
	require.Len(t, paths, 1)
	require.True(t, strings.HasPrefix(paths[0], "acme/tuning/"), paths[0])
	run, _ = server.Run(paths[0])
	for _, line := range run.History {
		steps = append(steps, int(line["_step"].(float64)))
		require.Contains(t, line, "train/loss")
		require.Contains(t, line, "learning_rate")
	}
	return steps, run
}

func mlflowSteps(t testing.TB, server *trackertest.MLflow) (steps []int, run trackertest.MLflowRun) {
	require.Empty(t, server.Violations())
	require.Equal(t, []string{"acme/tuning"}, server.Experiments())
	runs := server.Runs()
	require.Len(t, runs, 1)
	for _, metric := range runs[0].Metrics {
		if metric.Key == "train/loss" {
			steps = append(steps, metric.Step)
		}
	}
	return steps, runs[0]
}

func upTo(n int) (steps []int) {
	for i := range n {
		steps = append(steps, i+1)
	}
	return steps
}
