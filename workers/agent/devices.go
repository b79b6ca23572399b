package agent

import (
	"context"
	"maps"
	"sync"

	"anneal/domain"
	"anneal/engines"
)

// devices holds the node's accelerators and the allocations that use them. The log allocates a number
// of devices to a replica or an attempt, and the agent chooses the devices. A device that has failed
// is not chosen until it is restored: see deviceWatch.
type devices struct {
	mu    sync.Mutex
	all   []engines.Device
	state map[engines.Device]*deviceState
	slots map[domain.DeviceSlot]*deviceSlot // shared devices: see domain.DeviceShare
	freed chan struct{}                     // closed and replaced when devices are released or restored
}

// deviceState is the state of one device.
type deviceState struct {
	used    bool
	users   []deviceUser // several only if they share the device; none until use is called
	failure string       // why the device must not be used; "" when it can be used
	reading *reading     // nil if unknown
}

// A deviceUser is an allocation that uses a device.
type deviceUser struct {
	id   string
	lost func(error) // tells the user that the device has failed
}

// A deviceSlot binds a slot to a device while work uses the slot.
type deviceSlot struct {
	device engines.Device
	milli  int // thousandths in use
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

// acquire waits for the wanted number of devices of each type, because a replica or an attempt that
// is being stopped may still use devices that the log has allocated again. release is never nil.
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
				"the allocated accelerators are still in use: %v", context.Cause(ctx))
		}
	}
}

// try acquires the wanted devices if they are all free, and returns a nil channel. Otherwise it
// returns a channel that is closed when devices are released or restored.
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

// use names the allocation that uses acquired devices. If one of them fails, lost is called in its
// own goroutine, also when it has failed already.
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

// fail withdraws a device, and tells its users. It returns false if the device has failed before.
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

// restore makes a failed device available again, once it is released.
func (d *devices) restore(device engines.Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state[device].failure = ""
	d.wake()
}
