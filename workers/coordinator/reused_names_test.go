package coordinator_test

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/workers/protocol"
)

// TestReplicaOfAReusedName checks that a deployment that was deleted and created again does not use
// the replica of the earlier deployment: the earlier replica, which has the same number and node as
// the new one, is stopped and serves no requests of the new deployment.
func TestReplicaOfAReusedName(t *testing.T) {
	c, node, running := deployed(t)
	id := running.Replica
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.DeleteDeployment{IgnoreChecks: true, Hard: true}))
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.RemoveReplica{ID: id}))
	c.do(domain.Intend(domain.Nodes, nodeName("n1"), domain.ReleaseAllocation{ID: domain.ReplicaAllocationID(
		deploymentName, id)}))
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.FinishDeletion{}))
	require.Equal(t, id, c.deploy("n1").ID)

	heartbeat := heartbeatOf("a", 3)
	heartbeat.Replicas = []protocol.Replica{running}
	var assignments protocol.Assignments
	require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeat, &assignments))
	require.Empty(t, assignments.Keep)
	require.Len(t, assignments.Serve, 1)
	row, _ := c.world.View().Deployments.Get(deploymentName)
	require.Equal(t, domain.ReplicaDownloading, row.State.Replicas[id].State)
	_, reported := c.world.View().Live.Replica(deploymentName, id)
	require.False(t, reported)

	running.CreateTime = assignments.Serve[0].CreateTime
	heartbeat = heartbeatOf("a", 4)
	heartbeat.Replicas = []protocol.Replica{running}
	require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeat, &assignments))
	require.Equal(t, domain.ReplicaReady, c.serving(id).State)
}

// deployed returns a cluster, the connection of a node, and the ready replica that the node
// reports.
func deployed(t *testing.T) (*cluster, *nats.Conn, protocol.Replica) {
	t.Helper()
	c := startWithInputs(t)
	node := c.registerNode("n1", "a")
	replica := c.deploy("n1")
	var assignments protocol.Assignments
	require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeatOf("a", 2), &assignments))
	require.Len(t, assignments.Serve, 1)
	return c, node, protocol.Replica{Deployment: deploymentName, Replica: replica.ID,
		CreateTime: assignments.Serve[0].CreateTime, State: domain.ReplicaReady}
}

// TestAttemptOfAReusedName checks that reports of an attempt of a deleted job do not change the new
// job with the same name, and that their files are stored separately.
func TestAttemptOfAReusedName(t *testing.T) {
	c := startWithInputs(t)
	node := c.registerNode("n1", "a")
	begin := func(number uint64) protocol.TrainAssignment {
		c.startJob("n1")
		var assignments protocol.Assignments
		require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeatOf("a", number), &assignments))
		require.Len(t, assignments.Train, 1)
		return assignments.Train[0]
	}
	sign := func(made time.Time) (reply protocol.SignReply) {
		require.NoError(t, c.send(node, protocol.SignSubject("n1"),
			protocol.SignRequest{Version: protocol.Version, Job: jobName, Attempt: 1, CreateTime: made,
				For: protocol.ForCheckpoint, Step: 10, Sizes: map[string]int64{"w": 1}}, &reply))
		return reply
	}
	old := begin(2)
	before := sign(old.CreateTime)
	c.do(domain.IntendJob(jobName, domain.DeleteJob{}))
	c.do(domain.Intend(domain.Nodes, nodeName("n1"), domain.ReleaseAllocation{ID: old.ID()}))
	c.do(domain.IntendJob(jobName, domain.CleanJob{}))
	c.until("the job is gone", func(v *projections.View) bool {
		return projections.TableOf(v,
			domain.SupervisedJobs).Len() == 0
	})
	now := begin(3)
	require.Equal(t, old.ID(), now.ID())

	require.Equal(t, protocol.Stale, sign(old.CreateTime).Outcome)
	require.NotEqual(t, path(t, before.URLs["w"]), path(t, sign(now.CreateTime).URLs["w"]))
	for _, kind := range []string{protocol.ReportCheckpoint, protocol.ReportWriting, protocol.ReportCompleted,
		protocol.ReportFailed} {
		var reply protocol.ReportReply
		require.NoError(t, c.send(node, protocol.ReportSubject("n1"),
			protocol.Report{Version: protocol.Version, Kind: kind, Job: jobName, Attempt: 1, CreateTime: old.CreateTime,
				Sizes: map[string]int64{"w": 1}, Result: &protocol.Result{},
				Error: &protocol.Error{Code: domain.InvalidArgument}}, &reply))
		require.Equal(t, protocol.Stale, reply.Outcome, kind)
	}
	heartbeat := heartbeatOf("a", 4)
	heartbeat.Attempts = []protocol.Attempt{{Job: jobName, Attempt: 1, CreateTime: old.CreateTime, Phase: protocol.Lost,
		Step: 7, Steps: 40}}
	var assignments protocol.Assignments
	require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeat, &assignments))
	require.Empty(t, assignments.Keep)
	require.Len(t, assignments.Train, 1)
	require.Equal(t, domain.JobRunningState, c.life().State)
	_, reported := c.world.View().Live.Progress(jobName)
	require.False(t, reported)
}

// TestAgentAndReusedNames checks that the agent stops the attempt of a deleted job and starts the
// attempt of the new job with the same name.
func TestAgentAndReusedNames(t *testing.T) {
	c := startWithInputs(t)
	begun, stopped := make(chan struct{}, 2), make(chan struct{}, 2)
	engine := hangAt(1)
	engine.Trainer = recurring{begun, stopped}
	c.agent("n1", engine)
	c.startJob("n1")
	c.wait("the first begins", begun)
	c.stop() // so that the coordinator does not wake the agent
	c.do(domain.IntendJob(jobName, domain.DeleteJob{}))
	c.do(domain.Intend(domain.Nodes, nodeName("n1"), domain.ReleaseAllocation{ID: domain.AllocationID(jobName, 1)}))
	c.do(domain.IntendJob(jobName, domain.CleanJob{}))
	c.do(domain.IntendJob(jobName, domain.PurgeJob{}))
	c.startJob("n1")
	c.open()
	c.wait("the first ends", stopped)
	c.wait("the second begins", begun)
	require.Equal(t, 1, c.life().Attempt)
}

// recurring is a trainer that signals when a run begins, and when the run is stopped.
type recurring struct{ begun, stopped chan struct{} }

func (r recurring) Train(ctx context.Context, _ engines.TrainRequest, _ engines.TrainWatcher) (engines.TrainResult,
	error) {
	r.begun <- struct{}{}
	<-ctx.Done()
	r.stopped <- struct{}{}
	return engines.TrainResult{}, ctx.Err()
}

func path(t *testing.T, address string) string {
	parsed, err := url.Parse(address)
	require.NoError(t, err)
	return parsed.Path
}
