package domain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A node is a machine that runs jobs and replicas. Its allocations are part of its state, so that
// it can never be overcommitted: each change of the allocations is appended to the log only if the
// node has not changed since the decision.
//
//	(none) --RegisterNode--> READY
//	READY  --RegisterNode--> READY, with its current capacity
//	READY, ENROLLED --LoseNode--> LOST, all allocations released
//	LOST   --RegisterNode--> READY
//	READY  --PlaceAllocation, ReleaseAllocation--> READY
//	any    --TaintNode, UntaintNode--> unchanged
//	any    --CordonNode, DrainNode, FinishDrain, UncordonNode--> unchanged: see Node.Scheduling
//	(none) --EnrollNode-->   ENROLLED --RegisterNode--> READY
//	any    --RevokeNode-->   REVOKED, all allocations released
//	REVOKED --EnrollNode-->  ENROLLED
//	any but REVOKED --RemoveNode--> (none)
var Nodes = NewKind("nodes", map[string]Event[Node]{
	"node.enrolled.v1":       NodeEnrolled{},
	"node.registered.v1":     NodeRegistered{},
	"node.lost.v1":           NodeLost{},
	"node.removed.v1":        NodeRemoved{},
	"node.cordoned.v1":       NodeCordoned{},
	"node.uncordoned.v1":     NodeUncordoned{},
	"node.draining.v1":       NodeDraining{},
	"node.drained.v1":        NodeDrained{},
	"node.tainted.v1":        NodeTainted{},
	"node.untainted.v1":      NodeUntainted{},
	"node.revoked.v1":        NodeAccessRevoked{},
	"allocation.placed.v1":   AllocationPlaced{},
	"allocation.released.v1": AllocationReleased{},
})

// Node states and pools. A node of a pool accepts only work of that pool. A node whose pool is ""
// accepts all work.
const (
	NodeReady     = "READY"
	NodeLostState = "LOST"

	PoolTraining  = "training"
	PoolInference = "inference"
)

// MaxNodeAccelerators and MaxNodeEngines limit what an agent reports about its node.
const (
	MaxNodeAccelerators = 16
	MaxNodeEngines      = 16
)

// Resources are the capacity of a node, or a part of a node that is requested or allocated.
type Resources struct {
	CPUMilli     int64          `json:"cpuMilli"`               // CPU in millicores
	MemoryMiB    int64          `json:"memoryMib"`              // memory in mebibytes
	Accelerators map[string]int `json:"accelerators,omitempty"` // number of accelerators by type
	// Share is the part of the one device in Accelerators that is requested or allocated; zero for
	// whole devices
	Share DeviceShare `json:"share,omitzero"`
}

