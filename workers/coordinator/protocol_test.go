package coordinator_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/workers/agent"
	"anneal/workers/protocol"
)

// ask speaks for a node, as an agent of any behaviour could.
func (c *cluster) ask(conn *nats.Conn, subject string, question, answer any) error {
	data, err := json.Marshal(question)
	require.NoError(c, err)
	var reply *nats.Msg
	require.Eventually(c, func() bool { // a desk that ends takes some with it, and one that begins may not listen yet
		reply, err = conn.Request(subject, data, patience/6)
		return !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, nats.ErrTimeout)
	}, patience, time.Millisecond)
	require.NoError(c, err)
	return protocol.Unmarshal(reply.Data, answer)
}

// made is when the job was created.
func (c *cluster) made() time.Time {
	row, ok := projections.TableOf(c.world.View(), domain.SupervisedJobs).Get(jobName)
	require.True(c, ok)
	return row.CreateTime
}

func beatOf(boot string, number uint64) protocol.Heartbeat {
	return protocol.Heartbeat{Version: protocol.Version, Boot: boot, Number: number,
		Node: domain.NodeSpec{Engines: []string{"train"}, Version: "test",
			Capacity: domain.Resources{CPUMilli: 4000, MemoryMiB: 4096}}}
}

// What an attempt that is over reports is refused, and so is what another node
// reports: nothing of it is recorded.
func TestStaleReports(t *testing.T) {
	c := start(t)
	c.stock()
	old, other := c.raw("n1"), c.raw("n2")
	require.NoError(t, c.ask(old, protocol.HeartbeatSubject("n1"), beatOf("a", 1), &protocol.Assignments{}))
	require.NoError(t, c.ask(other, protocol.HeartbeatSubject("n2"), beatOf("b", 1), &protocol.Assignments{}))
	c.submit()
	c.place("n1")
	c.do(domain.IntendJob(jobName, domain.RequeueJob{Attempt: 1, Reason: "lost"}))
	c.do(domain.IntendJob(jobName, domain.QueueJob{}))
	c.place("n2")
	before := c.world.Position()
	for _, kind := range []string{protocol.ReportCheckpoint, protocol.ReportWriting, protocol.ReportCompleted,
		protocol.ReportFailed, protocol.ReportStopped} {
		report := protocol.Report{Version: protocol.Version, Boot: "a", Kind: kind, Job: jobName, CreateTime: c.made(),
			Step: 10, Sizes: map[string]int64{"w": 1},
			Result: &protocol.Result{}, Error: &protocol.Error{Code: domain.InvalidArgument, Message: "x"}}
		for _, attempt := range []int{0, 1, 2, 3} { // 2 is the current one, but not n1's
			report.Attempt = attempt
			var receipt protocol.ReportReply
			require.NoError(t, c.ask(old, protocol.ReportSubject("n1"), report, &receipt))
			require.Equal(t, protocol.Stale, receipt.Outcome, "%s of attempt %d", kind, attempt)
			require.NotEmpty(t, receipt.Message)
		}
	}
	var reply protocol.SignReply
	require.NoError(t, c.ask(old, protocol.SignSubject("n1"),
		protocol.SignRequest{Version: protocol.Version, Job: jobName, Attempt: 1, CreateTime: c.made(),
			For:   protocol.ForCheckpoint,
			Sizes: map[string]int64{"w": 1}}, &reply))
	require.Equal(t, protocol.Stale, reply.Outcome)
	require.Empty(t, reply.URLs)
	require.Equal(t, before, c.world.Position())

	// The one that still lists the old attempt is told to stop it.
	beat := beatOf("a", 2)
	beat.Attempts = []protocol.Attempt{{Job: jobName, Attempt: 1, CreateTime: c.made(), Phase: protocol.Training}}
	var orders protocol.Assignments
	require.NoError(t, c.ask(old, protocol.HeartbeatSubject("n1"), beat, &orders))
	require.Empty(t, orders.Keep)
	require.Empty(t, orders.Train)
}

