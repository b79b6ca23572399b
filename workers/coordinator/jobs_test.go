package coordinator_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
	"anneal/projections"
	"anneal/workers/protocol"
)

// metrics returns the rows of the job's metrics file.
func (c *cluster) metrics() []map[string]any {
	row, ok := projections.TableOf(c.world.View(), domain.SupervisedJobs).Get(jobName)
	require.True(c, ok)
	r, err := c.blobs.Get(c.Context(), blobs.MetricsFile(jobName, row.CreateEvent))
	require.NoError(c, err)
	defer r.Close()
	var rows []map[string]any
	for lines := bufio.NewScanner(r); lines.Scan(); {
		var row map[string]any
		require.NoError(c, json.Unmarshal(lines.Bytes(), &row))
		rows = append(rows, row)
	}
	return rows
}

// requireAllSteps requires that rows has one row for each step from 1 to last.
func (c *cluster) requireAllSteps(rows []map[string]any, last int) {
	c.Helper()
	require.Len(c, rows, last)
	for i, row := range rows {
		require.EqualValues(c, i+1, row["step"])
		for _, figure := range []string{"epoch", "time", "learning_rate", "tokens", "train/loss"} {
			require.Contains(c, row, figure)
		}
	}
}

// sums returns the SHA-256 sums of stored files.
func (c *cluster) sums(files domain.Files) map[string]string {
	sums := map[string]string{}
	for name := range files.Sizes {
		r, err := c.blobs.Get(c.Context(), files.Prefix+name)
		require.NoError(c, err)
		hash := sha256.New()
		_, err = io.Copy(hash, r)
		require.NoError(c, errors.Join(err, r.Close()))
		sums[name] = hex.EncodeToString(hash.Sum(nil))
	}
	return sums
}

func TestLifeOfAJob(t *testing.T) {
	c := startWithInputs(t)
	first := 0
	c.agent("n1", recordFirst(&first))
	c.startJob("n1")
	life := c.reaches(domain.JobCompletedState)

	require.Equal(t, outputName, life.Output)
	require.Empty(t, life.Nodes)
	require.NotEmpty(t, life.Results.Sizes)
	model, ok := c.world.View().Models.Get(outputName)
	require.True(t, ok)
	require.Equal(t, domain.ModelReady, model.State.State)
	require.Equal(t, domain.PEFTAddon, model.State.Kind)
	require.Equal(t, string(modelName), model.State.BaseModel)
	require.Equal(t, domain.DefaultLoraRank, model.State.LoraRank)
	require.Equal(t, "llama", model.State.ModelType)
	require.Equal(t, jobName, model.State.SourceJob)
	require.Equal(t, "ada", model.State.CreatedBy)
	stored, err := c.blobs.Files(t.Context(), model.State.Files.Prefix)
	require.NoError(t, err)
	stored.Sums = c.sums(stored)
	require.Equal(t, model.State.Files, stored, "the model has the stored files")
	c.requireAllSteps(c.metrics(), 40)
	progress, ok := c.world.View().Live.Progress(jobName)
	require.True(t, ok)
	require.Equal(t, 100, progress.Percent())
	step := 0
	for row := range c.world.View().Live.Metrics(jobName, 0) {
		step++
		require.Equal(t, step, row.Step)
	}
	require.Equal(t, 40, step, "the live status has all rows as well")
}

func TestFullParameterResult(t *testing.T) {
	c := startWithInputs(t)
	first := 0
	c.agent("n1", recordFirst(&first))
	rank := 0
	c.submit(func(s *domain.SupervisedSpec) { s.LoraRank = &rank })
	c.place("n1")
	c.reaches(domain.JobCompletedState)
	model, ok := c.world.View().Models.Get(outputName)
	require.True(t, ok)
	require.Equal(t, domain.BaseModel, model.State.Kind)
	require.Equal(t, string(modelName), model.State.BaseModel, "its base model")
	require.Equal(t, "simulated", model.State.ModelType, "from its config.json")
	require.EqualValues(t, 1000, model.State.ParameterCount, "its weights have no tensors: unchanged")
}

