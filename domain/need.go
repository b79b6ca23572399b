package domain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Need holds what a replica, or an attempt of a job, requires of the fleet: the same resources on
// each of Count nodes.
type Need struct {
	Count  int
	Pool   string // pool of the nodes: PoolTraining or PoolInference
	Engine string // required capability of the node: see NodeSpec.Engines
	// Gang is the ability, one of GangAbilities, that a node also requires if Count is above 1; "" for
	// replicas, and for a job on one node. See InGang.
	Gang      string
	Resources Resources
	Policy    NodePolicy // policy of the account that owns the replica or the job
	Regions   []string   // allowed regions of the nodes; nil allows nodes in every region and in none
}

// Need returns what one replica that serves the model requires of the fleet.
func (s DeploymentSpec) Need(model Hosted) Need {
	engine := "complete"
	if s.SpeechFormat != "" {
		engine = SpeechEngine(s.SpeechFormat)
	}
	return Need{Count: 1, Pool: PoolInference, Engine: engine, Resources: s.ReplicaResources(model),
		Regions: s.Placement.Allowed()}
}

// String formats the need for messages: "100m CPU, 128 MiB on a node of pool training that can
// train".
func (n Need) String() string {
	nodes := "a node"
	if n.Count > 1 {
		nodes = fmt.Sprintf("each of %d nodes", n.Count)
	}
	return fmt.Sprintf("%s on %s of pool %s%s%s that can %s", n.Resources, nodes, n.Pool, n.where(), n.Policy, n.Engine)
}

// subject returns the subject of messages about the need: "the job" or "a replica".
func (n Need) subject() string {
	if n.Pool == PoolTraining {
		return "the job"
	}
	return "a replica"
}

// String formats the resources for messages: "100m CPU, 128 MiB".
func (r Resources) String() string {
	parts := []string{fmt.Sprintf("%dm CPU", r.CPUMilli), fmt.Sprintf("%d MiB", r.MemoryMiB)}
	for _, t := range slices.Sorted(maps.Keys(r.Accelerators)) {
		if r.Shared() {
			parts = append(parts, fmt.Sprintf("%d/%d of 1 x %s", r.Share.Milli, WholeDevice, t))
			continue
		}
		parts = append(parts, fmt.Sprintf("%d x %s", r.Accelerators[t], t))
	}
	return strings.Join(parts, ", ")
}

// A Feasibility counts the nodes of a fleet that can meet a need now, and those that could if they
// were empty.
type Feasibility struct {
	Need      Need
	Nodes     int      // number of registered nodes
	Capable   int      // number of nodes that could meet the need if they were empty and READY
	Lost      int      // number of capable nodes that are not READY
	Available int      // number of nodes that have capacity for the need now
	Reasons   []string // why nodes have no capacity for the need, one reason per node; at most maxReasons

	explained int            // number of nodes whose reasons are in Reasons
	lacking   map[string]int // number of nodes without capacity for the need, by what they lack; without taints
}

const maxReasons = 5

// FeasibilityOf returns the Feasibility of a need on the nodes of a fleet.
func FeasibilityOf(need Need, fleet Fleet) Feasibility {
	need = need.InGang(fleet)
	f := Feasibility{Need: need, lacking: map[string]int{}}
	for name, node := range fleet.Nodes {
		if !node.Registered() {
			continue // the node's agent has not registered it, or the node's access was revoked
		}
		f.Nodes++
		if !need.Allows(node.RegionIn(fleet.Located)) {
			f.addReason(name, "is in "+cmp.Or(node.Region, "no region"))
			continue
		}
		never, now := need.shortage(node, Resources{}, nil), ""
		if never == "" {
			f.Capable++
			now = need.shortage(node, node.Used(), node.Slots())
			switch {
			case node.State != NodeReady:
				f.Lost++
				now = "is " + node.State
			case len(node.Engines) == 0:
				now = "is shutting down"
			case node.Cordon != nil:
				now = "is " + node.Scheduling()
			}
		}
		switch shortage := cmp.Or(never, now); {
		case shortage == "":
			f.Available++
		default:
			f.addReason(name, shortage)
		}
	}
	return f
}

// addReason records why a node has no capacity for the need.
func (f *Feasibility) addReason(node Name, shortage string) {
	f.lacking[withoutTaint(shortage)]++
	if len(f.Reasons) < maxReasons {
		f.Reasons = append(f.Reasons, node.ID()+" "+shortage)
		f.explained++
	}
}

// WithoutNodeNames returns the Feasibility with reasons that say how many nodes each applies to,
// instead of naming them or their taints. Messages to accounts have such reasons.
func (f Feasibility) WithoutNodeNames() Feasibility {
	f.Reasons, f.explained = nil, 0
	shortages := slices.SortedFunc(maps.Keys(f.lacking), func(a, b string) int {
		return cmp.Or(f.lacking[b]-f.lacking[a], cmp.Compare(a, b))
	})
	for _, shortage := range shortages[:min(len(shortages), maxReasons)] {
		n, nodes := f.lacking[shortage], "nodes"
		if n == 1 {
			nodes = "node"
		}
		f.Reasons, f.explained = append(f.Reasons, fmt.Sprintf("%s: %d %s", shortage, n, nodes)), f.explained+n
	}
	return f
}