// Plus returns the sum of r and o without their shares of devices, which SumOf adds up.
func (r Resources) Plus(o Resources) Resources {
	sum := Resources{CPUMilli: r.CPUMilli + o.CPUMilli, MemoryMiB: r.MemoryMiB + o.MemoryMiB}
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

// Fits reports whether r is at most capacity in CPU, memory and each type of accelerator. A share
// of a device counts as a whole device.
func (r Resources) Fits(capacity Resources) bool {
	for t, n := range r.Accelerators {
		if n > capacity.Accelerators[t] {
			return false
		}
	}
	return r.CPUMilli <= capacity.CPUMilli && r.MemoryMiB <= capacity.MemoryMiB
}

func (r Resources) equal(o Resources) bool {
	return r.CPUMilli == o.CPUMilli && r.MemoryMiB == o.MemoryMiB && r.Share.Milli == o.Share.Milli &&
		maps.Equal(r.Accelerators, o.Accelerators)
}

// NodeSpec is what an agent reports about its node.
type NodeSpec struct {
	Pool     string    `json:"pool"`
	Region   string    `json:"region,omitempty"` // one of Regions; "" for a node without a region
	Capacity Resources `json:"capacity"`
	// Engines lists the node's capabilities: train (supervised), train:METHOD, complete,
	// transcribe:FORMAT, score; and engine:NAME for each engine that is an external program, such
	// as vllm.
	Engines []string `json:"engines"`
	Version string   `json:"version"` // version of anneal that the agent runs
	// Labels describe the node: see NodePolicy
	Labels map[string]string `json:"labels,omitempty"`
	// FailedDevices are the devices that must not be used; Capacity does not count them
	FailedDevices []FailedDevice `json:"failedDevices,omitempty"`
}

// enginePrefix begins the entries in NodeSpec.Engines that name an external engine.
const enginePrefix = "engine:"

// EngineAbility returns the entry in NodeSpec.Engines for an external engine, such as vllm.
func EngineAbility(name string) string { return enginePrefix + name }

// EngineNames returns the names of the node's engines that are external programs, such as vllm. It
// returns none for an agent of an earlier version, which does not report them.
func (n Node) EngineNames() (names []string) {
	for _, one := range n.Engines {
		if name, ok := strings.CutPrefix(one, enginePrefix); ok {
			names = append(names, name)
		}
	}
	return names
}

// An Allocation is a part of a node that is allocated to an attempt of a job or to a replica.
type Allocation struct {
	ID        string    `json:"id"`                // unique on the node: see AllocationID and ReplicaAllocationID
	For       Name      `json:"for"`               // name of the job or the deployment
	Attempt   int       `json:"attempt,omitempty"` // number of the job's attempt; 0 for a deployment
	Replica   string    `json:"replica,omitempty"` // ID of the deployment's replica; "" for a job
	Resources Resources `json:"takes"`
	Since     time.Time `json:"since,omitzero"` // time of the placement; zero in events of earlier versions

	Reason *PlacementReason `json:"reason,omitempty"` // why the node was chosen; nil in events of earlier versions
}

// Node is the state of one node.
type Node struct {
	NodeSpec
	State  string    `json:"state"`
	Status Status    `json:"status"`
	Since  time.Time `json:"since"` // time of the node's last registration
	// time of the last heartbeat before the node was lost; zero if unknown
	Seen        time.Time             `json:"seen,omitzero"`
	Left        bool                  `json:"left,omitempty"` // the node is LOST because its agent shut down
	Allocations map[string]Allocation `json:"allocations,omitempty"`
	Access      NodeAccess            `json:"access,omitzero"`
	Taints      []Taint               `json:"taints,omitempty"` // taints of the node, ordered by key
	// reason and deadline of a cordon or drain; nil without one
	Cordon *NodeCordon `json:"cordon,omitempty"`
}

// Exists implements State.
func (n Node) Exists() bool { return n.State != "" }

// StateName implements StateNamer.
func (n Node) StateName() string { return n.State }

// Used returns the sum of the node's allocations. A shared device counts once.
func (n Node) Used() Resources { return SumOf(n.resources()) }

// Allocated returns the allocations ordered by ID.
func (n Node) Allocated() []Allocation {
	return slices.SortedFunc(maps.Values(n.Allocations), func(a, b Allocation) int { return cmp.Compare(a.ID, b.ID) })
}

// HasCapacity reports whether the node is READY and has room for r beside its allocations.
func (n Node) HasCapacity(r Resources) bool {
	added, ok := r.addedTo(n.Slots())
	return ok && n.State == NodeReady && n.Used().Plus(added).Fits(n.Capacity)
}

// Serves reports whether replicas or jobs of a pool may be placed on the node.
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
	Seen   time.Time `json:"seen,omitzero"` // time of the last received heartbeat; zero if unknown
	Left   bool      `json:"left,omitempty"`
}

