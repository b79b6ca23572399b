package schedulers

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// ShrinkWithin is how long the agent of a node with failed devices has to report the attempts and
// replicas that used these devices. After that time, the newest ones that exceed the devices of the
// node are moved.
const ShrinkWithin = 15 * time.Second

// shrunk plans to move attempts and replicas from a node that has fewer devices than are allocated.
// The agent reports attempts and replicas whose device has failed, but not those that were placed
// before the failure and still wait for a device.
func shrunk(plan *Plan, v *projections.View, row *projections.Row[domain.Node], now time.Time) {
	over := excess(v, row)
	if len(over) == 0 {
		return
	}
	if due := row.State.Since.Add(ShrinkWithin); now.Before(due) {
		plan.planAgainAt(due)
		return
	}
	reason := fmt.Sprintf("node %s has fewer devices than are allocated", row.Name)
	for _, a := range over {
		if a.Replica != "" {
			plan.add(domain.Intend(domain.Deployments, a.For,
				domain.Command[domain.Deployment](domain.RemoveReplica{ID: a.Replica, Reason: reason})))
			continue
		}
		if j, ok := jobNamed(v, a.For); ok && j.Life.Working() && a.Attempt == j.Life.Attempt && j.Life.Outcome == nil {
			plan.add(domain.IntendJob(j.Name, domain.RequeueJob{Attempt: a.Attempt, Reason: reason, Preempted: true}))
		}
	}
}

// excess returns the newest allocations of a node without which its devices are enough. If one
// allocation that shares a device is among them, all allocations on this device are. Allocations
// that are about to be released do not count.
func excess(v *projections.View, row *projections.Row[domain.Node]) (over []domain.Allocation) {
	if devicesFit(row.State.Used(), row.State.Capacity) {
		return nil
	}
	var current []domain.Allocation
	for _, a := range row.State.Allocated() {
		if reason, reserved := orphaned(v, row.Name, a); reason == "" && !reserved {
			current = append(current, a)
		}
	}
	slices.SortStableFunc(current, func(a, b domain.Allocation) int {
		return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(b.ID, a.ID))
	})
	for len(current) > 0 {
		used := sumOf(current)
		at := slices.IndexFunc(current, func(a domain.Allocation) bool {
			for t, n := range a.Resources.Accelerators {
				if n > 0 && used.Accelerators[t] > row.State.Capacity.Accelerators[t] {
					return true
				}
			}
			return false
		})
		if at < 0 {
			return over
		}
		first := current[at]
		current = slices.DeleteFunc(current, func(a domain.Allocation) bool {
			goes := a.ID == first.ID || first.Resources.Shared() && a.Resources.Shared() &&
				a.Resources.DeviceSlot() == first.Resources.DeviceSlot()
			if goes {
				over = append(over, a)
			}
			return goes
		})
	}
	return over
}

func sumOf(allocations []domain.Allocation) domain.Resources {
	return domain.SumOf(func(yield func(domain.Resources) bool) {
		for _, a := range allocations {
			if !yield(a.Resources) {
				return
			}
		}
	})
}

// devicesFit reports whether a node with this capacity has at least as many devices of each type as
// are used.
func devicesFit(used, capacity domain.Resources) bool {
	return domain.Resources{Accelerators: used.Accelerators}.Fits(domain.Resources{Accelerators: capacity.Accelerators})
}
