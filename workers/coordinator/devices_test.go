package coordinator_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
	"anneal/projections"
	"anneal/workers/agent"
	"anneal/workers/protocol"
)

const l4 = "VENDOR_A_L4_24GB"

// TestFailedDevice checks that a node whose device fails has less capacity, with the reason, that
// the attempt on the device is queued again without a failure, and that the live status has the
// devices.
func TestFailedDevice(t *testing.T) {
	c := startWithInputs(t)
	node := c.connectNode("n1")
	temperature := 41
	heartbeat := heartbeatOf("a", 1)
	heartbeat.Node.Capacity.Accelerators = map[string]int{l4: 2}
	heartbeat.Devices = []protocol.Device{{Type: l4, TemperatureC: &temperature, Health: domain.DeviceHealthy},
		{Type: l4, Index: 1, Health: "GOOD"}}
	require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeat, &protocol.Assignments{}))
	devices := c.world.View().Live.Devices(nodeName("n1"))
	require.Len(t, devices, 2)
	require.Equal(t, 41, *devices[0].TemperatureC)
	require.Equal(t, domain.DeviceHealthy, devices[0].Health)
	require.Equal(t, domain.DeviceUnknown, devices[1].Health, "no health that the interface does not have")
	c.startJob("n1")

	heartbeat.Number++
	heartbeat.Node.Capacity.Accelerators = map[string]int{l4: 1}
	heartbeat.Node.FailedDevices = []domain.FailedDevice{{Type: l4, Index: 1, Reason: "2 uncorrected ECC errors"}}
	heartbeat.Devices[1].Health = domain.DeviceFailed
	require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeat, &protocol.Assignments{}))
	row, _ := c.world.View().Nodes.Get(nodeName("n1"))
	require.Equal(t, heartbeat.Node.FailedDevices, row.State.FailedDevices)
	require.Equal(t, map[string]int{l4: 1}, row.State.Capacity.Accelerators)
	require.Equal(t, domain.DeviceFailed, c.world.View().Live.Devices(nodeName("n1"))[1].Health)

	report := protocol.Report{Version: protocol.Version, Kind: protocol.ReportFailed, Job: jobName, Attempt: 1,
		CreateTime: c.created(), Preempted: true,
		Error: &protocol.Error{Code: domain.Unavailable, Message: "device 1 failed"}}
	var reply protocol.ReportReply
	require.NoError(t, c.send(node, protocol.ReportSubject("n1"), report, &reply))
	require.Equal(t, protocol.Accepted, reply.Outcome)
	require.Equal(t, domain.JobReQueueingState, c.life().State)
	require.Zero(t, c.life().Failures)
	require.Equal(t, "device 1 failed", c.life().Status.Message)
	report.Kind, report.Error = protocol.ReportWriting, nil
	require.NoError(t, c.send(node, protocol.ReportSubject("n1"), report, &reply))
	require.Equal(t, protocol.Stale, reply.Outcome, "the work that still runs is fenced")
}

// watchedAgent runs an agent whose devices nvidia-smi reports: a script that lists two of them, and
// prints the state that the returned function sets.
func (c *cluster) watchedAgent(node string, engine engines.Engine) (set func(errors0, errors1 string)) {
	dir := c.TempDir()
	set = func(errors0, errors1 string) {
		const fine = ", 41, 7, 1024, 23034, "
		state := "GPU-0" + fine + errors0 + ", No\nGPU-1" + fine + errors1 + ", No\n"
		require.NoError(c, os.WriteFile(filepath.Join(dir, "new"), []byte(state), 0o600))
		require.NoError(c, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "state")))
	}
	set("0", "0")
	script := "#!/bin/sh\ncase \"$1\" in\n*temperature*) cat " + dir + "/state ;;\n" +
		"*) printf '0, GPU-0, NVIDIA L4, 23034 MiB\\n1, GPU-1, NVIDIA L4, 23034 MiB\\n' ;;\nesac\n"
	require.NoError(c, os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(script), 0o755))
	c.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	c.Setenv("CUDA_VISIBLE_DEVICES", "0,1")
	a, err := agent.New(agent.Options{Node: node, Token: "token of " + node, Key: keyOf(c, node), URL: c.server.URL(),
		Dir: c.TempDir(), Engine: engine, Log: testLog, CheckDevices: 50 * time.Millisecond, LeaveWithin: time.Second})
	require.NoError(c, err)
	c.background(a.Run)
	c.ready(node)
	return set
}

