package domain

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// A node is a machine that works. It owns its allocations, so that it can
// never be overcommitted: every allocation is checked against the same
// subject's version.
//
//	(none) --RegisterNode--> READY
//	READY  --RegisterNode--> READY, with what it has now
//	READY  --LoseNode-->     LOST, all allocations released
//	LOST   --RegisterNode--> READY
//	READY  --PlaceAllocation, ReleaseAllocation--> READY
//	(none) --EnrollNode-->   ENROLLED --RegisterNode--> READY
//	any    --RevokeNode-->   REVOKED, all allocations released
//	REVOKED --EnrollNode-->  ENROLLED
//	any but REVOKED --RemoveNode--> (none)
var Nodes = NewKind("nodes", map[string]Event[Node]{
	"node.enrolled.v1":       NodeEnrolled{},
	"node.registered.v1":     NodeRegistered{},
	"node.lost.v1":           NodeLost{},
	"node.removed.v1":        NodeRemoved{},
	"node.revoked.v1":        NodeAccessRevoked{},
	"allocation.placed.v1":   AllocationPlaced{},
	"allocation.released.v1": AllocationReleased{},
})

// Node states and pools. A pool bounds what is placed on the node; "" is both.
const (
	NodeReady = "READY"
	NodeGone  = "LOST"

	PoolTraining  = "training"
	PoolInference = "inference"
)

// MaxNodeAccelerators and MaxNodeEngines bound what an agent says of its node.
const (
	MaxNodeAccelerators = 16
	MaxNodeEngines      = 16
)

// Resources are what a node has, or what work needs.
type Resources struct {
	CPUMilli     int64          `json:"cpuMilli"`               // thousandths of a core
	MemoryMiB    int64          `json:"memoryMib"`              // mebibytes
	Accelerators map[string]int `json:"accelerators,omitempty"` // type → devices
}

// Plus is the sum of two.
func (r Resources) Plus(o Resources) Resources {
	sum := Resources{r.CPUMilli + o.CPUMilli, r.MemoryMiB + o.MemoryMiB, nil}
	if len(r.Accelerators)+len(o.Accelerators) > 0 {
		sum.Accelerators = maps.Clone(r.Accelerators)
		if sum.Accelerators == nil {
			sum.Accelerators = map[string]int{}
		}
		for t, n := range o.Accelerators {
			sum.Accelerators[t] += n
		}
	}
	return sum
}

// Fits reports whether r is at most capacity in every part.
func (r Resources) Fits(capacity Resources) bool {
	for t, n := range r.Accelerators {
		if n > capacity.Accelerators[t] {
			return false
		}
	}
	return r.CPUMilli <= capacity.CPUMilli && r.MemoryMiB <= capacity.MemoryMiB
}

func (r Resources) equal(o Resources) bool {
	return r.CPUMilli == o.CPUMilli && r.MemoryMiB == o.MemoryMiB && maps.Equal(r.Accelerators, o.Accelerators)
}

// NodeSpec is what an agent says of its node.
type NodeSpec struct {
	Pool     string    `json:"pool"`
	Capacity Resources `json:"capacity"`
	Engines  []string  `json:"engines"` // what it can do: train (supervised), train:METHOD, complete, transcribe, score
	Version  string    `json:"version"` // of the agent
}

// An Allocation is a part of a node given to one attempt of a job or to one
// replica of a deployment.
type Allocation struct {
	ID      string    `json:"id"`                // unique on the node: see AllocationID
	For     Name      `json:"for"`               // the job or the deployment
	Attempt int       `json:"attempt,omitempty"` // of the job
	Replica string    `json:"replica,omitempty"` // of the deployment
	Takes   Resources `json:"takes"`
	Since   time.Time `json:"since,omitzero"` // when it was placed; zero in events of earlier versions
}