// TestKilledAgent checks that a job whose agent is killed, and therefore sends no report, continues
// on another node from its last checkpoint, without a gap in its metrics.
func TestKilledAgent(t *testing.T) {
	c := startWithInputs(t)
	kill := c.child("n1", t.TempDir(), 25)
	c.startJob("n1")
	c.saved(20)
	c.requireAllSteps(c.metrics(), 20)
	kill()
	c.do(domain.Intend(domain.Nodes, nodeName("n1"), domain.LoseNode{Reason: "silent"}))
	c.do(domain.IntendJob(jobName, domain.RequeueJob{Attempt: 1, Reason: "node n1 was lost"}))
	c.do(domain.IntendJob(jobName, domain.QueueJob{}))

	first := 0
	c.agent("n2", recordFirst(&first))
	c.place("n2")
	life := c.reaches(domain.JobCompletedState)
	require.Equal(t, 21, first, "from the last checkpoint on")
	require.Equal(t, 2, life.Attempt)
	c.requireAllSteps(c.metrics(), 40)
}

// TestRestartedAgent checks that an agent that was killed and restarted never starts an attempt
// again. The records on the agent's disk prevent a second start. If the disk is lost too, the
// coordinator's node session prevents it. An attempt that is lost together with the coordinator
// does not count as a failure of the job.
func TestRestartedAgent(t *testing.T) {
	for name, keep := range map[string]bool{"same disk, new coordinator": true, "new disk, same coordinator": false} {
		t.Run(name, func(t *testing.T) {
			c := startWithInputs(t)
			dir := t.TempDir()
			kill := c.child("n1", dir, 15)
			c.startJob("n1")
			c.saved(10)
			kill()
			failures := 1
			if keep {
				failures = 0
				c.stop()
				c.open()
			} else {
				require.NoError(t, os.RemoveAll(dir))
			}
			c.child("n1", dir, 35)
			life := c.reaches(domain.JobReQueueingState)
			require.Equal(t, failures, life.Failures)
			require.Contains(t, life.Status.Message, "restarted")

			c.do(domain.IntendJob(jobName, domain.QueueJob{}))
			c.place("n1")
			c.saved(30)
			require.Equal(t, 2, c.life().Checkpoints[len(c.life().Checkpoints)-1].Attempt)
			c.requireAllSteps(c.metrics(), 30)
		})
	}
}

// TestCrashLoop checks that a job fails after domain.CrashLoop if its training crashes the control
// plane in every attempt. Here the agent runs in the process of the control plane, so that each
// crash ends both the agent and the coordinator. The only trace of an attempt is the agent's record
// that it was started.
func TestCrashLoop(t *testing.T) {
	c := startWithInputs(t)
	node := c.connectNode("n1")
	c.submit()
	boots := []string{"a", "b", "c", "d"}
	require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeatOf(boots[0], 1), &protocol.Assignments{}))
	for attempt := 1; attempt <= domain.MaxFailures; attempt++ {
		c.place("n1")
		var assignments protocol.Assignments
		require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeatOf(boots[attempt-1], 2),
			&assignments))
		require.Len(t, assignments.Train, 1)
		c.stop()
		c.open()
		lost := heartbeatOf(boots[attempt], 1)
		lost.Attempts = []protocol.Attempt{{Job: jobName, Attempt: attempt, CreateTime: assignments.Train[0].CreateTime,
			Phase: protocol.Lost}}
		require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), lost, &protocol.Assignments{}))
		life := c.reaches(domain.JobReQueueingState)
		require.Zero(t, life.Failures)
		require.Equal(t, attempt, life.Orphans)
		require.NotNil(t, life.OrphanTime)
		c.do(domain.IntendJob(jobName, domain.QueueJob{}))
	}
}

// TestCoordinatorRestart checks that training continues while the coordinator is down, and that the
// agent reports the end of an attempt until the end is recorded.
func TestCoordinatorRestart(t *testing.T) {
	c := startWithInputs(t)
	half, proceed := make(chan struct{}), make(chan struct{})
	ended := make(chan struct{})
	c.agent("n1", simulated.New(simulated.Options{Fault: func(a simulated.Action) error {
		switch {
		case a.Name == simulated.TrainStep && a.Step == 15:
			close(half)
			<-proceed
		case a.Name == simulated.TrainStep && a.Step == 40:
			close(ended)
		}
		return nil
	}}))
	c.startJob("n1")
	c.wait("half of the training", half)
	c.saved(10)
	c.stop()
	close(proceed)
	c.wait("the end of the training", ended)
	require.Equal(t, domain.JobRunningState, c.life().State)
	c.open()
	life := c.reaches(domain.JobCompletedState)
	require.Equal(t, 1, life.Attempt)
	c.requireAllSteps(c.metrics(), 40)
}

