package domain

import "iter"

// WholeDevice is a whole device in thousandths, the unit of shares.
const WholeDevice = 1000

// ShareAbility is the entry of NodeSpec.Engines of a node that offers shares of its devices: its
// operator allows them, and its engine limits the memory of a model to a share.
const ShareAbility = "share"

// A DeviceShare is a part of one device. Work with the same slot of a node and the same type of device
// shares a device. Slots are numbers of the log and not devices: the agent binds a slot to a free
// device with its first work and frees the device with its last, so it chooses the devices.
type DeviceShare struct {
	Milli int `json:"milli"`          // thousandths of the device; 0 stands for whole devices
	Slot  int `json:"slot,omitempty"` // from 1; 0 in a request, for which the schedulers choose a slot
}

// Shared reports whether the resources have a share of a device instead of whole devices.
func (r Resources) Shared() bool { return r.Share.Milli > 0 }

// DeviceSlot returns the slot of resources with a share.
func (r Resources) DeviceSlot() DeviceSlot {
	for t := range r.Accelerators {
		return DeviceSlot{t, r.Share.Slot}
	}
	return DeviceSlot{}
}

// A DeviceSlot is a slot of a node: see DeviceShare.
type DeviceSlot struct {
	Type   string
	Number int
}

// SumOf returns the sum of resources on one node. A slot counts as one device, however many shares it
// has.
func SumOf(all iter.Seq[Resources]) Resources {
	var sum Resources
	for _, r := range withSlots(all, nil) {
		sum = sum.Plus(r)
	}
	return sum
}

// withSlots returns the resources with one device for the first share of each slot and none for the
// others, and adds the thousandths of each slot to slots, which may be nil.
func withSlots(all iter.Seq[Resources], slots map[DeviceSlot]int) (counted []Resources) {
	if slots == nil {
		slots = map[DeviceSlot]int{}
	}
	for r := range all {
		if r.Shared() {
			slot := r.DeviceSlot()
			if _, used := slots[slot]; used {
				r.Accelerators = nil
			}
			slots[slot] += r.Share.Milli
		}
		counted = append(counted, r)
	}
	return counted
}

func (n Node) resources() iter.Seq[Resources] {
	return func(yield func(Resources) bool) {
		for _, a := range n.Allocations {
			if !yield(a.Resources) {
				return
			}
		}
	}
}

// Slots returns the thousandths of each slot that are allocated; nil without shares.
func (n Node) Slots() map[DeviceSlot]int {
	slots := map[DeviceSlot]int{}
	withSlots(n.resources(), slots)
	if len(slots) == 0 {
		return nil
	}
	return slots
}

// shareFits reports whether a slot has capacity for a share: the slot of the resources, or any slot if they
// have none.
func shareFits(slots map[DeviceSlot]int, r Resources) bool {
	wanted := r.DeviceSlot()
	for slot, used := range slots {
		if slot.Type == wanted.Type && (slot.Number == wanted.Number || wanted.Number == 0) &&
			used+r.Share.Milli <= WholeDevice {
			return true
		}
	}
	return false
}

// addedTo returns what resources add to the use of a node with the slots; false if their slot is too
// full.
func (r Resources) addedTo(slots map[DeviceSlot]int) (Resources, bool) {
	if !r.Shared() {
		return r, true
	}
	if shareFits(slots, r) {
		r.Accelerators = nil
		return r, true
	}
	_, used := slots[r.DeviceSlot()]
	return r, !used
}

// checkShare requires that a share of an allocation is a part of one device in a slot.
func (r Resources) checkShare(v *Violations) {
	const field = "takes.share"
	if r.Share == (DeviceShare{}) {
		return
	}
	v.Require(r.Share.Milli > 0 && r.Share.Milli < WholeDevice, field, "has %d thousandths: it must be from 1 to %d",
		r.Share.Milli, WholeDevice-1)
	v.Require(r.Share.Slot > 0 && r.Share.Slot <= maxAccelerators, field, "has the slot %d: it must be from 1 to %d",
		r.Share.Slot, maxAccelerators)
	v.Require(len(r.Accelerators) == 1 && r.Accelerators[r.DeviceSlot().Type] == 1, field,
		"is a part of one device: the allocation must have one device of one type")
}