// Node is the state of one node.
type Node struct {
	NodeSpec
	State       string                `json:"state"`
	Status      Status                `json:"status"`
	Since       time.Time             `json:"since"`          // when it last registered
	Seen        time.Time             `json:"seen,omitzero"`  // when its last heartbeat was received before it was lost, as far as that is known
	Left        bool                  `json:"left,omitempty"` // it was lost because its agent said that it stops
	Allocations map[string]Allocation `json:"allocations,omitempty"`
	Access      NodeAccess            `json:"access,omitzero"`
}

// Exists implements State.
func (n Node) Exists() bool { return n.State != "" }

// Stage implements Staged.
func (n Node) Stage() string { return n.State }

// Used is the sum of all allocations.
func (n Node) Used() Resources {
	var sum Resources
	for _, a := range n.Allocations {
		sum = sum.Plus(a.Takes)
	}
	return sum
}

// Allocated yields the allocations in the order of their IDs.
func (n Node) Allocated() []Allocation {
	return slices.SortedFunc(maps.Values(n.Allocations), func(a, b Allocation) int { return cmp.Compare(a.ID, b.ID) })
}

// Room reports whether takes fits next to what is already allocated.
func (n Node) Room(takes Resources) bool {
	return n.State == NodeReady && n.Used().Plus(takes).Fits(n.Capacity)
}

// Serves reports whether the node's pool takes work of the given pool.
func (n Node) Serves(pool string) bool { return n.Pool == "" || n.Pool == pool }

type NodeRegistered struct {
	NodeSpec
	Time time.Time `json:"time"`
}

func (e NodeRegistered) Evolve(n *Node) {
	n.NodeSpec, n.State, n.Status, n.Since, n.Seen = e.NodeSpec, NodeReady, StatusOf(nil), e.Time, time.Time{}
	n.Left = false
}

type NodeLost struct {
	Reason string    `json:"reason"`
	Seen   time.Time `json:"seen,omitzero"` // when its last heartbeat was received
	Left   bool      `json:"left,omitempty"`
}

func (e NodeLost) Evolve(n *Node) {
	n.State, n.Status, n.Allocations = NodeGone, Status{Unavailable.String(), e.Reason}, nil
	n.Seen, n.Left = e.Seen, e.Left
}

type NodeRemoved struct{}

func (NodeRemoved) Evolve(n *Node) { *n = Node{} }

type AllocationPlaced struct{ Allocation }

func (e AllocationPlaced) Evolve(n *Node) {
	n.Allocations = maps.Clone(n.Allocations)
	if n.Allocations == nil {
		n.Allocations = map[string]Allocation{}
	}
	n.Allocations[e.ID] = e.Allocation
}

type AllocationReleased struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

func (e AllocationReleased) Evolve(n *Node) {
	n.Allocations = maps.Clone(n.Allocations)
	delete(n.Allocations, e.ID)
}

// RegisterNode records a node that reports for work.
type RegisterNode struct {
	NodeSpec
	Enrolled bool // only if its agent has enrolled
}

func (c RegisterNode) Decide(n Node, now time.Time) (Event[Node], error) {
	var v Violations
	oneOf(&v, "pool", c.Pool, PoolTraining, PoolInference)
	v.Require(c.Capacity.CPUMilli > 0, "capacity.cpuMilli", "must be positive")
	v.Require(c.Capacity.MemoryMiB >= 0, "capacity.memoryMib", "must not be negative")
	v.Require(len(c.Capacity.Accelerators) <= MaxNodeAccelerators, "capacity.accelerators", "must have at most %d types", MaxNodeAccelerators)
	for _, t := range slices.Sorted(maps.Keys(c.Capacity.Accelerators)) {
		v.Require(len(t) <= MaxShortName, "capacity.accelerators", "types must have at most %d characters", MaxShortName)
		v.RequireText("capacity.accelerators", t, false)
		v.Require(c.Capacity.Accelerators[t] >= 0, "capacity.accelerators."+t[:min(len(t), MaxShortName)], "must not be negative")
	}
	v.Require(len(c.Engines) <= MaxNodeEngines, "engines", "must have at most %d", MaxNodeEngines)
	for _, engine := range c.Engines {
		v.Require(len(engine) <= MaxShortName, "engines", "each must have at most %d characters", MaxShortName)
		v.RequireText("engines", engine, false)
	}
	v.Require(len(c.Version) <= MaxShortName, "version", "must have at most %d characters", MaxShortName)
	v.RequireText("version", c.Version, false)
	if err := v.Err(); err != nil {
		return nil, err
	}
	switch {
	case n.State == NodeRevoked, c.Enrolled && n.Access.PublicKey == "":
		return nil, &Error{Code: PermissionDenied, Reason: "NODE_NOT_ENROLLED",
			Message: "the node has not enrolled, or was revoked: start its agent with a token that `anneal node token` makes"}
	}
	same := n.Pool == c.Pool && n.Version == c.Version && n.Capacity.equal(c.Capacity) && slices.Equal(n.Engines, c.Engines)
	if n.State == NodeReady && same {
		return nil, nil
	}
	return NodeRegistered{c.NodeSpec, now}, nil
}