// TestControlPlaneRestart checks that attempts and replicas continue undisturbed when the whole
// control plane is killed and restarted.
func TestControlPlaneRestart(t *testing.T) {
	c := startWithInputs(t)
	half, proceed := make(chan struct{}), make(chan struct{})
	c.agent("n1", simulated.New(simulated.Options{Fault: func(a simulated.Action) error {
		if a.Name == simulated.TrainStep && a.Step == 15 {
			close(half)
			<-proceed
		}
		return nil
	}}))
	r := c.serving(c.deploy("n1").ID)
	c.startJob("n1")
	c.wait("half of the training", half)
	c.restart()
	close(proceed)
	life := c.reaches(domain.JobCompletedState)
	require.Equal(t, 1, life.Attempt)
	require.Zero(t, life.Failures)
	c.requireAllSteps(c.metrics(), 40)
	_, err := c.replicas().Complete(t.Context(), deploymentName, r,
		engines.CompletionRequest{Prompt: "go", MaxTokens: 5}, func(engines.Chunk) error { return nil })
	require.NoError(t, err)
}

// TestStoppedJobsKeepTheirLastCheckpoint checks that the attempt of a job that is cancelled or paused
// saves a checkpoint of the steps that it has done before it stops, and that the job resumes from this
// checkpoint.
func TestStoppedJobsKeepTheirLastCheckpoint(t *testing.T) {
	for state, stop := range map[string]domain.Command[domain.JobLife]{
		domain.JobCancelledState: domain.CancelJob{},
		domain.JobPausedState:    domain.PauseJob{Reason: "account suspended: CREDIT_DEPLETED"},
	} {
		t.Run(state, func(t *testing.T) {
			c := startWithInputs(t)
			c.agent("n1", hangAt(17))
			c.startJob("n1")
			c.saved(10)
			c.do(domain.IntendJob(jobName, stop))
			life := c.reaches(state)
			last, ok := life.LastCheckpoint()
			require.True(t, ok)
			require.Equal(t, 16, last.Step, "the steps that were done at the request")
			stored, err := c.blobs.Files(t.Context(), last.Files.Prefix)
			require.NoError(t, err)
			stored.Sums = c.sums(stored)
			require.Equal(t, last.Files, stored)
			c.requireAllSteps(c.metrics(), 16)

			c.do(domain.IntendJob(jobName, domain.ResumeJob{}))
			first := 0
			c.agent("n2", recordFirst(&first))
			c.place("n2")
			c.reaches(domain.JobCompletedState)
			require.Equal(t, 17, first)
		})
	}
}

// A requestTrainer passes the requests that it gets to its channel, and trains until it is stopped.
type requestTrainer struct{ requests chan engines.TrainRequest }

func (r requestTrainer) Train(ctx context.Context, request engines.TrainRequest,
	_ engines.TrainWatcher) (engines.TrainResult, error) {
	r.requests <- request
	<-ctx.Done()
	return engines.TrainResult{}, ctx.Err()
}

// TestAttemptsHaveTheirDevices checks that an attempt trains on the devices that the log has allocated
// to it, and releases them when it stops.
func TestAttemptsHaveTheirDevices(t *testing.T) {
	c := startWithInputs(t)
	trainer := requestTrainer{make(chan engines.TrainRequest, 1)}
	c.agent("n1", engines.Engine{Trainer: trainer})
	c.submit()
	for range 2 {
		c.placeWith("n1", domain.Resources{CPUMilli: 500, MemoryMiB: 16,
			Accelerators: map[string]int{"VENDOR_A_L4_24GB": 2}})
		select {
		case request := <-trainer.requests:
			require.Equal(t, []engines.Device{{Type: "VENDOR_A_L4_24GB"}, {Type: "VENDOR_A_L4_24GB", Index: 1}},
				request.Devices)
		case <-time.After(waitTimeout):
			require.FailNow(t, "the training does not begin")
		}
		c.do(domain.IntendJob(jobName, domain.CancelJob{}))
		c.reaches(domain.JobCancelledState)
		c.do(domain.Intend(domain.Nodes, nodeName("n1"),
			domain.ReleaseAllocation{ID: domain.AllocationID(jobName, c.life().Attempt)}),
			domain.IntendJob(jobName, domain.ResumeJob{}))
	}
}

// TestNodeShutdown checks that an agent that is shut down stores its work, and that no failure is
// counted.
func TestNodeShutdown(t *testing.T) {
	c := startWithInputs(t)
	stop := c.agent("n1", hangAt(17))
	c.startJob("n1")
	c.saved(10)
	stop()
	life := c.reaches(domain.JobReQueueingState)
	require.Zero(t, life.Failures)
	last, _ := life.LastCheckpoint()
	require.Equal(t, 16, last.Step)
	node, ok := c.world.View().Nodes.Get(nodeName("n1"))
	require.True(t, ok)
	require.Equal(t, domain.NodeLostState, node.State.State)
	require.Empty(t, node.State.Allocations)
}

