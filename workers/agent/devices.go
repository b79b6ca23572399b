package agent

import (
	"context"
	"maps"
	"sync"

	"anneal/domain"
	"anneal/engines"
)

// devices assigns the accelerators of the node to allocations. An allocation in the log only has a
// number of devices; the agent chooses which. It does not choose a device that has failed, until
// the device is restored: see deviceWatch.
type devices struct {
	mu    sync.Mutex
	all   []engines.Device
	state map[engines.Device]*deviceState
	slots map[domain.DeviceSlot]*deviceSlot // devices that are shared, by slot; see domain.DeviceShare
	// closed, to wake allocations that wait for devices, and replaced when a device is released or
	// restored
	freed chan struct{}
}

// deviceState is the state of one device.
type deviceState struct {
	used    bool
	users   []deviceUser // allocations that use the device; several when they share it; empty until use is called
	failure string       // why the device must not be used; "" when it works
	reading *reading     // last values that the driver reported; nil when they are unknown
}

// A deviceUser is an allocation that uses a device.
type deviceUser struct {
	id   string
	lost func(error) // called with the reason when the device has failed
}

// A deviceSlot is a slot (see domain.DeviceShare) that allocations use, with the device to which
// the slot is bound.
type deviceSlot struct {
	device engines.Device
	milli  int // thousandths of the device that the allocations in the slot use
	users  int
}

func newDevices(all []engines.Device) *devices {
	d := &devices{all: all, state: map[engines.Device]*deviceState{},
		slots: map[domain.DeviceSlot]*deviceSlot{}, freed: make(chan struct{})}
	for _, one := range all {
		d.state[one] = &deviceState{}
	}
	return d
}

// acquire waits for the wanted number of devices of each type and returns them. It has to wait when
// work that is being stopped still uses devices that the log has already allocated to other work.
// release is never nil.
func (d *devices) acquire(
	ctx context.Context, wanted map[string]int,
) (acquired []engines.Device, release func(), err error) {
	for {
		acquired, freed := d.try(wanted)
		if freed == nil {
			return acquired, sync.OnceFunc(func() { d.release(acquired) }), nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, func() {}, domain.Errorf(domain.Unavailable,
				"other work did not release the allocated accelerators in time: %v", context.Cause(ctx))
		}
	}
}

// try acquires the wanted devices if all are free, and then returns nil for freed. Otherwise it
// returns a channel that is closed when devices are released or restored, after which the caller
// tries again.
func (d *devices) try(wanted map[string]int) (acquired []engines.Device, freed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := maps.Clone(wanted)
	for _, one := range d.all {
		if s := d.state[one]; left[one.Type] > 0 && !s.used && s.failure == "" {
			left[one.Type]--
			acquired = append(acquired, one)
		}
	}
	for _, missing := range left {
		if missing > 0 {
			return nil, d.freed
		}
	}
	for _, one := range acquired {
		d.state[one].used = true
	}
	return acquired, nil
}

func (d *devices) release(released []engines.Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range released {
		s := d.state[one]
		s.used, s.users = false, nil
	}
	d.wake()
}

func (d *devices) wake() {
	close(d.freed)
	d.freed = make(chan struct{})
}

// use records which allocation uses acquired devices. When one of them fails, or has failed
// already, lost is called in its own goroutine.
func (d *devices) use(acquired []engines.Device, id string, lost func(error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range acquired {
		s := d.state[one]
		s.users = append(s.users, deviceUser{id, lost})
		if s.failure != "" {
			go lost(deviceError(one, s.failure))
		}
	}
}

// fail marks a device as failed and calls the lost functions of its users. It returns false if the
// device was already marked.
func (d *devices) fail(device engines.Device, reason string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.state[device]
	if s.failure != "" {
		return false
	}
	s.failure = reason
	for _, user := range s.users {
		go user.lost(deviceError(device, reason))
	}
	return true
}

// restore makes a failed device usable again. Allocations can get it once its former users have
// released it.
func (d *devices) restore(device engines.Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state[device].failure = ""
	d.wake()
}
