package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

const (
	// DefaultCheckDevices is the default of Options.CheckDevices, the interval at which the state of
	// the devices is read.
	DefaultCheckDevices = 10 * time.Second
	checkTimeout        = 20 * time.Second // maximum time for reading the state of all devices once
	firstCheck          = 5 * time.Second  // how long the first heartbeat waits until the state of the devices was read

	// confirmations is the number of consecutive readings that must lack a device before it counts as
	// failed. As many consecutive readings must find a failed device healthy before it is used again.
	confirmations = 3
)

// A deviceWatch reads the state of the devices regularly, and withdraws those that have failed.
// When no device can be read, it withdraws none.
type deviceWatch struct {
	agent   *Agent
	uuids   map[engines.Device]string
	read    func(context.Context, []string) (map[string]reading, error)
	timeout time.Duration
	pending chan outcome           // receives the outcome of the reading in progress; nil when there is none
	missed  map[engines.Device]int // number of consecutive readings in which the device was missing
	healthy map[engines.Device]int // number of consecutive readings in which a failed device was healthy
}

// An outcome is the result of reading the state of all devices once.
type outcome struct {
	readings map[string]reading
	err      error
}

func newDeviceWatch(a *Agent, all []driverDevice) *deviceWatch {
	w := &deviceWatch{agent: a, uuids: map[engines.Device]string{}, read: readDriver, timeout: checkTimeout,
		missed: map[engines.Device]int{}, healthy: map[engines.Device]int{}}
	for _, one := range all {
		w.uuids[one.Device] = one.uuid
	}
	return w
}

// watchDevices starts the regular check of the devices. It waits for the first result, for at most
// firstCheck, so that no work starts on a device that has failed.
func (a *Agent) watchDevices(ctx context.Context) {
	if a.watch == nil {
		return
	}
	checked, ready := context.WithTimeout(ctx, firstCheck)
	go func() {
		defer ready()
		a.watch.run(ctx, ready)
	}()
	<-checked.Done()
}

// run checks the devices regularly until ctx is done. It calls ready after the first check.
func (w *deviceWatch) run(ctx context.Context, ready func()) {
	again := time.NewTicker(w.agent.options.CheckDevices)
	defer again.Stop()
	for {
		w.check(ctx)
		ready()
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

var errNoReading = errors.New("nvidia-smi has not exited after it was killed, so the driver may hang: " +
	"if this repeats, cordon the node and restart it")

// take returns the next reading. If the driver hangs, a reading may never end. Then take returns
// errNoReading after checkTimeout, and begins no other reading before that one has ended.
func (w *deviceWatch) take(ctx context.Context) (map[string]reading, error) {
	if w.pending == nil {
		pending, uuids := make(chan outcome, 1), slices.Sorted(maps.Values(w.uuids))
		w.pending = pending
		go func() {
			limited, cancel := context.WithTimeout(ctx, w.timeout)
			defer cancel()
			readings, err := w.read(limited, uuids)
			pending <- outcome{readings, err}
		}()
	}
	limit := time.NewTimer(w.timeout + 2*afterKill)
	defer limit.Stop()
	select {
	case one := <-w.pending:
		w.pending = nil
		return one.readings, one.err
	case <-limit.C:
		return nil, errNoReading
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// check reads the state of the devices once. Devices that have failed are removed from the node's
// capacity, and the work that uses them is stopped. Devices that are healthy again are added.
func (w *deviceWatch) check(ctx context.Context) {
	a := w.agent
	readings, err := w.take(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		a.log.Warn("cannot read the state of the accelerators: they stay in use, and a failure of one is not noticed "+
			"until a reading succeeds", "error", err)
	}
	reached := slices.ContainsFunc(a.devices.all, func(device engines.Device) bool {
		_, listed := readings[w.uuids[device]]
		return listed
	})
	for _, device := range a.devices.all {
		r, listed := readings[w.uuids[device]]
		switch {
		case !reached: // no device could be read, so nothing is known about this one
			delete(w.healthy, device)
			a.devices.setReading(device, nil)
			continue
		case listed:
			delete(w.missed, device)
			a.devices.setReading(device, &r)
		default:
			a.devices.setReading(device, nil)
			if w.missed[device]++; w.missed[device] >= confirmations {
				r.failure = "nvidia-smi no longer lists the device"
			}
		}
		w.update(device, r, listed)
	}
}

// update marks a device as failed, or restores it, according to its reading r. listed says whether
// the driver reported the device.
func (w *deviceWatch) update(device engines.Device, r reading, listed bool) {
	a := w.agent
	if r.failure != "" || !listed {
		delete(w.healthy, device)
		if r.failure != "" && a.devices.fail(device, r.failure) {
			a.log.Error("accelerator failed", "index", device.Index, "type", device.Type, "reason", r.failure)
			a.setFailedDevices()
		}
		return
	}
	if !a.devices.hasFailed(device) {
		return
	}
	if w.healthy[device]++; w.healthy[device] >= confirmations {
		delete(w.healthy, device)
		a.devices.restore(device)
		a.log.Info("an accelerator is healthy again and is used for new work", "index", device.Index, "type", device.Type)
		a.setFailedDevices()
	}
}

// setFailedDevices updates the capacity and the failed devices of the node, and sends a heartbeat
// with them.
func (a *Agent) setFailedDevices() {
	working, failed := a.devices.working()
	a.mu.Lock()
	// new values, because a heartbeat in progress may use the old ones
	a.spec.Capacity.Accelerators, a.spec.FailedDevices = working, failed
	a.mu.Unlock()
	a.requestHeartbeat()
}

func (d *devices) setReading(device engines.Device, r *reading) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state[device].reading = r
}

func (d *devices) hasFailed(device engines.Device) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state[device].failure != ""
}

// working returns the number of devices of each type that work, and the devices that have failed.
func (d *devices) working() (counts map[string]int, failed []domain.FailedDevice) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.all {
		if reason := d.state[one].failure; reason != "" {
			failed = append(failed, domain.FailedDevice{Type: one.Type, Index: one.Index, Reason: reason})
			continue
		}
		if counts == nil {
			counts = map[string]int{}
		}
		counts[one.Type]++
	}
	return counts, failed
}

// status returns the state of each device for a heartbeat.
func (d *devices) status() (list []protocol.Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.all {
		s := d.state[one]
		device := protocol.Device{Type: one.Type, Index: one.Index, Health: domain.DeviceUnknown}
		for _, user := range s.users {
			device.Allocation = cmp.Or(device.Allocation, user.id)
			if len(s.users) > 1 {
				device.Sharing = append(device.Sharing, user.id)
			}
		}
		if r := s.reading; r != nil {
			device.Health = domain.DeviceHealthy
			device.TemperatureC, device.UtilizationPercent = r.temperature, r.utilization
			device.MemoryUsedMiB, device.MemoryMiB = r.usedMiB, r.memoryMiB
		}
		if s.failure != "" {
			device.Health = domain.DeviceFailed
		}
		list = append(list, device)
	}
	return list
}

// reasonDeviceFailed is the reason of the error of work whose device has failed. The failure does
// not count against the job or deployment.
const reasonDeviceFailed = "DEVICE_FAILED"

func deviceError(device engines.Device, reason string) error {
	return &domain.Error{Code: domain.Unavailable, Reason: reasonDeviceFailed,
		Message: fmt.Sprintf("device %d (%s) of the node failed: %s", device.Index, device.Type, reason)}
}

// isDeviceFailure reports whether err says that a device has failed.
func isDeviceFailure(err error) bool {
	var failure *domain.Error
	return errors.As(err, &failure) && failure.Reason == reasonDeviceFailed
}