// TestPausedJobIsStopped checks that a job is paused when its attempt has stopped, also without a
// checkpoint.
func TestPausedJobIsStopped(t *testing.T) {
	c := startWithInputs(t)
	trainer := blockingTrainer{make(chan struct{}), make(chan struct{})}
	c.agent("n1", engines.Engine{Trainer: trainer})
	c.startJob("n1")
	c.wait("the training begins", trainer.begun)
	c.do(domain.IntendJob(jobName, domain.PauseJob{Reason: "account suspended"}))
	c.wait("the training ends", trainer.stopped)
	require.Empty(t, c.reaches(domain.JobPausedState).Checkpoints)
}

func TestFailures(t *testing.T) {
	for name, one := range map[string]struct {
		err     error
		state   string
		message string
	}{
		"the user's": {domain.Errorf(domain.InvalidArgument, "rows.jsonl line 3: is not a JSON object"),
			domain.JobFailedState, "line 3"},
		"the engine's": {os.ErrDeadlineExceeded, domain.JobReQueueingState, "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			c := startWithInputs(t)
			c.agent("n1", simulated.New(simulated.Options{Fault: func(a simulated.Action) error {
				if a.Name == simulated.TrainStep && a.Step == 12 {
					return one.err
				}
				return nil
			}}))
			c.startJob("n1")
			life := c.reaches(one.state)
			require.Contains(t, life.Status.Message, one.message)
			last, ok := life.LastCheckpoint()
			require.True(t, ok)
			require.Equal(t, 10, last.Step, "earlier checkpoints are not lost")
		})
	}
}

// TestOutputModelTaken checks that a job whose output model exists fails before it trains, or after
// the training if the model was created during the training.
func TestOutputModelTaken(t *testing.T) {
	take := domain.Intend(domain.Models, outputName, domain.RegisterModel{ModelSpec: domain.ModelSpec{
		Kind: domain.BaseModel},
		Files: domain.Files{Prefix: "models/acme/tuned/mine/", Sizes: map[string]int64{"config.json": 1}}})
	for name, late := range map[string]bool{"before": false, "meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			c := startWithInputs(t)
			half, proceed := make(chan struct{}), make(chan struct{})
			trained := 0
			c.agent("n1", simulated.New(simulated.Options{Fault: func(a simulated.Action) error {
				trained++
				if a.Name == simulated.TrainStep && a.Step == 15 {
					close(half)
					<-proceed
				}
				return nil
			}}))
			c.submit()
			if !late {
				c.do(take)
			}
			c.place("n1")
			if late {
				c.wait("half of the training", half)
				c.do(take)
				close(proceed)
			}
			life := c.reaches(domain.JobFailedState)
			require.Equal(t, domain.AlreadyExists.String(), life.Status.Code)
			require.Contains(t, life.Status.Message, "outputModel")
			require.Equal(t, late, trained > 0)
			model, _ := c.world.View().Models.Get(outputName)
			require.Equal(t, "models/acme/tuned/mine/", model.State.Files.Prefix, "the other model is untouched")
		})
	}
}

func TestInputsGone(t *testing.T) {
	c := startWithInputs(t)
	c.agent("n1", hangAt(1))
	c.submit()
	c.do(domain.Intend(domain.Datasets, datasetName, domain.RequestDeletion(domain.Datasets)))
	c.do(domain.Intend(domain.Datasets, datasetName, domain.DeleteDataset{}))
	c.place("n1")
	life := c.reaches(domain.JobFailedState)
	require.Contains(t, life.Status.Message, "dataset accounts/acme/datasets/rows does not exist")
}

func TestDeletedJobLeavesNothing(t *testing.T) {
	c := startWithInputs(t)
	c.agent("n1", hangAt(17))
	c.startJob("n1")
	c.saved(10)
	c.do(domain.IntendJob(jobName, domain.DeleteJob{}))
	c.do(domain.IntendJob(jobName, domain.CleanJob{}))
	c.until("the job is gone", func(v *projections.View) bool {
		return projections.TableOf(v, domain.SupervisedJobs).Len() == 0
	})
	// The last part of the attempt's log may be uploaded after the deletion: the next reconciliation deletes it.
	require.Eventually(t, func() bool { return len(c.files("jobs/").Sizes) == 0 }, time.Minute, 10*time.Millisecond)
}
