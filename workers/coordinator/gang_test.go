package coordinator_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded"
	"anneal/projections"
	"anneal/workers/protocol"
)

// counting is the embedded engine with counts of the attempts that a node led and assisted.
type counting struct {
	engines.GangTrainer
	led, assisted atomic.Int32
	parallelism   int
	stepped       chan int // receives the number of each training step; nil discards it
}

// A stepWatcher sends the number of each step to a channel.
type stepWatcher struct {
	engines.TrainWatcher
	steps chan int
}

func (w stepWatcher) Step(m engines.Metrics) {
	w.TrainWatcher.Step(m)
	select {
	case w.steps <- m.Step:
	default:
	}
}

func (c *counting) Train(
	ctx context.Context, r engines.TrainRequest, w engines.TrainWatcher,
) (engines.TrainResult, error) {
	c.led.Add(1)
	r.Parallelism = c.parallelism
	return c.GangTrainer.Train(ctx, r, stepWatcher{w, c.stepped})
}

func (c *counting) Assist(ctx context.Context, r engines.TrainRequest) error {
	c.assisted.Add(1)
	r.Parallelism = c.parallelism
	return c.GangTrainer.Assist(ctx, r)
}

// gangJob queues a supervised job, and starts its first attempt on the nodes.
func (c *cluster) gangJob(id, dataset string, nodes ...string) domain.Name {
	name := domain.NewName("acme", domain.SupervisedJobs.Collection, id)
	c.do(domain.Intend(domain.SupervisedJobs, name, domain.CreateSupervisedJob{ID: id,
		SupervisedSpec: domain.SupervisedSpec{Dataset: dataset, Nodes: len(nodes),
			TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName), OutputModel: id, Epochs: 3,
				BatchSize: 1024}}}),
		domain.IntendJob(name, domain.StartValidation{}), domain.IntendJob(name, domain.QueueJob{}))
	c.startOn(name, 1, nodes...)
	return name
}

// startOn starts an attempt of a job on the nodes.
func (c *cluster) startOn(name domain.Name, attempt int, nodes ...string) {
	takes := domain.Resources{CPUMilli: 500, MemoryMiB: 64}
	var gang []domain.Name
	for _, node := range nodes {
		gang = append(gang, nodeName(node))
		c.do(domain.Intend(domain.Nodes, nodeName(node), domain.PlaceAllocation{Allocation: domain.Allocation{
			ID: domain.AllocationID(name, attempt), For: name, Attempt: attempt, Resources: takes}}))
	}
	c.do(domain.IntendJob(name, domain.StartJob{Attempt: attempt, Nodes: gang, Resources: takes}))
}

// TestTwoAgentsTrainWhatOneTrains checks that a job on two nodes computes on both, and that its
// model and its metrics are those of the same job on one node, bit for bit.
func TestTwoAgentsTrainWhatOneTrains(t *testing.T) {
	values, weights := map[int]map[string]float64{}, map[int]string{}
	for _, nodes := range [][]string{{"n3"}, {"n1", "n2"}, {"n2", "n3", "n1"}} {
		c := start(t)
		trainers := c.embeddedAgents()
		name := c.gangJob("tuned", c.numbers(120), nodes...)
		model := c.tuned("tuned")
		weights[len(nodes)] = model.Files.Sums["adapter_model.safetensors"]
		require.NotEmpty(t, weights[len(nodes)])
		values[len(nodes)] = c.latest(name).Values
		require.Positive(t, values[len(nodes)]["train/loss"])
		for node, trainer := range trainers {
			leads, assists := node == nodes[0], slices.Contains(nodes[1:], node)
			require.Equal(t, [2]bool{leads, assists}, [2]bool{trainer.led.Load() == 1, trainer.assisted.Load() == 1}, node)
		}
	}
	require.Equal(t, weights[1], weights[2])
	require.Equal(t, weights[1], weights[3])
	require.Equal(t, values[1], values[2])
	require.Equal(t, values[1], values[3])
}

