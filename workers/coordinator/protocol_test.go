package coordinator_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/internal/testutil"
	"anneal/projections"
	"anneal/projections/live"
	"anneal/workers/agent"
	"anneal/workers/protocol"
)

// send sends a request as a node's agent, and decodes the reply.
func (c *cluster) send(conn *nats.Conn, subject string, request, reply any) error {
	data, err := json.Marshal(request)
	require.NoError(c, err)
	var m *nats.Msg
	// A coordinator that is stopping may drop the request, and a new one may not have subscribed yet.
	require.Eventually(c, func() bool {
		m, err = conn.Request(subject, data, waitTimeout/6)
		return !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, nats.ErrTimeout)
	}, waitTimeout, time.Millisecond)
	require.NoError(c, err)
	return protocol.Unmarshal(m.Data, reply)
}

// created returns the creation time of the job.
func (c *cluster) created() time.Time {
	row, ok := projections.TableOf(c.world.View(), domain.SupervisedJobs).Get(jobName)
	require.True(c, ok)
	return row.CreateTime
}

func heartbeatOf(boot string, number uint64) protocol.Heartbeat {
	return protocol.Heartbeat{Version: protocol.Version, Boot: boot, Number: number,
		Node: domain.NodeSpec{Engines: []string{"train"}, Version: "test",
			Capacity: domain.Resources{CPUMilli: 4000, MemoryMiB: 4096}}}
}

// registerNode connects as a node, and sends its first heartbeat.
func (c *cluster) registerNode(node, boot string) *nats.Conn {
	c.Helper()
	conn := c.connectNode(node)
	require.NoError(c, c.send(conn, protocol.HeartbeatSubject(node), heartbeatOf(boot, 1), &protocol.Assignments{}))
	return conn
}

// TestStaleReports checks that reports of an attempt that is over, and reports of another node, are
// refused and not recorded.
func TestStaleReports(t *testing.T) {
	c := startWithInputs(t)
	old, _ := c.registerNode("n1", "a"), c.registerNode("n2", "b")
	c.startJob("n1")
	c.do(domain.IntendJob(jobName, domain.RequeueJob{Attempt: 1, Reason: "lost"}))
	c.do(domain.IntendJob(jobName, domain.QueueJob{}))
	c.place("n2")
	before := c.world.Position()
	for _, kind := range []string{protocol.ReportCheckpoint, protocol.ReportWriting, protocol.ReportCompleted,
		protocol.ReportFailed, protocol.ReportStopped} {
		report := protocol.Report{Version: protocol.Version, Boot: "a", Kind: kind, Job: jobName,
			CreateTime: c.created(),
			Step:       10, Sizes: map[string]int64{"w": 1},
			Result: &protocol.Result{}, Error: &protocol.Error{Code: domain.InvalidArgument, Message: "x"}}
		for _, attempt := range []int{0, 1, 2, 3} { // attempt 2 is the current one, but runs on another node than n1
			report.Attempt = attempt
			var reply protocol.ReportReply
			require.NoError(t, c.send(old, protocol.ReportSubject("n1"), report, &reply))
			require.Equal(t, protocol.Stale, reply.Outcome, "%s of attempt %d", kind, attempt)
			require.NotEmpty(t, reply.Message)
		}
	}
	var reply protocol.SignReply
	require.NoError(t, c.send(old, protocol.SignSubject("n1"),
		protocol.SignRequest{Version: protocol.Version, Job: jobName, Attempt: 1, CreateTime: c.created(),
			For:   protocol.ForCheckpoint,
			Sizes: map[string]int64{"w": 1}}, &reply))
	require.Equal(t, protocol.Stale, reply.Outcome)
	require.Empty(t, reply.URLs)
	require.Equal(t, before, c.world.Position())

	// The reply to a heartbeat that still lists the old attempt does not keep the attempt.
	heartbeat := heartbeatOf("a", 2)
	heartbeat.Attempts = []protocol.Attempt{{Job: jobName, Attempt: 1, CreateTime: c.created(),
		Phase: protocol.Training}}
	var assignments protocol.Assignments
	require.NoError(t, c.send(old, protocol.HeartbeatSubject("n1"), heartbeat, &assignments))
	require.Empty(t, assignments.Keep)
	require.Empty(t, assignments.Train)
}