// stuckTrainer is a trainer that hangs, as with a device that does not reply, until it is released.
// It then passes on the error of a last checkpoint.
type stuckTrainer struct {
	begun, release chan struct{}
	checkpoint     chan error
}

func (s stuckTrainer) Train(ctx context.Context, r engines.TrainRequest, watch engines.TrainWatcher,
) (engines.TrainResult, error) {
	close(s.begun)
	<-s.release
	s.checkpoint <- watch.Checkpoint(ctx, 10, r.WorkDir)
	return engines.TrainResult{}, ctx.Err()
}

// TestHangingAttemptLeavesItsFailedDevice checks that the job of an attempt whose device fails is
// queued again at once, although its trainer hangs, that the attempt saves nothing any more, and
// that its other device is not used before the trainer has ended.
func TestHangingAttemptLeavesItsFailedDevice(t *testing.T) {
	c := startWithInputs(t)
	stuck := stuckTrainer{make(chan struct{}), make(chan struct{}), make(chan error, 1)}
	release := sync.OnceFunc(func() { close(stuck.release) })
	t.Cleanup(release) // after a failed wait too, the agent's cleanup waits for the trainer
	engine := simulated.New(simulated.Options{Seed: 7})
	engine.Trainer = stuck
	set := c.watchedAgent("n1", engine)
	c.submit()
	c.placeWith("n1", domain.Resources{CPUMilli: 500, MemoryMiB: 16, Accelerators: map[string]int{l4: 2}})
	c.wait("the trainer runs", stuck.begun)
	set("0", "2")
	life := c.reaches(domain.JobReQueueingState)
	require.Zero(t, life.Failures)
	require.Contains(t, life.Status.Message, "device 1 ("+l4+") of the node failed: 2 uncorrected ECC errors")
	c.until("the capacity shrinks", func(v *projections.View) bool {
		row, _ := v.Nodes.Get(nodeName("n1"))
		return row.State.Capacity.Accelerators[l4] == 1
	})

	c.do(domain.Intend(domain.Nodes, nodeName("n1"), domain.ReleaseAllocation{ID: domain.AllocationID(jobName, 1)}),
		domain.Intend(domain.Deployments, deploymentName, domain.CreateDeployment{DeploymentSpec: domain.DeploymentSpec{
			BaseModel: string(modelName), MinReplicaCount: 1, AcceleratorType: l4, AcceleratorCount: 1}}))
	replica := c.placeReplica("n1")
	c.untilDeployment("the replica waits for the device", func(d domain.Deployment) bool {
		return d.Replicas[replica.ID].State == domain.ReplicaInitializing
	})
	release()
	require.Error(t, <-stuck.checkpoint, "what a failed device has computed may be wrong")
	c.serving(replica.ID)
	require.Empty(t, c.life().Checkpoints)
}

// TestReplicaLeavesItsFailedDevice checks that only the replica on the failed device is removed,
// that the failure is not counted as one of its deployment, and that the device is used when it is
// healthy again.
func TestReplicaLeavesItsFailedDevice(t *testing.T) {
	c := startWithInputs(t)
	set := c.watchedAgent("n1", simulated.New(simulated.Options{Seed: 7}))
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.CreateDeployment{DeploymentSpec: domain.DeploymentSpec{
		BaseModel: string(modelName), MinReplicaCount: 2, AcceleratorType: l4, AcceleratorCount: 1}}))
	first := c.serving(c.placeReplica("n1").ID) // the first replica gets device 0
	second := c.serving(c.placeReplica("n1").ID)
	set("2", "0")
	d := c.untilDeployment("the replica is removed", func(d domain.Deployment) bool {
		return len(d.Replicas) == 1
	})
	require.Contains(t, d.Replicas, second.ID)
	require.Zero(t, d.Failures)
	require.Empty(t, d.Status.Message)

	c.do(domain.Intend(domain.Nodes, nodeName("n1"),
		domain.ReleaseAllocation{ID: domain.ReplicaAllocationID(deploymentName, first.ID)}))
	set("0", "0")
	c.until("the device is healthy again", func(v *projections.View) bool {
		row, _ := v.Nodes.Get(nodeName("n1"))
		return len(row.State.FailedDevices) == 0
	})
	c.serving(c.placeReplica("n1").ID)
}
