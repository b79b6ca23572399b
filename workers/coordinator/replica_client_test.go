package coordinator_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
	"anneal/workers/coordinator"
	"anneal/workers/protocol"
)

const deploymentName = domain.Name("accounts/acme/deployments/d")

// deploy creates a deployment with one replica on a node.
func (c *cluster) deploy(node string) domain.Replica {
	c.Helper()
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.CreateDeployment{
		DeploymentSpec: domain.DeploymentSpec{BaseModel: string(modelName), MinReplicaCount: 1}}))
	return c.placeReplica(node)
}

func (c *cluster) placeReplica(node string) domain.Replica {
	row, _ := c.world.View().Deployments.Get(deploymentName)
	id := row.State.NextReplica()
	takes := domain.Resources{CPUMilli: 100, MemoryMiB: 16}
	if n := row.State.AcceleratorCount; n > 0 {
		takes.Accelerators = map[string]int{row.State.AcceleratorType: n}
	}
	c.do(domain.Intend(domain.Nodes, nodeName(node), domain.PlaceAllocation{Allocation: domain.Allocation{
		ID: domain.ReplicaAllocationID(deploymentName, id), For: deploymentName, Replica: id, Resources: takes}}),
		domain.Intend(domain.Deployments, deploymentName, domain.PlaceReplica{ID: id, Node: nodeName(node),
			Generation: row.State.Generation}))
	row, _ = c.world.View().Deployments.Get(deploymentName)
	return row.State.Replicas[id]
}

// serving waits until the replica is ready.
func (c *cluster) serving(replica string) domain.Replica {
	c.Helper()
	d := c.untilDeployment("the replica is ready", func(d domain.Deployment) bool {
		return d.Replicas[replica].State == domain.ReplicaReady
	})
	return d.Replicas[replica]
}

func (c *cluster) replicas() coordinator.ReplicaClient {
	return coordinator.ReplicaClient{Conn: c.server.Coordinator()}
}

// counted is an engine that counts its completions in progress.
type counted struct {
	engines.Completer
	files  atomic.Pointer[engines.ModelFiles] // files of the model that the engine loaded last
	active atomic.Int32
	ended  chan struct{}
}

type countedModel struct {
	engines.Model
	*counted
}

func (c *counted) Load(ctx context.Context, files engines.ModelFiles) (engines.Model, error) {
	c.files.Store(&files)
	m, err := c.Completer.Load(ctx, files)
	return countedModel{m, c}, err
}

func (m countedModel) Complete(ctx context.Context, req engines.CompletionRequest,
	emit func(engines.Chunk) error) (engines.Usage, error) {
	m.active.Add(1)
	usage, err := m.Model.Complete(ctx, req, emit)
	m.active.Add(-1)
	m.ended <- struct{}{}
	return usage, err
}

func TestReplicaLife(t *testing.T) {
	c := startWithInputs(t)
	c.agent("n1", simulated.New(simulated.Options{Seed: 7}))
	r := c.serving(c.deploy("n1").ID)
	load, ok := c.world.View().Live.Replica(deploymentName, r.ID)
	require.True(t, ok)
	require.Equal(t, 8, load.Slots)

	// The response equals the response of an engine that is called directly.
	model, err := simulated.New(simulated.Options{Seed: 7}).Completer.Load(t.Context(), engines.ModelFiles{})
	require.NoError(t, err)
	request := engines.CompletionRequest{Prompt: "go", MaxTokens: 200, IgnoreEOS: true}
	gather := func(into *[]engines.Chunk) func(engines.Chunk) error {
		return func(chunk engines.Chunk) error { *into = append(*into, chunk); return nil }
	}
	var want, got []engines.Chunk
	wantUsage, err := model.Complete(t.Context(), request, gather(&want))
	require.NoError(t, err)
	usage, err := c.replicas().Complete(t.Context(), deploymentName, r, request, gather(&got))
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, wantUsage, usage)

	// An error of the engine is returned unchanged.
	_, err = c.replicas().Complete(t.Context(), deploymentName, r,
		engines.CompletionRequest{Prompt: strings.Repeat("x", 600), MaxTokens: 1}, gather(&got))
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	require.Contains(t, err.Error(), "prompt")

	// A removed replica does not respond.
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.RemoveReplica{ID: r.ID, Reason: "scaled down"}))
	late := time.After(waitTimeout)
	for domain.CodeOf(err) != domain.Unavailable {
		select {
		case <-late:
			require.FailNow(t, "it still responds")
		default:
			_, err = c.replicas().Complete(t.Context(), deploymentName, r, request, gather(&got))
		}
	}
}