// TestUnstoredFiles checks that a report of files that are not stored is refused.
func TestUnstoredFiles(t *testing.T) {
	c := startWithInputs(t)
	node := c.registerNode("n1", "a")
	c.startJob("n1")
	for _, kind := range []string{protocol.ReportCheckpoint, protocol.ReportCompleted} {
		var reply protocol.ReportReply
		require.NoError(t, c.send(node, protocol.ReportSubject("n1"),
			protocol.Report{Version: protocol.Version, Kind: kind, Job: jobName, Attempt: 1, CreateTime: c.created(),
				Step:  10,
				Sizes: map[string]int64{"model.safetensors": 10}, Result: &protocol.Result{}}, &reply))
		require.Equal(t, protocol.Incomplete, reply.Outcome)
		require.Contains(t, reply.Message, "model.safetensors")
	}
	for _, name := range []string{"../../../models/acme/base/config.json", "/etc/passwd", ".hidden", ""} {
		err := c.send(node, protocol.SignSubject("n1"), protocol.SignRequest{Version: protocol.Version, Job: jobName,
			Attempt: 1, CreateTime: c.created(), For: protocol.ForResults,
			Sizes: map[string]int64{name: 1}}, &protocol.SignReply{})
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%q", name)
	}
}

// TestAssignments checks that an assignment holds only what an attempt needs, and is repeated until
// the node lists the attempt.
func TestAssignments(t *testing.T) {
	c := startWithInputs(t)
	node := c.registerNode("n1", "a")
	c.startJob("n1")
	id := domain.AllocationID(jobName, 1)
	for number := range uint64(2) { // send the heartbeat twice, because the first reply may have been lost
		var assignments protocol.Assignments
		require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeatOf("a", 2+number), &assignments))
		require.Len(t, assignments.Train, 1)
		assignment := assignments.Train[0]
		require.Equal(t, id, assignment.ID())
		require.Equal(t, []string{"config.json", "model.safetensors"},
			[]string{assignment.Base.Files[0].Name, assignment.Base.Files[1].Name})
		require.Equal(t, 4, assignment.Settings.Epochs)
		require.Equal(t, domain.DefaultLoraRank, assignment.Settings.LoraRank)
		require.NotZero(t, assignment.Seed)
		require.Nil(t, assignment.Resume)
	}
	heartbeat := heartbeatOf("a", 4)
	heartbeat.Attempts = []protocol.Attempt{{Job: jobName, Attempt: 1, CreateTime: c.created(),
		Phase: protocol.Training,
		Step:  3, Steps: 40}}
	var assignments protocol.Assignments
	require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeat, &assignments))
	require.Equal(t, []string{id}, assignments.Keep)
	require.Empty(t, assignments.Train)
	progress, ok := c.world.View().Live.Progress(jobName)
	require.True(t, ok)
	require.Equal(t, 3, progress.Step)

	c.do(domain.IntendJob(jobName, domain.CancelJob{}))
	heartbeat.Number++
	assignments = protocol.Assignments{}
	require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeat, &assignments))
	require.Equal(t, []string{id}, assignments.Keep)
	require.Equal(t, []string{id}, assignments.Cancel)
	var reply protocol.ReportReply
	require.NoError(t, c.send(node, protocol.ReportSubject("n1"),
		protocol.Report{Version: protocol.Version, Kind: protocol.ReportStopped, Job: jobName, Attempt: 1,
			CreateTime: c.created()}, &reply))
	require.Equal(t, protocol.Accepted, reply.Outcome)
	require.Equal(t, domain.JobCancelledState, c.life().State)
}

func TestRefusedHeartbeats(t *testing.T) {
	c := start(t)
	node := c.connectNode("n1")
	heartbeat := heartbeatOf("a", 1)
	heartbeat.Version = 99
	err := c.send(node, protocol.HeartbeatSubject("n1"), heartbeat, &protocol.Assignments{})
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.Contains(t, err.Error(), "version 99")

	heartbeat = heartbeatOf("a", 1)
	heartbeat.Node.Capacity.CPUMilli = 0
	err = c.send(node, protocol.HeartbeatSubject("n1"), heartbeat, &protocol.Assignments{})
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	require.Contains(t, err.Error(), "cpuMilli")

	reply, err := node.Request(protocol.HeartbeatSubject("n1"), []byte("{"), waitTimeout)
	require.NoError(t, err)
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(protocol.Unmarshal(reply.Data, &protocol.Assignments{})))
	require.Equal(t, domain.NodeJoining, c.node("n1").State, "the node is enrolled, and nothing else was recorded")
}

