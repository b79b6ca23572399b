package agent

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

const l4 = "VENDOR_A_L4_24GB"

// watched returns an agent with three watched devices, GPU-0 to GPU-2. The agent reads the device
// states from readings; while *readings is nil, each reading fails.
func watched(t *testing.T) (a *Agent, readings *map[string]reading) {
	fakeDriver(t, `for i in 0 1 2; do echo "$i, GPU-$i, NVIDIA L4, 23034 MiB"; done`)
	t.Setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
	a, err := New(Options{Node: "n1", URL: "nats://127.0.0.1:1", Dir: t.TempDir(), CheckDevices: time.Second})
	require.NoError(t, err)
	require.NotNil(t, a.watch)
	readings = new(map[string]reading)
	*readings = inOrder()
	a.watch.read = func(context.Context, []string) (map[string]reading, error) {
		if *readings == nil {
			return nil, errors.New("nvidia-smi lists no device")
		}
		return *readings, nil
	}
	return a, readings
}

func inOrder() map[string]reading {
	temperature, memory := 41, 23034
	one := reading{temperature: &temperature, memoryMiB: &memory}
	return map[string]reading{"GPU-0": one, "GPU-1": one, "GPU-2": one}
}

func healths(a *Agent) (all []string) {
	for _, one := range a.devices.status() {
		all = append(all, one.Health)
	}
	return all
}

// TestFailedDeviceIsWithdrawn checks that the failure of a device reduces the capacity of its node
// and states the reason, that the work that uses the device is told, that nothing else uses it, and
// that it is used again when it has been healthy for several readings.
func TestFailedDeviceIsWithdrawn(t *testing.T) {
	a, readings := watched(t)
	a.watch.check(t.Context())
	require.Equal(t, []string{"HEALTHY", "HEALTHY", "HEALTHY"}, healths(a))
	require.Equal(t, 41, *a.devices.status()[0].TemperatureC)

	lost := make(chan error, 1)
	used, release, err := a.devices.acquire(t.Context(), map[string]int{l4: 2})
	require.NoError(t, err)
	a.devices.use(used, "j@1", func(err error) { lost <- err })
	require.Equal(t, "j@1", a.devices.status()[1].Allocation)

	before := a.state()
	(*readings)["GPU-1"] = reading{failure: "2 uncorrected ECC errors"}
	a.watch.check(t.Context())
	a.watch.check(t.Context())
	failure := <-lost
	require.True(t, isDeviceFailure(failure))
	require.ErrorContains(t, failure, "device 1 ("+l4+") of the node failed: 2 uncorrected ECC errors")
	require.Equal(t, map[string]int{l4: 3}, before.Node.Capacity.Accelerators, "a heartbeat that was sent does not change")
	now := a.state()
	require.Equal(t, map[string]int{l4: 2}, now.Node.Capacity.Accelerators)
	require.Equal(t, []domain.FailedDevice{{Type: l4, Index: 1, Reason: "2 uncorrected ECC errors"}},
		now.Node.FailedDevices)
	require.Equal(t, []string{"HEALTHY", "FAILED", "HEALTHY"}, healths(a))
	release()
	free, release, err := a.devices.acquire(t.Context(), map[string]int{l4: 2})
	require.NoError(t, err)
	require.Equal(t, []engines.Device{{Type: l4, Index: 0}, {Type: l4, Index: 2}}, free)
	require.Empty(t, lost, "it is told once")
	release()

	*readings = nil
	a.watch.check(t.Context())
	require.Equal(t, []string{"UNKNOWN", "FAILED", "UNKNOWN"}, healths(a), "a failed device stays failed")
	*readings = inOrder()
	for range confirmations {
		require.Len(t, a.state().Node.FailedDevices, 1, "it may fail again")
		a.watch.check(t.Context())
	}
	require.Empty(t, a.state().Node.FailedDevices)
	require.Equal(t, map[string]int{l4: 3}, a.state().Node.Capacity.Accelerators)
	_, _, err = a.devices.acquire(t.Context(), map[string]int{l4: 3})
	require.NoError(t, err)
}