func TestReplicaOfAnAddon(t *testing.T) {
	c := startWithInputs(t)
	first := 0
	c.agent("n1", recordFirst(&first))
	c.startJob("n1")
	c.reaches(domain.JobCompletedState)
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.CreateDeployment{
		DeploymentSpec: domain.DeploymentSpec{BaseModel: string(outputName), MinReplicaCount: 1}}))
	r := c.serving(c.placeReplica("n1").ID)
	var tuned, base string
	into := func(s *string) func(engines.Chunk) error {
		return func(chunk engines.Chunk) error { *s += chunk.Text; return nil }
	}
	_, err := c.replicas().Complete(t.Context(), deploymentName, r,
		engines.CompletionRequest{Prompt: "go", MaxTokens: 20}, into(&tuned))
	require.NoError(t, err)
	model, err := simulated.New(simulated.Options{Seed: 7}).Completer.Load(t.Context(), engines.ModelFiles{})
	require.NoError(t, err)
	_, err = model.Complete(t.Context(), engines.CompletionRequest{Prompt: "go", MaxTokens: 20}, into(&base))
	require.NoError(t, err)
	require.NotEmpty(t, tuned)
	require.NotEqual(t, base, tuned, "the adapter was loaded with its base")
}

// TestOverwrittenWeightsAreNotServed checks that a replica fails when a model's file was
// overwritten with other bytes of the same size, because signed upload URLs stay valid for hours.
func TestOverwrittenWeightsAreNotServed(t *testing.T) {
	c := startWithInputs(t)
	first := 0
	c.agent("n1", recordFirst(&first))
	c.startJob("n1")
	c.reaches(domain.JobCompletedState)
	model, _ := c.world.View().Models.Get(outputName)
	for name, size := range model.State.Files.Sizes {
		c.put(model.State.Files.Prefix+name, []byte(strings.Repeat("x", int(size))))
	}
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.CreateDeployment{
		DeploymentSpec: domain.DeploymentSpec{BaseModel: string(outputName), MinReplicaCount: 1}}))
	c.placeReplica("n1")
	d := c.untilDeployment("the replica is removed", func(d domain.Deployment) bool {
		return d.ReplicaSeq == 1 && len(d.Replicas) == 0
	})
	require.Equal(t, 1, d.Failures)
}

func TestReplicaFails(t *testing.T) {
	c := startWithInputs(t)
	c.agent("n1", simulated.New(simulated.Options{Fault: func(a simulated.Action) error {
		if a.Name == simulated.LoadModel {
			return errors.New("not enough memory")
		}
		return nil
	}}))
	c.deploy("n1")
	d := c.untilDeployment("the replica is removed", func(d domain.Deployment) bool {
		return d.ReplicaSeq == 1 && len(d.Replicas) == 0
	})
	require.Equal(t, 1, d.Failures)
}

// A brittle model reports a failure when the test triggers the failure.
type brittle struct {
	engines.Completer
	engines.Model
	breaks chan error
}

func (b brittle) Load(ctx context.Context, files engines.ModelFiles) (engines.Model, error) {
	var err error
	b.Model, err = b.Completer.Load(ctx, files)
	return b, err
}

func (b brittle) Failed() <-chan error { return b.breaks }

