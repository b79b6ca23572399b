package coordinator_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
	"anneal/projections"
	"anneal/workers/protocol"
)

// metrics are the rows of the job's metrics file.
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

// whole demands each step once, from the first to the last.
func (c *cluster) whole(rows []map[string]any, last int) {
	c.Helper()
	require.Len(c, rows, last)
	for i, row := range rows {
		require.EqualValues(c, i+1, row["step"])
		for _, figure := range []string{"epoch", "time", "learning_rate", "tokens", "train/loss"} {
			require.Contains(c, row, figure)
		}
	}
}

// sums are the SHA-256 sums of stored files.
func (c *cluster) sums(files domain.Files) map[string]string {
	sums := map[string]string{}
	for name := range files.Sizes {
		r, err := c.blobs.Get(c.Context(), files.Folder+name)
		require.NoError(c, err)
		hash := sha256.New()
		_, err = io.Copy(hash, r)
		require.NoError(c, errors.Join(err, r.Close()))
		sums[name] = hex.EncodeToString(hash.Sum(nil))
	}
	return sums
}

func TestLifeOfAJob(t *testing.T) {
	c := start(t)
	c.createInputs()
	first := 0
	c.agent("n1", recordFirst(&first))
	c.submit()
	c.place("n1")
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
	stored, err := c.blobs.Files(t.Context(), model.State.Files.Folder)
	require.NoError(t, err)
	stored.Sums = c.sums(stored)
	require.Equal(t, model.State.Files, stored, "the model is what was stored")
	c.whole(c.metrics(), 40)
	progress, ok := c.world.View().Live.Progress(jobName)
	require.True(t, ok)
	require.Equal(t, 100, progress.Percent())
	step := 0
	for row := range c.world.View().Live.Metrics(jobName, 0) {
		step++
		require.Equal(t, step, row.Step)
	}
	require.Equal(t, 40, step, "all rows can be seen live as well")
}

func TestFullParameterResult(t *testing.T) {
	c := start(t)
	c.createInputs()
	first := 0
	c.agent("n1", recordFirst(&first))
	rank := 0
	c.submit(func(s *domain.SupervisedSpec) { s.LoraRank = &rank })
	c.place("n1")
	c.reaches(domain.JobCompletedState)
	model, ok := c.world.View().Models.Get(outputName)
	require.True(t, ok)
	require.Equal(t, domain.BaseModel, model.State.Kind)
	require.Equal(t, string(modelName), model.State.BaseModel, "where it came from")
	require.Equal(t, "simulated", model.State.ModelType, "as its own config says")
	require.EqualValues(t, 1000, model.State.ParameterCount, "its weights have no tensors: as before")
}

// A killed agent says nothing. The job goes on elsewhere from its last
// checkpoint, and its curve has no hole.
func TestKilledAgent(t *testing.T) {
	c := start(t)
	c.createInputs()
	kill := c.child("n1", t.TempDir(), 25)
	c.submit()
	c.place("n1")
	c.saved(20)
	c.whole(c.metrics(), 20)
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
	c.whole(c.metrics(), 40)
}

// A killed agent never starts the same attempt again: its own records prevent it, or the coordinator's
// session when its disk is lost as well. A loss together with the coordinator does not count against
// the job.
func TestRestartedAgent(t *testing.T) {
	for name, keep := range map[string]bool{"same disk, new coordinator": true, "new disk, same coordinator": false} {
		t.Run(name, func(t *testing.T) {
			c := start(t)
			c.createInputs()
			dir := t.TempDir()
			kill := c.child("n1", dir, 15)
			c.submit()
			c.place("n1")
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
			life := c.reaches(domain.JobRequeueState)
			require.Equal(t, failures, life.Failures)
			require.Contains(t, life.Status.Message, "restarted")

			c.do(domain.IntendJob(jobName, domain.QueueJob{}))
			c.place("n1")
			c.saved(30)
			require.Equal(t, 2, c.life().Checkpoints[len(c.life().Checkpoints)-1].Attempt)
			c.whole(c.metrics(), 30)
		})
	}
}

