package agent

import (
	"context"
	"maps"
	"slices"
	"sync"

	"anneal/domain"
	"anneal/engines"
)

// devices are the node's accelerators that no replica has. The world counts
// them; which of them a replica gets is decided here.
type devices struct {
	mu    sync.Mutex
	free  []engines.Device
	freed chan struct{} // closed when there are more
}

func newDevices(all []engines.Device) *devices {
	return &devices{free: slices.Clone(all), freed: make(chan struct{})}
}

// take waits for as many devices of each type as are asked for: a replica that
// is on its way out may still have some that the world has given away again.
// give returns them; it is never nil.
func (d *devices) take(ctx context.Context, asked map[string]int) (taken []engines.Device, give func(), err error) {
	for {
		taken, freed := d.try(asked)
		if freed == nil {
			return taken, sync.OnceFunc(func() { d.give(taken) }), nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, func() {}, domain.Errorf(domain.Unavailable, "the accelerators of the replica were not free: %v", context.Cause(ctx))
		}
	}
}

// try takes devices if all are free; otherwise freed is closed when it is worth
// another try.
func (d *devices) try(asked map[string]int) (taken []engines.Device, freed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := maps.Clone(asked)
	var rest []engines.Device
	for _, one := range d.free {
		if left[one.Type] > 0 {
			left[one.Type]--
			taken = append(taken, one)
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
	return taken, nil
}

func (d *devices) give(back []engines.Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free = append(d.free, back...)
	slices.SortFunc(d.free, func(a, b engines.Device) int { return a.Index - b.Index })
	close(d.freed)
	d.freed = make(chan struct{})
}