// TestModelOfAReplicaFails checks that a replica fails when its loaded model reports a failure.
func TestModelOfAReplicaFails(t *testing.T) {
	c := startWithInputs(t)
	engine, breaks := simulated.New(simulated.Options{}), make(chan error, 1)
	engine.Completer = brittle{Completer: engine.Completer, breaks: breaks}
	c.agent("n1", engine)
	c.serving(c.deploy("n1").ID)
	breaks <- errors.New("the server of the model ended")
	d := c.untilDeployment("the replica is removed", func(d domain.Deployment) bool {
		return d.ReplicaSeq == 1 && len(d.Replicas) == 0
	})
	require.Equal(t, 1, d.Failures)
}

// TestReplicaAfterRestart checks that a replica that an earlier run of the agent loaded is removed.
func TestReplicaAfterRestart(t *testing.T) {
	c := startWithInputs(t)
	dir := t.TempDir()
	kill := c.child("n1", dir, 1)
	r := c.serving(c.deploy("n1").ID)
	kill()
	c.child("n1", dir, 1)
	c.untilDeployment("it is taken out of service", func(d domain.Deployment) bool {
		_, there := d.Replicas[r.ID]
		return !there
	})
	row, _ := c.world.View().Deployments.Get(deploymentName)
	require.Zero(t, row.State.Failures, "it was ready before: no failure of the model")
}

// TestCompletionStops checks that the engine stops when the client disconnects or its
// callback returns an error.
func TestCompletionStops(t *testing.T) {
	for name, one := range map[string]struct {
		cancel bool
		err    error
	}{"closed": {true, context.Canceled}, "broken": {false, errors.New("broken pipe")}} {
		t.Run(name, func(t *testing.T) {
			c := startWithInputs(t)
			engine := simulated.New(simulated.Options{TokenTime: func(token int) time.Duration {
				if token == 5 {
					return time.Hour
				}
				return 0
			}})
			count := &counted{Completer: engine.Completer, ended: make(chan struct{}, 1)}
			engine.Completer = count
			c.agent("n1", engine)
			r := c.serving(c.deploy("n1").ID)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			pieces := 0
			_, err := c.replicas().Complete(ctx, deploymentName, r,
				engines.CompletionRequest{MaxTokens: 100, IgnoreEOS: true}, func(engines.Chunk) error {
					pieces++
					if pieces == 4 && one.cancel {
						cancel()
					} else if pieces == 4 {
						return one.err
					}
					return nil
				})
			require.ErrorIs(t, err, one.err)
			c.wait("the generation ends", count.ended)
			require.Zero(t, count.active.Load())
		})
	}
}

// TestEngineReceivesSettingsOfADeployment checks that the engine receives the speculation and
// context length of a deployment.
func TestEngineReceivesSettingsOfADeployment(t *testing.T) {
	c := startWithInputs(t)
	engine := simulated.New(simulated.Options{})
	count := &counted{Completer: engine.Completer}
	engine.Completer = count
	c.agent("n1", engine)
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.CreateDeployment{
		DeploymentSpec: domain.DeploymentSpec{
			BaseModel: string(modelName), MinReplicaCount: 1, NgramSpeculationLength: 3, DraftTokenCount: 4,
			MaxContextLength: 64}}))
	c.serving(c.placeReplica("n1").ID)
	require.Equal(t, 64, count.files.Load().ContextLength)
	require.Equal(t, engines.SpeculationMode{NgramLength: 3, Tokens: 4}, count.files.Load().Speculation)
}

// TestReplicasHaveSeparateDevices checks that replicas on one node do not share devices.
func TestReplicasHaveSeparateDevices(t *testing.T) {
	c := startWithInputs(t)
	engine := simulated.New(simulated.Options{})
	count := &counted{Completer: engine.Completer}
	engine.Completer = count
	c.agent("n1", engine)
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.CreateDeployment{
		DeploymentSpec: domain.DeploymentSpec{
			BaseModel: string(modelName), MinReplicaCount: 2, AcceleratorCount: 1,
			AcceleratorType: "VENDOR_A_L4_24GB"}}))
	for index := range 2 {
		c.serving(c.placeReplica("n1").ID)
		require.Equal(t, []engines.Device{{Type: "VENDOR_A_L4_24GB", Index: index}}, count.files.Load().Devices)
	}
}

