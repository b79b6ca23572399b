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
	// DefaultCheckDevices is the default time between two readings of the devices.
	DefaultCheckDevices = 10 * time.Second
	checkTimeout        = 20 * time.Second // limit of one reading
	firstCheck          = 5 * time.Second  // limit of the wait for a reading before the first heartbeat

	// confirmations is how many consecutive readings must miss a device before it has failed, or must
	// find a failed device healthy before it is used again.
	confirmations = 3
)

// A deviceWatch reads the state of the devices, and withdraws the failed ones from the node. A
// failed reading withdraws no device.
type deviceWatch struct {
	agent   *Agent
	uuids   map[engines.Device]string
	read    func(context.Context, []string) (map[string]reading, error)
	timeout time.Duration
	pending chan outcome           // receives the result of a reading that has not ended; nil without one
	missed  map[engines.Device]int // consecutive readings without the device
	inOrder map[engines.Device]int // consecutive readings in which a failed device is healthy
}

// An outcome is the result of a reading.
type outcome struct {
	readings map[string]reading
	err      error
}

func newDeviceWatch(a *Agent, all []driverDevice) *deviceWatch {
	w := &deviceWatch{agent: a, uuids: map[engines.Device]string{}, read: readDriver, timeout: checkTimeout,
		missed: map[engines.Device]int{}, inOrder: map[engines.Device]int{}}
	for _, one := range all {
		w.uuids[one.Device] = one.uuid
	}
	return w
}

// watchDevices starts the check of the devices, and waits for the first result, so that no work
// starts on a device that has already failed.
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

// run checks the devices until ctx is done. It calls ready after the first check.
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

// take returns the next reading. If the driver hangs, a reading may never end: take then returns
// errNoReading after the timeout, and starts no other reading before the pending one has ended.
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

// check reads the devices once. It removes the devices that have failed from the capacity of the node
// and stops the work that uses them. It restores devices that are healthy again.
func (w *deviceWatch) check(ctx context.Context) {
	a := w.agent
	readings, err := w.take(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		a.log.Warn("state of the accelerators unknown", "error", err)
	}
	reached := slices.ContainsFunc(a.devices.all, func(device engines.Device) bool {
		_, listed := readings[w.uuids[device]]
		return listed
	})
	for _, device := range a.devices.all {
		r, listed := readings[w.uuids[device]]
		switch {
		case !reached: // nothing is known about any device
			delete(w.inOrder, device)
			a.devices.setReading(device, nil)
			continue
		case listed:
			delete(w.missed, device)
			a.devices.setReading(device, &r)
		default:
			a.devices.setReading(device, nil)
			if w.missed[device]++; w.missed[device] >= confirmations {
				r.failure = "nvidia-smi does not list it any more"
			}
		}
		w.update(device, r, listed)
	}
}

// update withdraws a device that has failed, and restores one that is healthy again.
func (w *deviceWatch) update(device engines.Device, r reading, listed bool) {
	a := w.agent
	if r.failure != "" || !listed {
		delete(w.inOrder, device)
		if r.failure != "" && a.devices.fail(device, r.failure) {
			a.log.Error("accelerator failed", "index", device.Index, "type", device.Type, "reason", r.failure)
			a.setFailedDevices()
		}
		return
	}
	if !a.devices.hasFailed(device) {
		return
	}
	if w.inOrder[device]++; w.inOrder[device] >= confirmations {
		delete(w.inOrder, device)
		a.devices.restore(device)
		a.log.Info("accelerator is healthy again", "index", device.Index, "type", device.Type)
		a.setFailedDevices()
	}
}

// setFailedDevices sets the capacity of the node and its failed devices, and reports them.
func (a *Agent) setFailedDevices() {
	working, failed := a.devices.working()
	a.mu.Lock()
	a.spec.Capacity.Accelerators, a.spec.FailedDevices = working, failed // a heartbeat may share the former ones
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

// working returns the number of devices of each type that can be used, and the failed devices.
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

// status returns the state of the devices for a heartbeat.
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

// reasonDeviceFailed is the reason of the error of work whose device has failed. It is not a failure
// of the work.
const reasonDeviceFailed = "DEVICE_FAILED"

func deviceError(device engines.Device, reason string) error {
	return &domain.Error{Code: domain.Unavailable, Reason: reasonDeviceFailed,
		Message: fmt.Sprintf("device %d (%s) of the node failed: %s", device.Index, device.Type, reason)}
}

// isDeviceFailure reports whether work has ended because its device has failed.
func isDeviceFailure(err error) bool {
	var failure *domain.Error
	return errors.As(err, &failure) && failure.Reason == reasonDeviceFailed
}