// LoseNode records that a node has been silent for too long, or has said
// goodbye: all that it did is placed elsewhere.
type LoseNode struct {
	Reason string
	Seen   time.Time // when its last heartbeat was received; zero is not known
	Left   bool      // its agent has said goodbye: what it did is queued again, and is no failure
}

func (c LoseNode) Decide(n Node, _ time.Time) (Event[Node], error) {
	switch n.State {
	case "":
		return nil, gone("node")
	case NodeGone, NodeRevoked:
		return nil, nil
	}
	return NodeLost(c), nil
}

// RemoveNode forgets a node that holds nothing.
type RemoveNode struct {
	Lost bool // only if it is LOST, and has not come back meanwhile
}

func (c RemoveNode) Decide(n Node, _ time.Time) (Event[Node], error) {
	switch {
	case !n.Exists():
		return nil, gone("node")
	case c.Lost && n.State != NodeGone:
		return nil, precondition("NODE_BACK", "the node is %s again", n.State)
	case n.State == NodeRevoked:
		return nil, precondition("NODE_REVOKED", "a revoked node stays in the list, so that the token that it enrolled with stays refused")
	case len(n.Allocations) > 0:
		return nil, precondition("NODE_IN_USE", "the node still has %d allocations: wait, or stop its agent", len(n.Allocations))
	}
	return NodeRemoved{}, nil
}

// PlaceAllocation gives a part of the node away: a reservation, until the job
// or deployment that it is for says that the attempt or replica is there.
type PlaceAllocation struct {
	Allocation
	// Registered is the node's Since in the plan: a node that was lost and came
	// back meanwhile refuses the allocation. Zero is any.
	Registered time.Time `json:"-"`
}

func (c PlaceAllocation) Decide(n Node, now time.Time) (Event[Node], error) {
	if old, placed := n.Allocations[c.ID]; placed {
		if old.For != c.For || !old.Takes.equal(c.Takes) {
			return nil, precondition("ALLOCATION_EXISTS", "the node holds another allocation of that ID: it must be released first")
		}
		return nil, nil
	}
	switch {
	case !n.Exists():
		return nil, gone("node")
	case n.State != NodeReady:
		return nil, precondition("NODE_NOT_READY", "the node is %s, not READY", n.State)
	case !c.Registered.IsZero() && !c.Registered.Equal(n.Since):
		return nil, precondition("STALE_PLAN", "the node has registered again since this was planned")
	}
	if !n.Room(c.Takes) {
		return nil, &Error{Code: ResourceExhausted, Reason: "NODE_FULL", Message: "the node has no room left for the allocation"}
	}
	placed := c.Allocation
	placed.Since = now
	return AllocationPlaced{placed}, nil
}

// ReleaseAllocation takes a part of the node back.
type ReleaseAllocation struct {
	ID     string
	Reason string
}

func (c ReleaseAllocation) Decide(n Node, _ time.Time) (Event[Node], error) {
	if _, placed := n.Allocations[c.ID]; !placed {
		return nil, nil
	}
	return AllocationReleased(c), nil
}