// TestSlowReader checks that a slow reader receives every chunk, and does not slow down the engine.
func TestSlowReader(t *testing.T) {
	c := startWithInputs(t)
	engine := simulated.New(simulated.Options{ContextLength: 4096})
	count := &counted{Completer: engine.Completer, ended: make(chan struct{}, 1)}
	engine.Completer = count
	c.agent("n1", engine)
	r := c.serving(c.deploy("n1").ID)
	pieces := 0
	usage, err := c.replicas().Complete(t.Context(), deploymentName, r,
		engines.CompletionRequest{MaxTokens: 4000, IgnoreEOS: true}, func(engines.Chunk) error {
			if pieces == 0 { // the engine finishes while the reader still handles the first chunk
				c.wait("the generation ends", count.ended)
			}
			pieces++
			return nil
		})
	require.NoError(t, err)
	require.Equal(t, 4000, pieces)
	require.Equal(t, 4000, usage.CompletionTokens)
}

func TestDeadNode(t *testing.T) {
	c := startWithInputs(t)
	began := time.Now()
	none := func(engines.Chunk) error { return nil }
	_, err := c.replicas().Complete(t.Context(), deploymentName, domain.Replica{ID: "r1", Node: nodeName("n9")},
		engines.CompletionRequest{MaxTokens: 1}, none)
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	require.Less(t, time.Since(began), 5*time.Second, "a missing node is detected immediately")

	kill := c.child("n1", t.TempDir(), 1)
	r := c.serving(c.deploy("n1").ID)
	// The process of the engine is killed between two chunks.
	replicas := c.replicas()
	replicas.Timeout = 200 * time.Millisecond
	_, err = replicas.Complete(t.Context(), deploymentName, r,
		engines.CompletionRequest{MaxTokens: 100, IgnoreEOS: true}, func(engines.Chunk) error {
			kill()
			return nil
		})
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	require.Contains(t, err.Error(), "stopped responding")
}

// TestLostMessage checks that a lost message of a stream is an error, never a gap in the text.
func TestLostMessage(t *testing.T) {
	for name, seqs := range map[string][]uint64{"gap": {1, 3}, "repeated": {1, 1}, "not from the start": {2}} {
		t.Run(name, func(t *testing.T) {
			c := start(t)
			node := c.connectNode("n1")
			_, err := node.Subscribe(protocol.CompleteSubject("n1"), func(m *nats.Msg) {
				for _, seq := range seqs {
					data, _ := json.Marshal(protocol.CompletionMessage{Version: protocol.Version, Seq: seq,
						Chunks: []engines.Chunk{{Text: "a"}}, Done: seq == 3})
					_ = node.Publish(m.Reply, data)
				}
			})
			require.NoError(t, err)
			require.NoError(t, node.Flush())
			text := ""
			_, err = c.replicas().Complete(t.Context(), deploymentName, domain.Replica{ID: "r1", Node: nodeName("n1")},
				engines.CompletionRequest{},
				func(chunk engines.Chunk) error { text += chunk.Text; return nil })
			require.Equal(t, domain.Unavailable, domain.CodeOf(err))
			require.Contains(t, err.Error(), "lost")
			require.LessOrEqual(t, len(text), 1)
		})
	}
}

// TestRequestTooLargeForAReplica checks that a request that is too large for a message is refused
// with the limit.
func TestRequestTooLargeForAReplica(t *testing.T) {
	c := start(t)
	for _, bytes := range []int{protocol.MaxMessage, 4 << 20} {
		_, err := c.replicas().Complete(t.Context(), deploymentName, domain.Replica{ID: "r1", Node: nodeName("n1")},
			engines.CompletionRequest{Prompt: strings.Repeat("a", bytes)}, func(engines.Chunk) error { return nil })
		var failure *domain.Error
		require.ErrorAs(t, err, &failure)
		require.Equal(t, domain.OutOfRange, failure.Code)
		require.Equal(t, engines.RequestTooLarge, failure.Reason)
		require.Contains(t, failure.Message, "786432 bytes")
	}
}
