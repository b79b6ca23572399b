package agent

import (
	"context"
	"slices"
	"sync"

	"anneal/domain"
	"anneal/engines"
)

// acquireShare waits for a share of a device for an allocation. id is the allocation's ID and milli
// the thousandths of a device that it gets. The first allocation in a slot binds the slot to a free
// device, which all allocations of the slot then share.
//
// Replicas that are being stopped may still use the device, so acquireShare waits until the shares
// of all replicas that still run fit into the device's memory. It does not use a device that has
// failed. release is never nil.
func (d *devices) acquireShare(
	ctx context.Context, id string, slot domain.DeviceSlot, milli int,
) (acquired []engines.Device, release func(), err error) {
	for {
		device, freed := d.tryShare(slot, milli)
		if freed == nil {
			return []engines.Device{device}, sync.OnceFunc(func() { d.releaseShare(id, slot, milli) }), nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, func() {}, domain.Errorf(domain.Unavailable,
				"other work did not release the allocated share of an accelerator in time: %v", context.Cause(ctx))
		}
	}
}

// tryShare acquires a share if it is free, and then returns nil for freed. Otherwise it returns a
// channel that is closed when devices are released or restored, after which the caller tries again.
func (d *devices) tryShare(slot domain.DeviceSlot, milli int) (device engines.Device, freed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	bound := d.slots[slot]
	if bound == nil {
		at := slices.IndexFunc(d.all, func(one engines.Device) bool {
			s := d.state[one]
			return one.Type == slot.Type && !s.used && s.failure == ""
		})
		if at < 0 {
			return device, d.freed
		}
		bound = &deviceSlot{device: d.all[at]}
		d.slots[slot], d.state[bound.device].used = bound, true
	}
	if bound.milli+milli > domain.WholeDevice || d.state[bound.device].failure != "" {
		return device, d.freed
	}
	bound.milli, bound.users = bound.milli+milli, bound.users+1
	return bound.device, nil
}

// releaseShare releases the share of an allocation. When it was the last one in the slot, the
// device is free again.
func (d *devices) releaseShare(id string, slot domain.DeviceSlot, milli int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	bound := d.slots[slot]
	s := d.state[bound.device]
	s.users = slices.DeleteFunc(s.users, func(user deviceUser) bool { return user.id == id })
	if bound.milli, bound.users = bound.milli-milli, bound.users-1; bound.users == 0 {
		delete(d.slots, slot)
		s.used, s.users = false, nil
	}
	d.wake()
}