// embeddedAgents starts three agents with the embedded engine, and returns their trainers.
func (c *cluster) embeddedAgents() map[string]*counting {
	c.shipped()
	trainers := map[string]*counting{}
	for i, node := range []string{"n1", "n2", "n3"} {
		engine := embedded.New(embedded.Options{})
		trainers[node] = &counting{GangTrainer: engine.Trainer.(engines.GangTrainer), parallelism: i%2 + 1,
			stepped: make(chan int, 1)}
		engine.Trainer = trainers[node]
		c.stops[node] = c.agent(node, engine)
	}
	return trainers
}

// numbers stores a dataset of n rows, and returns its name.
func (c *cluster) numbers(n int) string {
	var lines []string
	for i := range n {
		lines = append(lines, fmt.Sprintf(
			`{"messages":[{"role":"user","content":"Say %d."},{"role":"assistant","content":"It is %d."}]}`, i, i*i))
	}
	return c.rows("numbers", domain.ShapeChat, lines...)
}

// TestGangContinuesAfterANodeIsLost stops one of two agents during training. The job is queued
// again, and its next attempt on two nodes ends.
func TestGangContinuesAfterANodeIsLost(t *testing.T) {
	c := start(t)
	trainers := c.embeddedAgents()
	name := c.gangJob("interrupted", c.numbers(400), "n1", "n2")
	<-trainers["n1"].stepped
	c.stops["n2"]()
	c.until("the job is queued again", func(v *projections.View) bool {
		j, ok := v.Job(name)
		return ok && j.State.Life().State == domain.JobReQueueingState && j.State.Life().Failures == 0
	})
	c.do(domain.IntendJob(name, domain.QueueJob{}))
	c.startOn(name, 2, "n3", "n1")
	c.tuned("interrupted")
}

// TestOnlyTheLeaderReports checks that the other nodes of a gang can report a failure, but neither
// progress nor results.
func TestOnlyTheLeaderReports(t *testing.T) {
	c := startWithInputs(t)
	first, second := c.connectNode("n1"), c.connectNode("n2")
	for node, conn := range map[string]*nats.Conn{"n1": first, "n2": second} {
		heartbeat := heartbeatOf(node, 1)
		heartbeat.Node.Engines = []string{"train", domain.GangAbility}
		require.NoError(t, c.send(conn, protocol.HeartbeatSubject(node), heartbeat, &protocol.Assignments{}))
	}
	c.submit(func(s *domain.SupervisedSpec) { s.Nodes = 2 })
	c.startOn(jobName, 1, "n1", "n2")
	var assigned [2]protocol.Assignments
	for i, node := range []string{"n1", "n2"} {
		heartbeat := heartbeatOf(node, 2)
		heartbeat.Node.Engines = []string{"train", domain.GangAbility}
		require.NoError(t, c.send([]*nats.Conn{first, second}[i], protocol.HeartbeatSubject(node), heartbeat, &assigned[i]))
		require.Len(t, assigned[i].Train, 1)
	}
	leader, helper := assigned[0].Train[0], assigned[1].Train[0]
	require.Equal(t, []string{"n1", "n2"}, helper.Gang.Nodes)
	require.Equal(t, [2]int{0, 1}, [2]int{leader.Gang.Rank, helper.Gang.Rank})
	require.Equal(t, leader.Gang.Key, helper.Gang.Key)
	require.Len(t, leader.Gang.Key, 32)
	require.NotEmpty(t, leader.Data.Files)
	require.Empty(t, helper.Data.Files, "the leader sends the samples")
	require.Empty(t, helper.LogURL)
	report := protocol.Report{Version: protocol.Version, Boot: "n2", Kind: protocol.ReportWriting, Job: jobName,
		Attempt: 1, CreateTime: c.created()}
	var reply protocol.ReportReply
	require.NoError(t, c.send(second, protocol.ReportSubject("n2"), report, &reply))
	require.Equal(t, protocol.Stale, reply.Outcome)
	require.Equal(t, domain.JobRunningState, c.life().State)
	report.Kind, report.Error = protocol.ReportFailed, &protocol.Error{Code: domain.Unavailable, Message: "no memory"}
	require.NoError(t, c.send(second, protocol.ReportSubject("n2"), report, &reply))
	require.Equal(t, protocol.Accepted, reply.Outcome)
	require.Equal(t, domain.JobReQueueingState, c.life().State)
}
