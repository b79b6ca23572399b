package tracking

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/workers/tracking/trackertest"
)

// A protocol is a test server, and functions with which a test reads what it has recorded.
type protocol struct {
	kind    string
	handler interface {
		http.Handler
		SetKey(key string)
		FailWith(fault func(*http.Request) trackertest.Fault)
		Requests() int
	}
	// steps returns the steps of train/loss; violations of the protocol fail the test.
	steps func(t testing.TB) []int
	// end returns the end state of the run: finished, failed, killed or running.
	end func(t testing.TB) string
	// parameters returns the parameters of the run as text.
	parameters func(t testing.TB) map[string]string
}

func protocols() map[string]func() protocol {
	return map[string]func() protocol{"wandb": func() protocol {
		server := trackertest.NewWandB(canary)
		run := func(t testing.TB) trackertest.WandBRun { _, run := wandbSteps(t, server); return run }
		return protocol{"wandb", server, func(t testing.TB) []int { steps, _ := wandbSteps(t, server); return steps },
			func(t testing.TB) string {
				if !run(t).Complete {
					return "running"
				}
				return map[int]string{0: "finished", 1: "failed", 255: "killed"}[run(t).ExitCode]
			}, func(t testing.TB) map[string]string {
				all := map[string]string{}
				for name, value := range run(t).Config {
					all[name] = fmt.Sprint(value)
				}
				return all
			}}
	}, "mlflow": func() protocol {
		server := trackertest.NewMLflow(canary)
		run := func(t testing.TB) trackertest.MLflowRun { _, run := mlflowSteps(t, server); return run }
		return protocol{"mlflow", server, func(t testing.TB) []int { steps, _ := mlflowSteps(t, server); return steps },
			func(t testing.TB) string { return strings.ToLower(run(t).Status) },
			func(t testing.TB) map[string]string { return run(t).Params }}
	}}
}

// eachProtocol runs a test with each protocol.
func eachProtocol(t *testing.T, test func(t *testing.T, p protocol, b *harness)) {
	for name, newProtocol := range protocols() {
		t.Run(name, func(t *testing.T) {
			p := newProtocol()
			test(t, p, newHarness(t, p.kind, p.handler))
		})
	}
}

// TestJobsAreSent checks that a tracker receives the parameters, each metric of each step, and the
// end state of a job of each kind, that the job shows the address of its run, and that the API key
// is in no event, no file and no log.
func TestJobsAreSent(t *testing.T) {
	for collection := range create {
		t.Run(collection, func(t *testing.T) {
			eachProtocol(t, func(t *testing.T, p protocol, b *harness) {
				b.start(collection)
				b.report(1, 1, 3)
				require.True(t, b.turn(), b.logged.String())
				require.Equal(t, upTo(2), p.steps(t), "an evaluation may still add to the newest row")
				require.Equal(t, "running", p.end(t))
				require.Regexp(t, `^http://127\.0\.0\.1:\d+/.*/runs/`, b.tracking().URL)
				require.NotEmpty(t, b.tracking().RunID)
				require.Empty(t, b.tracking().Problem)
				b.report(1, 4, 6)
				require.True(t, b.turn())
				b.store(7)
				b.life(domain.WriteResults{Attempt: 1})
				b.life(domain.CompleteJob{Attempt: 1, Output: "accounts/acme/models/job"})
				require.True(t, b.turn(), b.logged.String())
				require.Equal(t, upTo(7), p.steps(t))
				require.Equal(t, "finished", p.end(t))
				parameters := p.parameters(t)
				require.Equal(t, "accounts/acme/datasets/d", parameters["dataset"])
				require.Equal(t, "8", parameters["loraRank"])
				require.Equal(t, "accounts/acme/"+collection+"/job", parameters["job"])
				for name, value := range parameters {
					require.NotContains(t, strings.ToLower(name+value), "key", "no secret is a parameter")
				}
				before := p.handler.Requests()
				require.True(t, b.turn())
				b.restart()
				require.True(t, b.turn())
				require.Equal(t, before, p.handler.Requests(), "nothing is left to send")
				b.requireNoKey()
			})
		})
	}
}