// TestTakenOver checks that the coordinator refuses the older of two agents that run as one node,
// with the reason TakenOver.
func TestTakenOver(t *testing.T) {
	c := start(t)
	a, err := agent.New(agent.Options{Node: "n1", Token: "token of n1", Key: keyOf(t, "n1"), URL: c.server.URL(),
		Dir: t.TempDir(), Log: testLog})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(t.Context()) }()
	c.ready("n1")
	newer := c.connectNode("n1")
	require.NoError(t, c.send(newer, protocol.HeartbeatSubject("n1"), heartbeatOf("newer", 1), &protocol.Assignments{}))
	require.NoError(t, c.server.Coordinator().Publish(protocol.WakeSubject("n1"), nil))
	err = <-ended
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.Contains(t, err.Error(), "another agent")
	require.NoError(t, c.send(newer, protocol.HeartbeatSubject("n1"), heartbeatOf("newer", 2), &protocol.Assignments{}))
}

// TestOvertakenHeartbeat checks that a heartbeat that is handled after a newer one only adds its
// metric rows.
func TestOvertakenHeartbeat(t *testing.T) {
	c, node, running := deployed(t)
	c.startJob("n1")
	var assignments protocol.Assignments
	require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeatOf("a", 3), &assignments))
	require.Len(t, assignments.Train, 1)
	busy := func(number uint64, active, step int) protocol.Heartbeat {
		heartbeat := heartbeatOf("a", number)
		running.Load.Active = active
		heartbeat.Replicas = []protocol.Replica{running}
		heartbeat.Attempts = []protocol.Attempt{{Job: jobName, Attempt: 1, CreateTime: assignments.Train[0].CreateTime,
			Phase: protocol.Training, Step: step, Steps: 40,
			Rows: []engines.Metrics{{Step: step, Steps: 40}}}}
		return heartbeat
	}
	require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), busy(5, 1, 8), &protocol.Assignments{}))
	for _, late := range []protocol.Heartbeat{busy(4, 7, 7), busy(3, 7, 6)} {
		data := testutil.Marshal(t, late)
		require.NoError(t, node.Publish(protocol.HeartbeatSubject("n1"), data))
	}
	steps := func() (steps []int) {
		for row := range c.world.View().Live.Metrics(jobName, 0) {
			steps = append(steps, row.Step)
		}
		return steps
	}
	require.Eventually(t, func() bool { return slices.Contains(steps(), 6) }, waitTimeout, time.Millisecond,
		"the listener handles heartbeats in order: it has handled the first late one before the second one")
	status := c.world.View().Live
	load, ok := status.Replica(deploymentName, running.Replica)
	require.True(t, ok)
	require.Equal(t, 1, load.Active)
	progress, ok := status.Progress(jobName)
	require.True(t, ok)
	require.Equal(t, 8, progress.Step)
	require.Equal(t, []int{6, 7, 8}, steps())
}

// TestMetricsAreLive checks that metric rows are in the live status while a training runs.
func TestMetricsAreLive(t *testing.T) {
	c := startWithInputs(t)
	c.agent("n1", hangAt(35))
	c.startJob("n1")
	c.saved(30)
	require.NoError(t, c.server.Coordinator().Publish(protocol.WakeSubject("n1"), nil))
	// The coordinator records the live status of a heartbeat before it replies: the cancellation
	// reaches the node with the reply to a heartbeat that had all rows.
	c.do(domain.IntendJob(jobName, domain.CancelJob{}))
	c.reaches(domain.JobCancelledState)
	var rows []live.MetricRow
	for row := range c.world.View().Live.Metrics(jobName, 0) {
		rows = append(rows, row)
	}
	require.GreaterOrEqual(t, len(rows), 30)
	for i, row := range rows {
		require.Equal(t, i+1, row.Step)
	}
}

// TestAssignmentsHaveTheOptionsOfTheJob checks that the seed and the learning rate multiplier of a
// job reach its assignment.
func TestAssignmentsHaveTheOptionsOfTheJob(t *testing.T) {
	c := startWithInputs(t)
	node := c.registerNode("n1", "a")
	seed := 42
	c.do(domain.Intend(domain.SupervisedJobs, jobName, domain.CreateSupervisedJob{
		SupervisedSpec: domain.SupervisedSpec{Dataset: "accounts/acme/datasets/rows",
			TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName)}}, ID: jobName.ID(),
		Options: &domain.JobOptions{Seed: &seed, LearningRateMultiplier: 0.5}}))
	c.do(domain.IntendJob(jobName, domain.StartValidation{}), domain.IntendJob(jobName, domain.QueueJob{}))
	c.place("n1")
	var assignments protocol.Assignments
	require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeatOf("a", 2), &assignments))
	require.Len(t, assignments.Train, 1)
	require.EqualValues(t, 42, assignments.Train[0].Seed)
	require.InDelta(t, 0.5, assignments.Train[0].Settings.LearningRateMultiplier, 0)
}