// Infeasible reports whether the registered nodes can never meet the need, even when they are
// empty. It returns false when no node is registered, because nodes may still register.
func (f Feasibility) Infeasible() bool { return f.Nodes > 0 && f.Capable < f.Need.Count }

// AllLost reports whether the need cannot be met because capable nodes are lost: without them, too
// few capable nodes are left.
func (f Feasibility) AllLost() bool { return f.Lost > 0 && f.Capable-f.Lost < f.Need.Count }

// Fits reports whether enough nodes have capacity for the need now.
func (f Feasibility) Fits() bool { return f.Available >= f.Need.Count }

// String describes the need, why nodes cannot meet it, and what to do, for status messages.
func (f Feasibility) String() string {
	needs := f.Need.subject() + " needs " + f.Need.String()
	reasons := strings.Join(f.Reasons, ", ")
	if more := f.Nodes - f.Available - f.explained; more > 0 {
		reasons += fmt.Sprintf(", and %d more", more)
	}
	switch {
	case f.Nodes == 0:
		return fmt.Sprintf("%s, but no node is registered: start an agent", needs)
	case f.Fits():
		return fmt.Sprintf("%s, and %d of %d nodes have capacity now, which may be allocated to others first",
			needs, f.Available, f.Nodes)
	case f.AllLost() && !f.Infeasible():
		return fmt.Sprintf("%s, but %d of the %d nodes that could run it are lost (%s): restart their agents, "+
			"or start another agent", needs, f.Lost, f.Capable, reasons)
	case !f.Infeasible():
		return fmt.Sprintf("%s; %d of %d nodes could run it, but only %d have capacity now (%s): wait, scale "+
			"down deployments or cancel jobs, or start another agent", needs, f.Capable, f.Nodes, f.Available, reasons)
	}
	help := "start an agent on such a node"
	if f.Need.Count > 1 {
		help = fmt.Sprintf("start agents on %d more such nodes, or request fewer nodes", f.Need.Count-f.Capable)
	}
	if len(f.Need.Policy.Selector)+len(f.Need.Policy.Tolerations) > 0 {
		help = "start an agent on such a node, or let the account use other nodes with `anneal account nodes`"
	}
	if len(f.Need.Regions) > 0 {
		help = "start an agent with --region in one of its regions, or name a region of the fleet"
	}
	if len(f.Need.Resources.Accelerators) > 0 {
		help = "start an agent on a machine with these accelerators"
		if f.Need.Pool == PoolInference { // the user of a job does not choose its hardware
			help += ", or choose an acceleratorType of the fleet"
		}
	}
	if f.lacking[trainsAlone] > 0 {
		help = "request fewer nodes, or start agents with a trainer that uses several nodes"
	}
	if reasons != "" {
		reasons = " (" + reasons + ")"
	}
	return fmt.Sprintf("%s, but only %d of %d nodes could run it%s: %s", needs, f.Capable, f.Nodes, reasons,
		help)
}

// trainsAlone is why a node cannot run a job on several nodes.
const trainsAlone = "cannot train together with other nodes"

// incapable returns why a node could not meet the need with any capacity, such as another pool; ""
// when it could. A node without engines counts as having the engine, because an agent
// withdraws its engines when it shuts down and may register with them again.
func (n Need) incapable(node Node) string {
	switch {
	case !node.Serves(n.Pool):
		return "is of pool " + node.Pool
	case len(node.Engines) > 0 && !slices.Contains(node.Engines, n.Engine):
		return "cannot " + n.Engine
	case len(node.Engines) > 0 && !n.TrainsWith(node.Engines):
		return trainsAlone
	case n.Resources.Shared() && len(node.Engines) > 0 && !slices.Contains(node.Engines, ShareAbility):
		return "does not share devices"
	}
	return n.Policy.mismatch(node.Labels, node.Taints)
}

// shortage returns what a node lacks for the need; "" when it lacks nothing. used is what is
// allocated on the node, and slots has the allocated thousandths of each shared device.
func (n Need) shortage(node Node, used Resources, slots map[DeviceSlot]int) string {
	if incapable := n.incapable(node); incapable != "" {
		return incapable
	}
	for _, t := range slices.Sorted(maps.Keys(n.Resources.Accelerators)) {
		has, free := node.Capacity.Accelerators[t], node.Capacity.Accelerators[t]-used.Accelerators[t]
		switch {
		case has == 0:
			return "has no " + t
		case has < n.Resources.Accelerators[t]:
			return fmt.Sprintf("has %d x %s", has, t)
		case n.Resources.Shared() && shareFits(slots, n.Resources):
		case n.Resources.Shared() && free < 1:
			return fmt.Sprintf("has no %s with %d/%d free", t, n.Resources.Share.Milli, WholeDevice)
		case free < n.Resources.Accelerators[t]:
			return fmt.Sprintf("has %d of %d x %s free", max(0, free), has, t)
		}
	}
	for _, one := range []struct {
		needs, has, used int64
		suffix, resource string
	}{
		{n.Resources.CPUMilli, node.Capacity.CPUMilli, used.CPUMilli, "m", "CPU"},
		{n.Resources.MemoryMiB, node.Capacity.MemoryMiB, used.MemoryMiB, "", "MiB"},
	} {
		if one.has-one.used < one.needs {
			return fmt.Sprintf("has %d%s of %d%s %s free",
				max(0, one.has-one.used), one.suffix, one.has, one.suffix, one.resource)
		}
	}
	return ""
}