func (e NodeLost) Evolve(n *Node) {
	n.State, n.Status, n.Allocations = NodeLostState, Status{Unavailable.String(), e.Reason}, nil
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

func (AllocationPlaced) keepsState()   {}
func (AllocationReleased) keepsState() {}

// RegisterNode records that an agent has registered the node, or that its spec has changed.
type RegisterNode struct {
	NodeSpec
	Enrolled bool // if true, a node whose agent has not enrolled is refused
}

func (c RegisterNode) Decide(n Node, now time.Time) (Event[Node], error) {
	var v Violations
	oneOf(&v, "pool", c.Pool, PoolTraining, PoolInference)
	oneOf(&v, "region", c.Region, Regions[1:]...)
	v.Require(c.Capacity.CPUMilli > 0, "capacity.cpuMilli", "must be positive")
	v.Require(c.Capacity.MemoryMiB >= 0, "capacity.memoryMib", "must not be negative")
	v.Require(c.Capacity.Share == (DeviceShare{}), "capacity.share", "is for allocations, not for capacity: leave it out")
	v.Require(len(c.Capacity.Accelerators) <= MaxNodeAccelerators, "capacity.accelerators", "must have at most %d types",
		MaxNodeAccelerators)
	for _, t := range slices.Sorted(maps.Keys(c.Capacity.Accelerators)) {
		v.Require(len(t) <= MaxShortName, "capacity.accelerators", "types must have at most %d characters", MaxShortName)
		v.RequireText("capacity.accelerators", t, false)
		v.Require(c.Capacity.Accelerators[t] >= 0, "capacity.accelerators."+t[:min(len(t), MaxShortName)],
			"must not be negative")
	}
	v.Require(len(c.Engines) <= MaxNodeEngines, "engines", "must have at most %d entries", MaxNodeEngines)
	for _, engine := range c.Engines {
		v.Require(len(engine) <= MaxShortName, "engines", "each must have at most %d characters", MaxShortName)
		v.RequireText("engines", engine, false)
	}
	v.Require(len(c.Version) <= MaxShortName, "version", "must have at most %d characters", MaxShortName)
	v.RequireText("version", c.Version, false)
	checkLabels(&v, "labels", c.Labels)
	checkFailedDevices(&v, c.FailedDevices)
	if err := v.Err(); err != nil {
		return nil, err
	}
	switch {
	case n.State == NodeRevoked, c.Enrolled && n.Access.PublicKey == "":
		return nil, &Error{Code: PermissionDenied, Reason: "NODE_NOT_ENROLLED",
			Message: "the node has not enrolled, or was revoked: start its agent with a join token from `anneal node token`"}
	}
	same := n.Pool == c.Pool && n.Region == c.Region && n.Version == c.Version && n.Capacity.equal(c.Capacity) &&
		slices.Equal(n.Engines, c.Engines) && maps.Equal(n.Labels, c.Labels) &&
		slices.Equal(n.FailedDevices, c.FailedDevices)
	if n.State == NodeReady && same {
		return nil, nil
	}
	return NodeRegistered{c.NodeSpec, now}, nil
}

// LoseNode records that a node has missed its heartbeats for too long, or that its agent has shut
// down. The schedulers place the node's attempts and replicas on other nodes.
type LoseNode struct {
	Reason string
	Seen   time.Time // time of the last received heartbeat; zero if unknown
	Left   bool      // the agent shut down: attempts on the node are requeued and do not count as failures
	// Registered is the node's Since when its missing heartbeats were observed. A node that has
	// registered again after that time is not lost. A zero Registered is not checked.
	Registered time.Time `json:"-"`
}

func (c LoseNode) Decide(n Node, _ time.Time) (Event[Node], error) {
	switch {
	case !n.Exists():
		return nil, notFound("node")
	case n.Absent():
		return nil, nil
	case !c.Registered.IsZero() && !c.Registered.Equal(n.Since):
		return nil, precondition("NODE_BACK", "the node registered again at %s, after it had missed heartbeats",
			n.Since.Format(time.RFC3339))
	}
	return NodeLost{c.Reason, c.Seen, c.Left}, nil
}

// RemoveNode removes a node that has no allocations.
type RemoveNode struct {
	Lost bool // if true, only a node that is LOST is removed
}

func (c RemoveNode) Decide(n Node, _ time.Time) (Event[Node], error) {
	switch {
	case !n.Exists():
		return nil, notFound("node")
	case c.Lost && n.State != NodeLostState:
		return nil, precondition("NODE_BACK", "the node is not removed, because it is %s and not LOST any more", n.State)
	case n.State == NodeRevoked:
		return nil, precondition("NODE_REVOKED",
			"a revoked node cannot be removed, because the server refuses the node's join token only while the node exists")
	case len(n.Allocations) > 0:
		return nil, precondition("NODE_IN_USE",
			"the node still has %d allocations: wait until they are released, or stop its agent",
			len(n.Allocations))
	}
	return NodeRemoved{}, nil
}

// PlaceAllocation reserves a part of the node's capacity. The event that starts the attempt or
// places the replica commits the reservation.
type PlaceAllocation struct {
	Allocation
	// Registered is the node's Since when the allocation was planned. A node that has registered
	// again after that time refuses the allocation. A zero Registered is not checked.
	Registered time.Time `json:"-"`
}

func (c PlaceAllocation) Decide(n Node, now time.Time) (Event[Node], error) {
	if old, placed := n.Allocations[c.ID]; placed {
		if old.For != c.For || !old.Resources.equal(c.Resources) {
			return nil, precondition("ALLOCATION_EXISTS",
				"the node has another allocation with the ID %s: release that allocation first", c.ID)
		}
		return nil, nil
	}
	var v Violations
	c.Resources.checkShare(&v)
	if err := v.Err(); err != nil {
		return nil, err
	}
	switch {
	case !n.Exists():
		return nil, notFound("node")
	case n.State != NodeReady:
		return nil, precondition("NODE_NOT_READY", "the node is %s, but must be READY to get allocations", n.State)
	case !c.Registered.IsZero() && !c.Registered.Equal(n.Since):
		return nil, precondition("STALE_PLAN", "the node registered again at %s, after the allocation was planned",
			n.Since.Format(time.RFC3339))
	case n.Cordon != nil:
		return nil, n.mustSchedule()
	}
	if !n.HasCapacity(c.Resources) {
		return nil, &Error{Code: ResourceExhausted, Reason: "NODE_FULL",
			Message: fmt.Sprintf("the allocation needs %s, but the node has %s, of which %s are allocated",
				c.Resources, n.Capacity, n.Used())}
	}
	placed := c.Allocation
	placed.Since = now
	return AllocationPlaced{placed}, nil
}

// ReleaseAllocation releases an allocation or a reservation on the node, with the given ID.
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