// TestFaultsAndCrashes checks that the tracker has each row once, and the end state, after a fault
// at any request and a crash of the sender after the fault, whether or not the request took effect.
func TestFaultsAndCrashes(t *testing.T) {
	type fault struct {
		kind  trackertest.Fault
		crash bool
	}
	run := func(t *testing.T, newProtocol func() protocol, at int, with fault) int {
		p := newProtocol()
		b := newHarness(t, p.kind, p.handler)
		n := 0
		p.handler.FailWith(func(*http.Request) trackertest.Fault {
			if n++; n-1 == at {
				return with.kind
			}
			return trackertest.None
		})
		turn := func(last int) {
			for range 3 {
				if b.turn() {
					return
				}
				if with.crash {
					b.restart()
					if row, _ := b.world.View().Job(b.job); row.State.Life().Active() {
						b.report(1, 1, last) // the agent repeats the rows that no metrics file has
					}
				}
			}
			t.Fatal("the turns fail: ", b.logged.String())
		}
		b.failJob(t, p, turn)
		return n
	}
	for name, newProtocol := range protocols() {
		t.Run(name, func(t *testing.T) {
			requests := run(t, newProtocol, -1, fault{})
			require.Greater(t, requests, 4)
			for at := range requests {
				for _, with := range []fault{{trackertest.Refuse, false}, {trackertest.Refuse, true},
					{trackertest.Lose, false}, {trackertest.Lose, true}} {
					t.Run(fmt.Sprintf("%d %+v", at, with), func(t *testing.T) { run(t, newProtocol, at, with) })
				}
			}
		})
	}
}

// TestRefusals checks that a job shows why the tracker refuses its run, without the key, and that
// neither the state nor the status of the job changes.
func TestRefusals(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p protocol, b *harness) {
		p.handler.SetKey("another")
		b.start("dpoJobs")
		b.report(1, 1, 3)
		require.False(t, b.turn())
		problem := b.tracking().Problem
		require.Contains(t, problem, "rejects trackerConfig.apiKey (status 401")
		require.NotContains(t, problem, canary)
		row, _ := b.world.View().Job(b.job)
		require.Equal(t, domain.JobRunningState, row.State.Life().State)
		require.Equal(t, domain.StatusOf(nil), row.State.Life().Status)
		version := row.Version
		require.False(t, b.turn())
		row, _ = b.world.View().Job(b.job)
		require.Equal(t, version, row.Version, "the same problem is recorded once")

		p.handler.SetKey(canary)
		require.True(t, b.turn())
		require.Empty(t, b.tracking().Problem)
		require.NotEmpty(t, b.tracking().URL)

		p.handler.FailWith(func(*http.Request) trackertest.Fault { return trackertest.Refuse })
		b.report(1, 4, 5)
		require.False(t, b.turn())
		require.Empty(t, b.tracking().Problem, "a short outage is not shown")
		b.now = b.now.Add(problemAfter)
		require.False(t, b.turn())
		require.Contains(t, b.tracking().Problem, "status 503")
		p.handler.FailWith(nil)
		require.True(t, b.turn())
		require.Empty(t, b.tracking().Problem)
		require.Equal(t, upTo(4), p.steps(t))
		b.requireNoKey()
	})
}

// TestTrackerWithoutEntity checks that a job whose tracker names no entity is sent to the default
// entity of the API key, and that MLflow's experiment then has the name of the project.
func TestTrackerWithoutEntity(t *testing.T) {
	start := func(b *harness) {
		tracker := trackerWith(canary)
		tracker.Entity = ""
		name := domain.NewName("acme", "dpoJobs", "job")
		b.startAs(name, domain.Intend(domain.DPOJobs, name, domain.CreateDPOJob{ID: "job", DPOSpec: domain.DPOSpec{
			Dataset: "accounts/acme/datasets/d", TrackerConfig: tracker}}))
		b.report(1, 1, 3)
		require.True(b, b.turn(), b.logged.String())
		require.Empty(b, b.tracking().Problem)
	}
	t.Run("wandb", func(t *testing.T) {
		server := trackertest.NewWandB(canary)
		b := newHarness(t, "wandb", server)
		start(b)
		require.Empty(t, server.Violations())
		require.Len(t, server.Runs(), 1)
		require.Regexp(t, "^"+trackertest.DefaultEntity+"/tuning/", server.Runs()[0])
		require.Contains(t, b.tracking().URL, "/"+trackertest.DefaultEntity+"/tuning/runs/")
	})
	t.Run("mlflow", func(t *testing.T) {
		server := trackertest.NewMLflow(canary)
		start(newHarness(t, "mlflow", server))
		require.Empty(t, server.Violations())
		require.Equal(t, []string{"tuning"}, server.Experiments())
	})
}

