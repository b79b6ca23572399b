package domain

import "iter"

// WholeDevice is the share of a whole device, in thousandths.
const WholeDevice = 1000

// ShareAbility is the entry in NodeSpec.Engines of a node whose devices can be shared: its operator
// allows it, and its engine limits the memory of each model to the model's share.
const ShareAbility = "share"

// A DeviceShare is a part of one accelerator, its device. Replicas on a node whose shares have the
// same device type and the same slot number run on the same device. The schedulers choose the slot.
// The agent chooses the device: it binds a slot to a free device when the first replica of the slot
// starts, and frees the device when the last one ends.
type DeviceShare struct {
	Milli int `json:"milli"`          // thousandths of the device; 0 stands for whole devices
	Slot  int `json:"slot,omitempty"` // number of the slot, from 1; 0 in a request
}

// Shared reports whether the resources include a share of a device instead of whole devices.
func (r Resources) Shared() bool { return r.Share.Milli > 0 }

// DeviceSlot returns the slot of the share in the resources; the zero DeviceSlot without
// accelerators.
func (r Resources) DeviceSlot() DeviceSlot {
	for t := range r.Accelerators {
		return DeviceSlot{t, r.Share.Slot}
	}
	return DeviceSlot{}
}

// A DeviceSlot identifies a slot of a node by its type of device and its number: see DeviceShare.
type DeviceSlot struct {
	Type   string
	Number int
}

// SumOf returns the sum of resources on one node. All shares in a slot together count as one
// device.
func SumOf(all iter.Seq[Resources]) Resources {
	var sum Resources
	for _, r := range withSlots(all, nil) {
		sum = sum.Plus(r)
	}
	return sum
}

// withSlots returns the resources in all, changed so that adding them up counts each shared device
// once: only the first share in a slot keeps its device in Accelerators. It adds the
// thousandths of each share to its slot in slots, which may be nil.
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

// Slots returns how many thousandths of the device of each slot are allocated; nil if no device of
// the node is shared.
func (n Node) Slots() map[DeviceSlot]int {
	slots := map[DeviceSlot]int{}
	withSlots(n.resources(), slots)
	if len(slots) == 0 {
		return nil
	}
	return slots
}

// shareFits reports whether a device that is already shared has enough free thousandths for the
// share of r. The device must be in r's slot or, if r has no slot number, of r's device type. slots
// maps each slot to the allocated thousandths of its device.
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

// addedTo returns the free resources that a node needs to allocate r. A share of a device that is
// already shared needs no free device. slots maps each slot of the node to the allocated
// thousandths of its device. addedTo returns false if the device of r's slot has too few free
// thousandths.
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

// checkShare adds a violation to v if the resources of an allocation have a share that is not in a
// slot, or is not a part of one device.
func (r Resources) checkShare(v *Violations) {
	const field = "takes.share"
	if r.Share == (DeviceShare{}) {
		return
	}
	v.Require(r.Share.Milli > 0 && r.Share.Milli < WholeDevice, field,
		"has %d thousandths of a device: the share must be from 1 to %d", r.Share.Milli, WholeDevice-1)
	v.Require(r.Share.Slot > 0 && r.Share.Slot <= maxAccelerators, field, "has the slot %d: the slot must be from 1 to %d",
		r.Share.Slot, maxAccelerators)
	v.Require(len(r.Accelerators) == 1 && r.Accelerators[r.DeviceSlot().Type] == 1, field,
		"is a part of one device: the allocation must have one device of one type")
}