// A node cannot say that files are stored which are not.
func TestUnstoredFiles(t *testing.T) {
	c := start(t)
	c.stock()
	node := c.raw("n1")
	require.NoError(t, c.ask(node, protocol.HeartbeatSubject("n1"), beatOf("a", 1), &protocol.Assignments{}))
	c.submit()
	c.place("n1")
	for _, kind := range []string{protocol.ReportCheckpoint, protocol.ReportCompleted} {
		var receipt protocol.ReportReply
		require.NoError(t, c.ask(node, protocol.ReportSubject("n1"),
			protocol.Report{Version: protocol.Version, Kind: kind, Job: jobName, Attempt: 1, CreateTime: c.made(),
				Step:  10,
				Sizes: map[string]int64{"model.safetensors": 10}, Result: &protocol.Result{}}, &receipt))
		require.Equal(t, protocol.Incomplete, receipt.Outcome)
		require.Contains(t, receipt.Message, "model.safetensors")
	}
	for _, name := range []string{"../../../models/acme/base/config.json", "/etc/passwd", ".hidden", ""} {
		err := c.ask(node, protocol.SignSubject("n1"), protocol.SignRequest{Version: protocol.Version, Job: jobName,
			Attempt: 1, CreateTime: c.made(), For: protocol.ForResults,
			Sizes: map[string]int64{name: 1}}, &protocol.SignReply{})
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%q", name)
	}
}

// An order names what an attempt needs and nothing more; it comes until the
// node lists the attempt.
func TestOrders(t *testing.T) {
	c := start(t)
	c.stock()
	node := c.raw("n1")
	require.NoError(t, c.ask(node, protocol.HeartbeatSubject("n1"), beatOf("a", 1), &protocol.Assignments{}))
	c.submit()
	c.place("n1")
	id := domain.AllocationID(jobName, 1)
	for number := range uint64(2) { // the first answer may have been lost
		var orders protocol.Assignments
		require.NoError(t, c.ask(node, protocol.HeartbeatSubject("n1"), beatOf("a", 2+number), &orders))
		require.Len(t, orders.Train, 1)
		order := orders.Train[0]
		require.Equal(t, id, order.ID())
		require.Equal(t, []string{"config.json", "model.safetensors"},
			[]string{order.Base.Files[0].Name, order.Base.Files[1].Name})
		require.Equal(t, 4, order.Settings.Epochs)
		require.Equal(t, domain.DefaultLoraRank, order.Settings.LoraRank)
		require.NotZero(t, order.Seed)
		require.Nil(t, order.Resume)
	}
	beat := beatOf("a", 4)
	beat.Attempts = []protocol.Attempt{{Job: jobName, Attempt: 1, CreateTime: c.made(), Phase: protocol.Training,
		Step: 3, Steps: 40}}
	var orders protocol.Assignments
	require.NoError(t, c.ask(node, protocol.HeartbeatSubject("n1"), beat, &orders))
	require.Equal(t, []string{id}, orders.Keep)
	require.Empty(t, orders.Train)
	progress, ok := c.world.View().Live.Progress(jobName)
	require.True(t, ok)
	require.Equal(t, 3, progress.Step)

	c.do(domain.IntendJob(jobName, domain.CancelJob{}))
	beat.Number++
	orders = protocol.Assignments{}
	require.NoError(t, c.ask(node, protocol.HeartbeatSubject("n1"), beat, &orders))
	require.Equal(t, []string{id}, orders.Keep)
	require.Equal(t, []string{id}, orders.Cancel)
	var receipt protocol.ReportReply
	require.NoError(t, c.ask(node, protocol.ReportSubject("n1"),
		protocol.Report{Version: protocol.Version, Kind: protocol.ReportStopped, Job: jobName, Attempt: 1,
			CreateTime: c.made()}, &receipt))
	require.Equal(t, protocol.Accepted, receipt.Outcome)
	require.Equal(t, domain.JobCancelledState, c.life().State)
}