// TestResumedJobs checks that steps that an attempt repeats are sent once, and that a job that is
// resumed after its end continues its run.
func TestResumedJobs(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p protocol, b *harness) {
		b.start("supervisedFineTuningJobs")
		b.report(1, 1, 6)
		require.True(t, b.turn())
		b.life(domain.RequeueJob{Attempt: 1, Reason: "lost"})
		b.life(domain.QueueJob{})
		b.attempt(2)
		b.report(2, 3, 8)
		require.True(t, b.turn())
		require.Equal(t, upTo(7), p.steps(t))
		b.life(domain.CancelJob{})
		b.life(domain.ConfirmCancel{Attempt: 2})
		require.True(t, b.turn())
		require.Equal(t, upTo(8), p.steps(t))
		require.Equal(t, "killed", p.end(t))
		b.life(domain.ResumeJob{})
		b.restart()
		require.True(t, b.turn())
		require.Equal(t, "running", p.end(t))
		b.attempt(3)
		b.report(3, 8, 10)
		b.store(10)
		b.life(domain.WriteResults{Attempt: 3})
		b.life(domain.CompleteJob{Attempt: 3, Output: "accounts/acme/models/job"})
		require.True(t, b.turn(), b.logged.String())
		require.Equal(t, upTo(10), p.steps(t))
		require.Equal(t, "finished", p.end(t))
	})
}

// TestDeletedJobs checks that the run of a job that is deleted ends.
func TestDeletedJobs(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p protocol, b *harness) {
		b.start("supervisedFineTuningJobs")
		b.report(1, 1, 2)
		require.True(t, b.turn())
		b.life(domain.DeleteJob{})
		b.life(domain.CleanJob{})
		b.life(domain.PurgeJob{})
		require.True(t, b.turn())
		require.Equal(t, "killed", p.end(t))
	})
}

// TestTrainSteps checks that the steps in the tracker increase from one train step of a trainer job
// to the next, although each train step counts its steps from 1, and also when the sender notices a
// train step late.
func TestTrainSteps(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late %v", late), func(t *testing.T) {
			eachProtocol(t, func(t *testing.T, p protocol, b *harness) {
				b.job = domain.NewName("acme", "rlorTrainerJobs", "job")
				b.do(domain.Intend(domain.TrainerJobs, b.job, domain.CreateTrainerJob{ID: "job", TrainerSpec: domain.TrainerSpec{
					KeepAlive: true, Dataset: "accounts/acme/datasets/d", TrackerConfig: trackerWith(canary)}}))
				b.life(domain.StartValidation{})
				b.life(domain.QueueJob{})
				b.attempt(1)
				b.report(1, 1, 4)
				require.True(t, b.turn())
				b.store(4)
				step := func(cmd domain.Command[domain.TrainerJob]) {
					b.do(domain.Intend(domain.TrainerJobs, b.job, cmd))
				}
				step(domain.FinishTrainStep{Attempt: 1, Output: "accounts/acme/models/m1"})
				if !late {
					require.True(t, b.turn())
					require.Equal(t, upTo(4), p.steps(t))
					b.restart()
				}
				step(domain.ExecuteTrainStep{Dataset: "accounts/acme/datasets/d", OutputModel: "m2"})
				require.True(t, b.turn())
				b.attempt(2)
				b.report(2, 1, 3)
				require.True(t, b.turn())
				require.Equal(t, upTo(6), p.steps(t))
				b.store(3)
				step(domain.FinishTrainStep{Attempt: 2, Output: "accounts/acme/models/m2"})
				require.True(t, b.turn())
				require.Equal(t, upTo(7), p.steps(t))
				require.Equal(t, "running", p.end(t))
			})
		})
	}
}

// TestManyRows checks that all rows of a job are sent, in batches that the tracker accepts, if the
// job has more rows than the live status keeps.
func TestManyRows(t *testing.T) {
	const steps = 9000
	eachProtocol(t, func(t *testing.T, p protocol, b *harness) {
		b.start("supervisedFineTuningJobs")
		b.report(1, 1, steps)
		require.True(t, b.turn())
		require.Empty(t, p.steps(t), "the live status has dropped rows")
		b.store(steps)
		b.life(domain.RecordCheckpoint{JobCheckpoint: domain.JobCheckpoint{Attempt: 1, Step: steps}})
		require.True(t, b.turn())
		require.Equal(t, upTo(steps-1), p.steps(t))
	})
}

