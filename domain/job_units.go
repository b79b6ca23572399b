package domain

import (
	"maps"
	"slices"
)

// Units returns in what the queue of jobs counts resources: the accelerator type with the most
// accelerators, of several the first by name, and their number; without accelerators, "" and the
// cores, rounded up.
func (r Resources) Units() (accelerator string, units int64) {
	for _, t := range slices.Sorted(maps.Keys(r.Accelerators)) {
		if n := int64(r.Accelerators[t]); n > units {
			accelerator, units = t, n
		}
	}
	if accelerator == "" {
		units = (r.CPUMilli + 999) / 1000
	}
	return accelerator, units
}