func TestRefusals(t *testing.T) {
	c := start(t)
	node := c.raw("n1")
	beat := beatOf("a", 1)
	beat.Version = 99
	err := c.ask(node, protocol.HeartbeatSubject("n1"), beat, &protocol.Assignments{})
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.Contains(t, err.Error(), "version 99")

	beat = beatOf("a", 1)
	beat.Node.Capacity.CPUMilli = 0
	err = c.ask(node, protocol.HeartbeatSubject("n1"), beat, &protocol.Assignments{})
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	require.Contains(t, err.Error(), "cpuMilli")

	reply, err := node.Request(protocol.HeartbeatSubject("n1"), []byte("{"), patience)
	require.NoError(t, err)
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(protocol.Unmarshal(reply.Data, &protocol.Assignments{})))
	require.Equal(t, domain.NodeJoining, c.node("n1").State, "it has enrolled, and no more")
}

// Of two agents under one name the newer stays, and the older is told why not.
func TestTakenOver(t *testing.T) {
	c := start(t)
	a, err := agent.New(agent.Options{Node: "n1", Token: "token of n1", Key: keyOf(t, "n1"), URL: c.server.URL(),
		Dir: t.TempDir(), Log: testLog})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(t.Context()) }()
	c.ready("n1")
	newer := c.raw("n1")
	require.NoError(t, c.ask(newer, protocol.HeartbeatSubject("n1"), beatOf("newer", 1), &protocol.Assignments{}))
	require.NoError(t, c.server.Coordinator().Publish(protocol.WakeSubject("n1"), nil))
	err = <-ended
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.Contains(t, err.Error(), "another agent")
	require.NoError(t, c.ask(newer, protocol.HeartbeatSubject("n1"), beatOf("newer", 2), &protocol.Assignments{}))
}

// What a beat says of now stays when one from before is handled after it, whose
// rows of metrics are added.
func TestABeatThatIsOvertaken(t *testing.T) {
	c, node, running := deployed(t)
	c.submit()
	c.place("n1")
	var orders protocol.Assignments
	require.NoError(t, c.ask(node, protocol.HeartbeatSubject("n1"), beatOf("a", 3), &orders))
	require.Len(t, orders.Train, 1)
	busy := func(number uint64, active, step int) protocol.Heartbeat {
		beat := beatOf("a", number)
		running.Load.Active = active
		beat.Replicas = []protocol.Replica{running}
		beat.Attempts = []protocol.Attempt{{Job: jobName, Attempt: 1, CreateTime: orders.Train[0].CreateTime,
			Phase: protocol.Training, Step: step, Steps: 40,
			Rows: []engines.Metrics{{Step: step, Steps: 40}}}}
		return beat
	}
	require.NoError(t, c.ask(node, protocol.HeartbeatSubject("n1"), busy(5, 1, 8), &protocol.Assignments{}))
	late, err := json.Marshal(busy(4, 7, 7))
	require.NoError(t, err)
	require.NoError(t, node.Publish(protocol.HeartbeatSubject("n1"), late))
	require.Error(t, c.ask(node, protocol.HeartbeatSubject("n1"), protocol.Heartbeat{}, &protocol.Assignments{}),
		"it speaks no version, and comes after")
	c.desk() // which has then handled all that it heard
	pulse := c.world.View().Live
	load, ok := pulse.Replica(deploymentName, running.Replica)
	require.True(t, ok)
	require.Equal(t, 1, load.Active)
	progress, ok := pulse.Progress(jobName)
	require.True(t, ok)
	require.Equal(t, 8, progress.Step)
	var steps []int
	for row := range pulse.Metrics(jobName, 0) {
		steps = append(steps, row.Step)
	}
	require.Equal(t, []int{7, 8}, steps)
}

// Rows of metrics reach the pulse while a training runs.
func TestMetricsReachThePulse(t *testing.T) {
	c := start(t)
	c.stock()
	c.agent("n1", hangAt(35))
	c.submit()
	c.place("n1")
	c.saved(30)
	require.NoError(t, c.server.Coordinator().Publish(protocol.WakeSubject("n1"), nil))
	// The desk hears a beat before it acts on it; that the node is told of the
	// cancellation means that a beat with all rows was heard.
	c.do(domain.IntendJob(jobName, domain.CancelJob{}))
	c.reaches(domain.JobCancelledState)
	var rows []projections.MetricRow
	for row := range c.world.View().Live.Metrics(jobName, 0) {
		rows = append(rows, row)
	}
	require.GreaterOrEqual(t, len(rows), 30)
	for i, row := range rows {
		require.Equal(t, i+1, row.Step)
	}
}