// TestJobsWithoutATracker checks that nothing is sent about a job whose tracker is not enabled, a
// job that has not begun to train, and a job that ended long ago.
func TestJobsWithoutATracker(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p protocol, b *harness) {
		off := trackerWith(canary)
		off.Enabled = false
		b.job = domain.NewName("acme", "supervisedFineTuningJobs", "off")
		b.do(domain.Intend(domain.SupervisedJobs, b.job, domain.CreateSupervisedJob{ID: "off",
			SupervisedSpec: domain.SupervisedSpec{Dataset: "accounts/acme/datasets/d", TrackerConfig: off}}))
		b.life(domain.StartValidation{})
		b.life(domain.QueueJob{})
		b.attempt(1)
		require.True(t, b.turn())
		require.Empty(t, b.sessions)
		b.start("supervisedFineTuningJobs")
		b.life(domain.FailJob{Attempt: 1, Status: domain.Status{Code: "INTERNAL"}})
		b.now = b.now.Add(giveUpAfter + time.Second)
		require.True(t, b.turn())
		require.Empty(t, b.sessions)
		require.Zero(t, p.handler.Requests())
	})
}

// TestRunFollowsTheLog checks that Run finds a new job in the world and sends it, and that Run
// stops when its context is done.
func TestRunFollowsTheLog(t *testing.T) {
	p := protocols()["wandb"]()
	b := newHarness(t, p.kind, p.handler)
	b.start("supervisedFineTuningJobs")
	b.report(1, 1, 3)
	b.store(3)
	b.life(domain.WriteResults{Attempt: 1})
	b.life(domain.CompleteJob{Attempt: 1, Output: "accounts/acme/models/job"})
	done := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(done)
		_ = b.sender.Run(ctx)
	}()
	for len(b.tracking().URL) == 0 {
		select {
		case <-b.world.Changed(b.world.Position()):
		case <-t.Context().Done():
			t.Fatal("the job is not sent")
		}
	}
	require.Eventually(t, func() bool { return p.end(t) == "finished" }, time.Minute, time.Millisecond)
	require.Equal(t, upTo(3), p.steps(t))
	stop()
	<-done
}

func TestParseService(t *testing.T) {
	for _, address := range []string{DefaultAddress, "wandb=http://10.0.0.1:8080/",
		"mlflow=https://mlflow.example.com/x"} {
		_, err := ParseService(address)
		require.NoError(t, err, address)
	}
	for _, address := range []string{"", "wandb", "https://api.wandb.ai", "other=https://h", "wandb=ftp://h",
		"wandb=https://",
		"wandb=https://user:secret@h", "mlflow=https://h?x=1", "mlflow=https://h#x"} {
		_, err := ParseService(address)
		require.Error(t, err, address)
		require.NotContains(t, err.Error(), "secret")
	}
}

// TestOnlyTheOperatorNamesPrivateTrackers checks that the default tracker is reached at public
// addresses only.
func TestOnlyTheOperatorNamesPrivateTrackers(t *testing.T) {
	p := protocols()["wandb"]()
	b := newHarness(t, p.kind, p.handler)
	named, err := ParseService(DefaultAddress)
	require.NoError(t, err)
	guarded, private := named.tracker.(wandb), b.sender.Service.tracker.(wandb)
	private.http = guarded.http // as if the host name resolved to a private address
	b.sender.Service.tracker = private
	b.start("supervisedFineTuningJobs")
	require.False(t, b.turn())
	require.Contains(t, b.tracking().Problem, "private address")
	require.Zero(t, p.handler.Requests())
}

func TestShownTexts(t *testing.T) {
	require.Equal(t, "wrong [redacted] [redacted]", shown("wrong k+y\n"+basic("k+y"), "k+y"))
	require.Equal(t, "a [redacted]", shown("a k%2By", "k+y"))
	require.Equal(t, "ada [redacted] [redacted] [redacted]", shown("ada p+ss p%2Bss ada:p+ss", "ada:p+ss"),
		"the password of MLflow")
	require.Equal(t, "ada", shown("ada", "ada:"))
	require.LessOrEqual(t, len(shown(strings.Repeat("ä", 1000), "k")), maxMessage+3)
}

func TestBatches(t *testing.T) {
	wide := map[string]float64{}
	for i := range 67 {
		wide[fmt.Sprint(i)] = 1
	}
	rows := slices.Repeat([]row{{Values: wide}}, 30)
	require.Equal(t, 14, batchOf(rows))
	require.Equal(t, 1, batchOf(rows[:1]))
	for i := range 2000 {
		wide[fmt.Sprint(i)] = 1
	}
	require.Equal(t, 1, batchOf(rows), "at least one")
}