// TestAFailedDeviceInUseIsNotFreed checks that a device that is healthy again is not given to other
// work before the stale work has released it.
func TestAFailedDeviceInUseIsNotFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevices(engines.NumberDevices(map[string]int{l4: 1}))
		used, release, err := d.acquire(t.Context(), map[string]int{l4: 1})
		require.NoError(t, err)
		require.True(t, d.fail(used[0], "lost"))
		require.False(t, d.fail(used[0], "lost"), "it has failed before")
		var failure error
		d.use(used, "r", func(err error) { failure = err })
		synctest.Wait()
		require.ErrorContains(t, failure, "lost", "it failed before it was used")
		d.restore(used[0])
		var next []engines.Device
		go func() { next, _, _ = d.acquire(t.Context(), map[string]int{l4: 1}) }()
		synctest.Wait()
		require.Nil(t, next)
		release()
		synctest.Wait()
		require.Equal(t, used, next)
	})
}

// TestMissingDevice checks that a device fails when several consecutive readings find the other
// devices but not this one.
func TestMissingDevice(t *testing.T) {
	a, readings := watched(t)
	for range 2 * confirmations { // every second reading finds the device
		delete(*readings, "GPU-2")
		a.watch.check(t.Context())
		require.Equal(t, []string{"HEALTHY", "HEALTHY", "UNKNOWN"}, healths(a))
		*readings = inOrder()
		a.watch.check(t.Context())
	}
	delete(*readings, "GPU-2")
	for range confirmations {
		require.Empty(t, a.state().Node.FailedDevices)
		a.watch.check(t.Context())
	}
	require.Equal(t, "nvidia-smi no longer lists the device", a.state().Node.FailedDevices[0].Reason)
}

// TestUnknownDevicesAreUsed checks that readings that fail or find no device withdraw nothing.
func TestUnknownDevicesAreUsed(t *testing.T) {
	a, readings := watched(t)
	a.watch.check(t.Context())
	for _, none := range []map[string]reading{nil, {}, {"GPU-of another list": {}}} {
		*readings = none
		for range 2 * confirmations {
			a.watch.check(t.Context())
		}
		require.Equal(t, []string{"UNKNOWN", "UNKNOWN", "UNKNOWN"}, healths(a))
		require.Nil(t, a.devices.status()[0].TemperatureC, "an old temperature is not the temperature")
		require.Equal(t, map[string]int{l4: 3}, a.state().Node.Capacity.Accelerators)
	}
}

// TestHangingDriver checks that a reading that never ends makes the state of the devices unknown,
// starts no second reading, and neither delays the first heartbeat for long nor holds a later one.
func TestHangingDriver(t *testing.T) {
	a, readings := watched(t)
	a.watch.check(t.Context())
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		hang := make(chan struct{})
		a.watch.pending = nil
		a.watch.read = func(context.Context, []string) (map[string]reading, error) {
			calls.Add(1)
			<-hang // the reading ignores its context, as a program that the driver blocks does
			return *readings, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		started := time.Now()
		a.watchDevices(ctx)
		require.LessOrEqual(t, time.Since(started), firstCheck)
		time.Sleep(3 * checkTimeout) // in synctest, time passes at once
		require.EqualValues(t, 1, calls.Load())
		require.Equal(t, []string{"UNKNOWN", "UNKNOWN", "UNKNOWN"}, statesOf(a.state()))
		close(hang)
		time.Sleep(checkTimeout)
		require.Equal(t, []string{"HEALTHY", "HEALTHY", "HEALTHY"}, statesOf(a.state()), "it is read again")
		cancel()
		synctest.Wait()
	})
}

func statesOf(heartbeat protocol.Heartbeat) (all []string) {
	for _, one := range heartbeat.Devices {
		all = append(all, one.Health)
	}
	return all
}