// A training that crashes its control plane every time fails in the end: the agent in its process is
// lost with the coordinator, and knows only that the attempt was started.
func TestCrashLoop(t *testing.T) {
	c := start(t)
	c.createInputs()
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
		life := c.reaches(domain.JobRequeueState)
		require.Zero(t, life.Failures)
		require.Equal(t, attempt, life.Orphans)
		require.NotNil(t, life.OrphanTime)
		c.do(domain.IntendJob(jobName, domain.QueueJob{}))
	}
}

// Training continues while the coordinator is down, and the end of an attempt is reported until it is
// recorded.
func TestDeskRestart(t *testing.T) {
	c := start(t)
	c.createInputs()
	half, goOn := make(chan struct{}), make(chan struct{})
	ended := make(chan struct{})
	c.agent("n1", simulated.New(simulated.Options{Fault: func(a simulated.Action) error {
		switch {
		case a.Name == simulated.TrainStep && a.Step == 15:
			close(half)
			<-goOn
		case a.Name == simulated.TrainStep && a.Step == 40:
			close(ended)
		}
		return nil
	}}))
	c.submit()
	c.place("n1")
	c.wait("half of the training", half)
	c.saved(10)
	c.stop()
	close(goOn)
	c.wait("the end of the training", ended)
	require.Equal(t, domain.JobRunningState, c.life().State)
	c.open()
	life := c.reaches(domain.JobCompletedState)
	require.Equal(t, 1, life.Attempt)
	c.whole(c.metrics(), 40)
}

// The whole control plane is killed and comes back: attempts and replicas go
// on as if nothing had been.
func TestControlPlaneRestart(t *testing.T) {
	c := start(t)
	c.createInputs()
	half, goOn := make(chan struct{}), make(chan struct{})
	c.agent("n1", simulated.New(simulated.Options{Fault: func(a simulated.Action) error {
		if a.Name == simulated.TrainStep && a.Step == 15 {
			close(half)
			<-goOn
		}
		return nil
	}}))
	r := c.serving(c.deploy("n1").ID)
	c.submit()
	c.place("n1")
	c.wait("half of the training", half)
	c.restart()
	close(goOn)
	life := c.reaches(domain.JobCompletedState)
	require.Equal(t, 1, life.Attempt)
	require.Zero(t, life.Failures)
	c.whole(c.metrics(), 40)
	_, err := c.replicas().Complete(t.Context(), deploymentName, r,
		engines.CompletionRequest{Prompt: "go", MaxTokens: 5}, func(engines.Chunk) error { return nil })
	require.NoError(t, err)
}

func TestCancelKeepsTheLastCheckpoint(t *testing.T) {
	c := start(t)
	c.createInputs()
	c.agent("n1", hangAt(17))
	c.submit()
	c.place("n1")
	c.saved(10)
	c.do(domain.IntendJob(jobName, domain.CancelJob{}))
	life := c.reaches(domain.JobCancelledState)
	last, ok := life.LastCheckpoint()
	require.True(t, ok)
	require.Equal(t, 16, last.Step, "what was done when the word came")
	stored, err := c.blobs.Files(t.Context(), last.Files.Folder)
	require.NoError(t, err)
	stored.Sums = c.sums(stored)
	require.Equal(t, last.Files, stored)
	c.whole(c.metrics(), 16)

	c.do(domain.IntendJob(jobName, domain.ResumeJob{}))
	first := 0
	c.agent("n2", recordFirst(&first))
	c.place("n2")
	c.reaches(domain.JobCompletedState)
	require.Equal(t, 17, first)
}

// An agent that is shut down saves its work, and no failure is counted.
func TestGoodbye(t *testing.T) {
	c := start(t)
	c.createInputs()
	stop := c.agent("n1", hangAt(17))
	c.submit()
	c.place("n1")
	c.saved(10)
	stop()
	life := c.reaches(domain.JobRequeueState)
	require.Zero(t, life.Failures)
	last, _ := life.LastCheckpoint()
	require.Equal(t, 16, last.Step)
	node, ok := c.world.View().Nodes.Get(nodeName("n1"))
	require.True(t, ok)
	require.Equal(t, domain.NodeGone, node.State.State)
	require.Empty(t, node.State.Allocations)
}

