package domain

import (
	"maps"
	"slices"
)

// Units returns the size of a request as the queue of jobs counts it: the accelerator type with the
// most accelerators, and their number. Of types with the same number, it returns the first by name.
// Without accelerators, it returns "" and the number of CPU cores, rounded up.
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
