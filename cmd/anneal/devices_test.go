package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// imitatedDriver is a program nvidia-smi that lists devices and prints their states from a file.
type imitatedDriver struct {
	t   *testing.T
	dir string
}

func newImitatedDriver(t *testing.T, devices int) imitatedDriver {
	d := imitatedDriver{t, t.TempDir()}
	var list strings.Builder
	for i := range devices {
		fmt.Fprintf(&list, "%d, GPU-%d, NVIDIA L4, 23034 MiB\n", i, i)
	}
	d.write("list", list.String(), 0o600)
	d.write("nvidia-smi", "#!/bin/sh\ncase \"$1\" in\n*temperature*) . "+d.dir+"/state ;;\n"+
		"*) cat "+d.dir+"/list ;;\nesac\n", 0o700)
	d.states(0, 0, 0, 0)
	return d
}

// write replaces a file at once, so that no reader sees a part of it.
func (d imitatedDriver) write(name, text string, mode os.FileMode) {
	d.t.Helper()
	require.NoError(d.t, os.WriteFile(filepath.Join(d.dir, "new"), []byte(text), mode))
	require.NoError(d.t, os.Rename(filepath.Join(d.dir, "new"), filepath.Join(d.dir, name)))
}

// does sets the shell command that nvidia-smi executes to print the states.
func (d imitatedDriver) does(command string) { d.write("state", command+"\n", 0o600) }

// states sets the number of ECC errors of each device.
func (d imitatedDriver) states(errors ...int) {
	var text strings.Builder
	for i, n := range errors {
		fmt.Fprintf(&text, "echo 'GPU-%d, %d, 7, 1024, 23034, %d, No'\n", i, 40+i, n)
	}
	d.does(text.String())
}

// top returns what `anneal node top -o json` prints of a node.
func (f *fleet) top(node string) (found object) {
	f.t.Helper()
	var nodes []object
	require.NoError(f.t, json.Unmarshal([]byte(f.run("node", "top", "--data", f.dir, "-o", "json").ok(f.t)), &nodes))
	for _, one := range nodes {
		if one["name"] == "accounts/system/nodes/"+node {
			found = one
		}
	}
	return found
}

// health returns the health of the devices of a node.
func (f *fleet) health(node string) (all []any) {
	f.t.Helper()
	devices, _ := f.top(node)["devices"].([]any)
	for _, device := range devices {
		all = append(all, device.(object)["health"])
	}
	return all
}

// deviceOf returns the index of the device that an allocation uses, -1 without one.
func (f *fleet) deviceOf(node, allocation string) int {
	f.t.Helper()
	devices, _ := f.top(node)["devices"].([]any)
	for i, device := range devices {
		if device.(object)["allocation"] == allocation {
			return i
		}
	}
	return -1
}

// TestDevicesFailOneByOne fails devices of a node one after the other: their work moves without a
// failure, the other devices serve without a failed request, nothing new is placed on the failed
// devices, and they are used when they are healthy again. Unreadable states change nothing.
func TestDevicesFailOneByOne(t *testing.T) {
	f := newFleet(t)
	user, recorder, driver := f.user(), f.tail(), newImitatedDriver(t, 4)
	const device, node = "VENDOR_A_L4_24GB", "accounts/system/nodes/gpu"
	const deployment, job = "accounts/default/deployments/d", "accounts/default/supervisedFineTuningJobs/long"
	// A command for speech makes the agent detect devices, which the embedded engine does not use.
	f.workIn([]string{"PATH=" + driver.dir + ":" + os.Getenv("PATH"), "CUDA_VISIBLE_DEVICES=0,1,2,3"}, "gpu",
		"--check-devices", "200ms", "--speech", "openai", "--speech-command", "true {port} {dir}")
	eventually(t, "the devices are read", func() bool {
		return fmt.Sprint(f.health("gpu")) == "[HEALTHY HEALTHY HEALTHY HEALTHY]"
	})
	user.must(http.MethodPost, "/deployments?deploymentId=d", object{"baseModel": baseModel, "minReplicaCount": 2,
		"maxReplicaCount": 2, "acceleratorType": device, "acceleratorCount": 1})
	ready := func() {
		t.Helper()
		eventually(t, "two replicas are ready", func() bool {
			return at(user.get("/deployments/d"), "replicaStats.readyReplicaCount") == 2.0
		})
	}
	ready()
	load := loadCompletions(user, "d", 2)
	defer load.end()
	user.dataset("codes", 100)
	user.job("long", "codes", 400) // it uses a device until the end of the test
	recorder.awaitEvent(t, job, "supervisedFineTuningJob.checkpointed.v1", 1)
	used := f.deviceOf("gpu", job+"@1")
	require.Contains(t, []int{0, 1, 2, 3}, used)

	errors := []int{0, 0, 0, 0}
	errors[used] = 2
	driver.states(errors...)
	requeued := recorder.awaitEvent(t, job, "supervisedFineTuningJob.requeued.v1", 1)
	require.Equal(t, false, requeued.data["counted"], "a failed device is no failure of the job")
	require.Contains(t, requeued.data["reason"], fmt.Sprintf("device %d (%s) of the node failed: 2 uncorrected ECC", used,
		device))
	registered := recorder.awaitEvent(t, node, "node.registered.v1", 2)
	require.Contains(t, fmt.Sprint(registered.data["failedDevices"]), "2 uncorrected ECC errors")
	require.Contains(t, f.run("node", "get", "gpu", "--data", f.dir).ok(t), "2 uncorrected ECC errors")
	require.Equal(t, "FAILED", f.health("gpu")[used])
	require.Contains(t, f.run("node", "top", "--data", f.dir).ok(t), "FAILED")
	recorder.awaitEvent(t, job, "supervisedFineTuningJob.started.v1", 2)
	eventually(t, "the job runs on another device", func() bool { return f.deviceOf("gpu", job+"@2") >= 0 })
	require.NotEqual(t, used, f.deviceOf("gpu", job+"@2"))
	require.Equal(t, -1, f.deviceOf("gpu", job+"@1"))
	load.more(10)
	require.Zero(t, count(kinds(recorder.all(), deployment), "replica.removed.v1"), "the other devices go on")

	// The device of a replica fails: nothing is free for the replica, until the first device returns.
	errors[f.deviceOf("gpu", deployment+"#r1")] = 1
	driver.states(errors...)
	removed := recorder.awaitEvent(t, deployment, "replica.removed.v1", 1)
	require.Equal(t, false, removed.data["failed"])
	require.Equal(t, 2, strings.Count(fmt.Sprint(f.health("gpu")), "FAILED"))
	load.more(10)
	for _, unreadable := range []string{"exec sleep 1000", "echo '<html>'", "exit 9"} {
		driver.does(unreadable)
		load.more(10)
	}
	errors[used] = 0
	driver.states(errors...)
	ready()
	require.Equal(t, used, f.deviceOf("gpu", deployment+"#r3"))
	load.more(10)
	load.end()
	require.Zero(t, f.workers["gpu"].end())
	require.Zero(t, f.end())
}