// What the world does not want any more is stopped, and leaves no trace.
func TestPausedJobIsStopped(t *testing.T) {
	c := start(t)
	c.createInputs()
	trainer := blockingTrainer{make(chan struct{}), make(chan struct{})}
	c.agent("n1", engines.Engine{Trainer: trainer})
	c.submit()
	c.place("n1")
	c.wait("the training begins", trainer.begun)
	c.do(domain.IntendJob(jobName, domain.PauseJob{Reason: "account suspended"}))
	c.wait("the training ends", trainer.stopped)
	require.Equal(t, domain.JobPausedState, c.life().State)
	require.Empty(t, c.life().Checkpoints)
}

func TestFailures(t *testing.T) {
	for name, one := range map[string]struct {
		err     error
		state   string
		message string
	}{
		"the user's": {domain.Errorf(domain.InvalidArgument, "rows.jsonl line 3: is not a JSON object"),
			domain.JobFailedState, "line 3"},
		"the engine's": {os.ErrDeadlineExceeded, domain.JobRequeueState, "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t)
			c.createInputs()
			c.agent("n1", simulated.New(simulated.Options{Fault: func(a simulated.Action) error {
				if a.Name == simulated.TrainStep && a.Step == 12 {
					return one.err
				}
				return nil
			}}))
			c.submit()
			c.place("n1")
			life := c.reaches(one.state)
			require.Contains(t, life.Status.Message, one.message)
			last, ok := life.LastCheckpoint()
			require.True(t, ok)
			require.Equal(t, 10, last.Step, "what was saved before is not lost")
		})
	}
}

// A job whose output model exists fails before it trains, or after if the name was taken meanwhile.
func TestOutputModelTaken(t *testing.T) {
	take := domain.Intend(domain.Models, outputName, domain.RegisterModel{ModelSpec: domain.ModelSpec{
		Kind: domain.BaseModel},
		Files: domain.Files{Folder: "models/acme/tuned/mine/", Sizes: map[string]int64{"config.json": 1}}})
	for name, late := range map[string]bool{"before": false, "meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			c := start(t)
			c.createInputs()
			half, goOn := make(chan struct{}), make(chan struct{})
			trained := 0
			c.agent("n1", simulated.New(simulated.Options{Fault: func(a simulated.Action) error {
				trained++
				if a.Name == simulated.TrainStep && a.Step == 15 {
					close(half)
					<-goOn
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
				close(goOn)
			}
			life := c.reaches(domain.JobFailedState)
			require.Equal(t, domain.AlreadyExists.String(), life.Status.Code)
			require.Contains(t, life.Status.Message, "outputModel")
			require.Equal(t, late, trained > 0)
			model, _ := c.world.View().Models.Get(outputName)
			require.Equal(t, "models/acme/tuned/mine/", model.State.Files.Folder, "the other model is untouched")
		})
	}
}

func TestInputsGone(t *testing.T) {
	c := start(t)
	c.createInputs()
	c.agent("n1", hangAt(1))
	c.submit()
	c.do(domain.Intend(domain.Datasets, datasetName, domain.RequestDeletion(domain.Datasets)))
	c.do(domain.Intend(domain.Datasets, datasetName, domain.DeleteDataset{}))
	c.place("n1")
	life := c.reaches(domain.JobFailedState)
	require.Contains(t, life.Status.Message, "dataset accounts/acme/datasets/rows does not exist")
}

func TestDeletedJobLeavesNothing(t *testing.T) {
	c := start(t)
	c.createInputs()
	c.agent("n1", hangAt(17))
	c.submit()
	c.place("n1")
	c.saved(10)
	c.do(domain.IntendJob(jobName, domain.DeleteJob{}))
	c.do(domain.IntendJob(jobName, domain.CleanJob{}))
	c.until("the job is gone", func(v *projections.View) bool {
		return projections.TableOf(v,
			domain.SupervisedJobs).Len() == 0
	})
	require.Empty(t, c.files("jobs/").Sizes)
}
