package coordinator_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/workers/protocol"
)

// TestReportsHaveLimits checks that the coordinator limits the messages of a node, so that a
// malicious agent cannot exceed the limits.
func TestReportsHaveLimits(t *testing.T) {
	c := startWithInputs(t)
	node := c.registerNode("n1", "a")
	c.startJob("n1")
	report := protocol.Report{Version: protocol.Version, Kind: protocol.ReportCheckpoint, Job: jobName, Attempt: 1,
		CreateTime: c.created(), Step: 10, Sizes: map[string]int64{"w": 1}}

	many := report
	many.Sizes = map[string]int64{}
	for i := range protocol.MaxFiles + 1 {
		many.Sizes[fmt.Sprint("w", i)] = 1
	}
	early := report
	early.Step = -1
	for says, wrong := range map[string]protocol.Report{"files": many, "step": early} {
		err := c.send(node, protocol.ReportSubject("n1"), wrong, &protocol.ReportReply{})
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), says)
		require.ErrorContains(t, err, says)
	}

	var signed protocol.SignReply
	require.NoError(t, c.send(node, protocol.SignSubject("n1"),
		protocol.SignRequest{Version: protocol.Version, Job: jobName, Attempt: 1, CreateTime: c.created(),
			For: protocol.ForCheckpoint, Step: 10, Sizes: report.Sizes}, &signed))
	c.put(strings.TrimPrefix(path(t, signed.URLs["w"]), "/blobs/"), []byte("x"))
	report.Metrics = map[string]float64{strings.Repeat("x", 4000): 1}
	for i := range 1000 {
		report.Metrics[fmt.Sprint("train/", i)] = 1
	}
	var reply protocol.ReportReply
	require.NoError(t, c.send(node, protocol.ReportSubject("n1"), report, &reply))
	require.Equal(t, protocol.Accepted, reply.Outcome)
	last, _ := c.life().LastCheckpoint()
	require.Len(t, last.Metrics, protocol.MaxValues)
	for name := range last.Metrics {
		require.Less(t, len(name), 200)
	}

	heartbeat := heartbeatOf("a", 2)
	heartbeat.Node.Engines = []string{strings.Repeat("x", 10_000)}
	require.ErrorContains(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeat, &protocol.Assignments{}),
		"engines")
}

// TestNodeOfAGangIsShutDown checks that a job on several nodes does not fail when one of the nodes
// is shut down.
func TestNodeOfAGangIsShutDown(t *testing.T) {
	c := startWithInputs(t)
	_, second := c.registerNode("n1", "a"), c.registerNode("n2", "b")
	c.submit()
	takes := domain.Resources{CPUMilli: 500, MemoryMiB: 16}
	allocation := domain.Allocation{ID: domain.AllocationID(jobName, 1), For: jobName, Attempt: 1, Resources: takes}
	both := []domain.Name{nodeName("n1"), nodeName("n2")}
	c.do(domain.Intend(domain.Nodes, both[0], domain.PlaceAllocation{Allocation: allocation}),
		domain.Intend(domain.Nodes, both[1], domain.PlaceAllocation{Allocation: allocation}),
		domain.IntendJob(jobName, domain.StartJob{Attempt: 1, Nodes: both, Resources: takes}))
	leaving := heartbeatOf("b", 2)
	leaving.Leaving = true
	require.NoError(t, c.send(second, protocol.HeartbeatSubject("n2"), leaving, &protocol.Assignments{}))
	life := c.life()
	require.Equal(t, domain.JobReQueueingState, life.State)
	require.Zero(t, life.Failures)
}

// TestMetricsBeforeTheFirstCheckpoint checks that the metrics of a job can be read before its first
// checkpoint.
func TestMetricsBeforeTheFirstCheckpoint(t *testing.T) {
	c := startWithInputs(t)
	node := c.registerNode("n1", "a")
	c.startJob("n1")
	heartbeat := heartbeatOf("a", 2)
	attempt := protocol.Attempt{Job: jobName, Attempt: 1, CreateTime: c.created(), Phase: protocol.Training, Step: 3,
		Steps: 40}
	for step := range 3 {
		attempt.Rows = append(attempt.Rows, engines.Metrics{Step: step + 1, Steps: 40, Epoch: 0.1, LearningRate: 0.01,
			Tokens: 9, Values: map[string]float64{"train/loss": 2}})
	}
	heartbeat.Attempts = []protocol.Attempt{attempt}
	require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeat, &protocol.Assignments{}))
	row, _ := projections.TableOf(c.world.View(), domain.SupervisedJobs).Get(jobName)
	_, err := c.blobs.Size(t.Context(), blobs.MetricsFile(jobName, row.CreateEvent))
	require.Equal(t, domain.NotFound, domain.CodeOf(err), "a short attempt ends before the first file is due")
	c.ahead.Store(int64(10 * time.Second))
	heartbeat.Number++
	require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeat, &protocol.Assignments{}))
	c.requireAllSteps(c.metrics(), 3)
}

// TestDeletedJobLeavesNoResults checks that deleting a job deletes the results of its attempts that
// are not registered as a model, and keeps its output model.
func TestDeletedJobLeavesNoResults(t *testing.T) {
	c := startWithInputs(t)
	node := c.registerNode("n1", "a")
	c.startJob("n1")
	var reply protocol.SignReply
	require.NoError(t, c.send(node, protocol.SignSubject("n1"),
		protocol.SignRequest{Version: protocol.Version, Job: jobName, Attempt: 1, CreateTime: c.created(),
			For: protocol.ForResults, Sizes: map[string]int64{"w": 1}}, &reply))
	c.put(strings.TrimPrefix(path(t, reply.URLs["w"]), "/blobs/"), []byte("x"))
	c.do(domain.IntendJob(jobName, domain.RequeueJob{Attempt: 1, Reason: "lost"}))
	c.do(domain.IntendJob(jobName, domain.QueueJob{}))
	first := 0
	c.agent("n2", recordFirst(&first))
	c.place("n2")
	life := c.reaches(domain.JobCompletedState)
	c.do(domain.IntendJob(jobName, domain.DeleteJob{}))
	c.do(domain.IntendJob(jobName, domain.CleanJob{}))
	c.until("the job is gone", func(v *projections.View) bool {
		return projections.TableOf(v,
			domain.SupervisedJobs).Len() == 0
	})
	left := c.files("models/acme/")
	// Ignore the files of the base model.
	maps.DeleteFunc(left.Sizes, func(name string, _ int64) bool { return strings.HasPrefix(name, "base/") })
	for name := range left.Sizes {
		require.True(t, strings.HasPrefix("models/acme/"+name, life.Results.Prefix), name)
	}
	require.Len(t, left.Sizes, len(life.Results.Sizes))
}
