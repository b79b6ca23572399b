package domain_test

import (
	"testing"
	"time"

	"anneal/domain"
)

func TestNodeIsCordonedAndDrained(t *testing.T) {
	type D = decision[domain.Node]
	f := events[domain.Node]
	here := domain.NodeRegistered{Time: noon, NodeSpec: domain.NodeSpec{Engines: []string{"train"},
		Capacity: domain.Resources{CPUMilli: 2000}}}
	placed := domain.AllocationPlaced{Allocation: domain.Allocation{ID: "j@1", Attempt: 1,
		For: "accounts/a/supervisedFineTuningJobs/j", Resources: domain.Resources{CPUMilli: 1000}, Since: noon}}
	place := domain.PlaceAllocation{Allocation: placed.Allocation}
	released := domain.AllocationReleased{ID: "j@1", Reason: "attempt 1 is over"}
	lost, cordon := domain.NodeLost{Reason: "silent"}, domain.CordonNode{Reason: "new driver"}
	cordoned := domain.NodeCordoned{Reason: "new driver", Time: noon}
	drain := domain.DrainNode{Reason: "new driver", Within: time.Minute}
	draining := domain.NodeDraining{Reason: "new driver", Deadline: noon.Add(time.Minute), Time: noon}
	drained, uncordoned := domain.NodeDrained{Time: noon}, domain.NodeUncordoned{Time: noon}
	longer := domain.DrainNode{Reason: "new driver", Within: time.Hour}
	decide(t, domain.Nodes, []D{
		{name: "cordon", given: f(here, placed), when: cordon, then: cordoned},
		{name: "cordon twice", given: f(here, cordoned), when: cordon},
		{name: "cordon during a drain", given: f(here, placed, draining), when: cordon},
		{name: "cordon a lost node", given: f(here, lost), when: cordon, then: cordoned},
		{name: "cordon a missing node", when: cordon, fault: "NOT_FOUND"},
		{name: "place on a cordoned node", given: f(here, cordoned), when: place, fault: "NODE_CORDONED",
			says: "the node is CORDONED (new driver): uncordon it"},
		{name: "place twice on a cordoned node", given: f(here, placed, cordoned), when: place},
		{name: "place on a cordoned node that returned", given: f(here, cordoned, lost, here), when: place,
			fault: "NODE_CORDONED"},
		{name: "uncordon", given: f(here, cordoned), when: domain.UncordonNode{}, then: uncordoned},
		{name: "uncordon twice", given: f(here, cordoned, uncordoned), when: domain.UncordonNode{}},
		{name: "uncordon a missing node", when: domain.UncordonNode{}, fault: "NOT_FOUND"},
		{name: "place after the cordon", given: f(here, cordoned, uncordoned), when: place, then: placed},
		{name: "drain", given: f(here, placed), when: drain, then: draining},
		{name: "drain a cordoned node", given: f(here, placed, cordoned), when: drain, then: draining},
		{name: "drain twice", given: f(here, placed, draining), when: drain},
		{name: "drain with another deadline", given: f(here, placed, draining), when: longer,
			then: domain.NodeDraining{Reason: "new driver", Deadline: noon.Add(time.Hour), Time: noon}},
		{name: "drain a DRAINED node", given: f(here, draining, drained), when: longer},
		{name: "drain with a deadline that is too late", given: f(here),
			when: domain.DrainNode{Within: 1000 * time.Hour}, fault: "INVALID_FIELDS",
			says: "deadline: is 1000h0m0s after the request, but the deadline must be from 0s to 168h0m0s after it"},
		{name: "drain a missing node", when: drain, fault: "NOT_FOUND"},
		{name: "finish a drain", given: f(here, placed, draining, released), when: domain.FinishDrain{}, then: drained},
		{name: "finish a drain twice", given: f(here, draining, drained), when: domain.FinishDrain{}},
		{name: "finish a drain too early", given: f(here, placed, draining), when: domain.FinishDrain{},
			fault: "NODE_IN_USE"},
		{name: "finish a drain after uncordoning", given: f(here, draining, uncordoned), when: domain.FinishDrain{},
			fault: "NODE_NOT_DRAINING", says: "SCHEDULABLE"},
		{name: "finish the drain of a lost node", given: f(here, placed, draining, lost), when: domain.FinishDrain{},
			then: drained},
		{name: "place on a drained node", given: f(here, draining, drained), when: place, fault: "NODE_CORDONED"},
		{name: "uncordon during a drain", given: f(here, placed, draining), when: domain.UncordonNode{}, then: uncordoned},
		{name: "remove a cordoned node", given: f(here, cordoned), when: domain.RemoveNode{}, then: domain.NodeRemoved{}},
	})
}
