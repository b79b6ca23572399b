package agent

import (
	"context"
	"maps"
	"slices"
	"sync"

	"anneal/domain"
	"anneal/engines"
)

// devices holds the node's accelerators that no replica or attempt uses. The log allocates a number
// of devices to a replica or an attempt, and the agent chooses the devices.
type devices struct {
	mu    sync.Mutex
	free  []engines.Device
	freed chan struct{} // closed and replaced when devices are released
}

func newDevices(all []engines.Device) *devices {
	return &devices{free: slices.Clone(all), freed: make(chan struct{})}
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
// returns a channel that is closed when devices are released.
func (d *devices) try(wanted map[string]int) (acquired []engines.Device, freed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := maps.Clone(wanted)
	var rest []engines.Device
	for _, one := range d.free {
		if left[one.Type] > 0 {
			left[one.Type]--
			acquired = append(acquired, one)
		} else {
			rest = append(rest, one)
		}
	}
	for _, missing := range left {
		if missing > 0 {
			return nil, d.freed
		}
	}
	d.free = rest
	return acquired, nil
}

func (d *devices) release(released []engines.Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free = append(d.free, released...)
	slices.SortFunc(d.free, func(a, b engines.Device) int { return a.Index - b.Index })
	close(d.freed)
	d.freed = make(chan struct{})
}
