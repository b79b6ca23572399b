package schedulers

import (
	"slices"

	"anneal/domain"
	"anneal/schedulers/placement"
)

// slotsOf returns the numbers of the candidate's slots (see domain.DeviceShare) for devices of a
// type, in ascending order.
func (c *Candidate) slotsOf(deviceType string) (numbers []int) {
	for slot := range c.Slots {
		if slot.Type == deviceType {
			numbers = append(numbers, slot.Number)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// left returns the free thousandths of each device of a type, for at most n devices: first of the
// shared devices, in the order of their slots, then of the unused ones.
func (c *Candidate) left(deviceType string, n int) []int64 {
	left := make([]int64, 0, n)
	for _, number := range c.slotsOf(deviceType) {
		used := c.Slots[domain.DeviceSlot{Type: deviceType, Number: number}]
		left = append(left, max(0, placement.WholeDevice-int64(used)))
	}
	for range modeled(c.Free, deviceType) {
		left = append(left, placement.WholeDevice)
	}
	if len(left) < n {
		left = append(left, make([]int64, n-len(left))...)
	}
	return left[:n]
}

// slotAt returns the slot number of the device with this index in the result of left: the slot of a
// shared device, or an unused slot.
func (c *Candidate) slotAt(deviceType string, index int) int {
	numbers := c.slotsOf(deviceType)
	if index < len(numbers) {
		return numbers[index]
	}
	number := 1
	for slices.Contains(numbers, number) {
		number++
	}
	return number
}

// withSlot returns r with a slot number for its share: the number that r has, or else the first
// slot with enough free thousandths, or else an unused slot.
func (c *Candidate) withSlot(r domain.Resources) domain.Resources {
	if !r.Shared() || r.Share.Slot > 0 {
		return r
	}
	deviceType := r.DeviceSlot().Type
	r.Share.Slot = c.slotAt(deviceType, len(c.Slots))
	for _, number := range c.slotsOf(deviceType) {
		if c.Slots[domain.DeviceSlot{Type: deviceType, Number: number}]+r.Share.Milli <= domain.WholeDevice {
			r.Share.Slot = number
			break
		}
	}
	return r
}

// take deducts resources from what is free on the candidate. The first share in a slot takes a free
// device; further shares in the slot use the same device.
func (c *Candidate) take(r domain.Resources) {
	r = c.withSlot(r)
	if r.Shared() {
		slot := r.DeviceSlot()
		if c.Slots[slot] > 0 {
			r.Accelerators = nil
		}
		if c.Slots == nil {
			c.Slots = map[domain.DeviceSlot]int{}
		}
		c.Slots[slot] += r.Share.Milli
	}
	c.Free = minus(c.Free, r)
}

// release adds resources, which take has deducted, to what is free on the candidate. When the last
// share in a slot is released, its device becomes free.
func (c *Candidate) release(r domain.Resources) {
	if r.Shared() {
		slot := r.DeviceSlot()
		if c.Slots[slot] -= r.Share.Milli; c.Slots[slot] > 0 {
			r.Accelerators = nil
		} else {
			delete(c.Slots, slot)
		}
	}
	c.Free = c.Free.Plus(r)
}

// fits reports whether resources fit on what is free on the candidate.
func (c *Candidate) fits(r domain.Resources) bool {
	if r.Shared() && c.shareFits(r) {
		r.Accelerators = nil
	}
	return r.Fits(c.Free)
}

// shareFits reports whether a device that is already shared has enough free thousandths for the
// share in r.
func (c *Candidate) shareFits(r domain.Resources) bool {
	r.Share.Slot = 0
	_, known := c.Slots[c.withSlot(r).DeviceSlot()]
	return known
}

// freesDevice reports whether a device becomes unused when the resources r are released, because r
// has whole devices, or the only share of its device.
func (c *Candidate) freesDevice(r domain.Resources) bool {
	return !r.Shared() || c.Slots[r.DeviceSlot()] <= r.Share.Milli
}
