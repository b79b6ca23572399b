package domain

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// A Need is what a piece of work needs of the fleet: the same resources on each
// of Count different nodes.
type Need struct {
	Count  int
	Pool   string // PoolTraining or PoolInference
	Engine string // what the node must be able to do: train, complete, transcribe or score
	Takes  Resources
}

// Need is what one replica of the model needs of the fleet.
func (s DeploymentSpec) Need(model Hosted) Need {
	engine := "complete"
	if s.SpeechFormat != "" {
		engine = SpeechAbility(s.SpeechFormat)
	}
	return Need{Count: 1, Pool: PoolInference, Engine: engine, Takes: s.Takes(model)}
}

// String is the need in words, for messages.
func (n Need) String() string {
	nodes := "a node"
	if n.Count > 1 {
		nodes = fmt.Sprintf("each of %d nodes", n.Count)
	}
	return fmt.Sprintf("%s on %s of pool %s that can %s", n.Takes, nodes, n.Pool, n.Engine)
}

// String lists resources in words: "100m CPU, 128 MiB".
func (r Resources) String() string {
	parts := []string{fmt.Sprintf("%dm CPU", r.CPUMilli), fmt.Sprintf("%d MiB", r.MemoryMiB)}
	for _, t := range slices.Sorted(maps.Keys(r.Accelerators)) {
		parts = append(parts, fmt.Sprintf("%d x %s", r.Accelerators[t], t))
	}
	return strings.Join(parts, ", ")
}

// A Feasibility reports how a fleet can serve a need.
type Feasibility struct {
	Need  Need
	Nodes int      // in all
	Could int      // that could hold it, if they were empty and READY
	Lost  int      // of those that could: they miss heartbeats
	Room  int      // that have capacity for it now
	Lacks []string // what the first of the others lack, for users
}

const maxLacks = 5 // nodes that a message names

// FeasibilityOf looks at every node of a fleet.
func FeasibilityOf(need Need, nodes iter.Seq2[Name, Node]) Feasibility {
	p := Feasibility{Need: need}
	for name, node := range nodes {
		if !node.Registered() {
			continue // not known yet, or never to come back
		}
		p.Nodes++
		never, now := need.lacks(node, Resources{}), ""
		if never == "" {
			p.Could++
			now = need.lacks(node, node.Used())
			switch {
			case node.State != NodeReady:
				p.Lost++
				now = "is " + node.State
			case len(node.Engines) == 0:
				now = "is leaving"
			}
		}
		switch lack := cmp.Or(never, now); {
		case lack == "":
			p.Room++
		case len(p.Lacks) < maxLacks:
			p.Lacks = append(p.Lacks, name.ID()+" "+lack)
		}
	}
	return p
}

// Infeasible reports whether the fleet can never hold the need, as it is. Of one
// without nodes nothing is known: they may be about to come.
func (p Feasibility) Infeasible() bool { return p.Nodes > 0 && p.Could < p.Need.Count }

// AllLost reports whether nobody can hold the need before a lost node is back.
func (p Feasibility) AllLost() bool { return p.Lost > 0 && p.Could-p.Lost < p.Need.Count }

// Fits reports whether the fleet has capacity for the need now.
func (p Feasibility) Fits() bool { return p.Room >= p.Need.Count }

// String says what the need is, what nodes lack of it, and what would help.
func (p Feasibility) String() string {
	lacks := strings.Join(p.Lacks, ", ")
	if more := p.Nodes - p.Room - len(p.Lacks); more > 0 {
		lacks += fmt.Sprintf(", and so on for %d more", more)
	}
	switch {
	case p.Nodes == 0:
		return fmt.Sprintf("it needs %s, and there is no node: start an agent", p.Need)
	case p.Fits():
		return fmt.Sprintf("it needs %s, and of %d nodes %d have room now, which others may have been given first", p.Need, p.Nodes, p.Room)
	case p.AllLost() && !p.Infeasible():
		return fmt.Sprintf("it needs %s, and of the %d nodes that could hold it %d are lost (%s): start their agents again, or another", p.Need, p.Could, p.Lost, lacks)
	case !p.Infeasible():
		return fmt.Sprintf("it needs %s, and of %d nodes %d could hold it, but %d have room now (%s): wait, scale down or cancel other work, or start another agent",
			p.Need, p.Nodes, p.Could, p.Room, lacks)
	}
	help := "start an agent that can"
	if len(p.Need.Takes.Accelerators) > 0 {
		help = "start an agent on a machine that has them, or choose an acceleratorType that is there"
	}
	return fmt.Sprintf("it needs %s, and of %d nodes %d could hold it (%s): %s", p.Need, p.Nodes, p.Could, lacks, help)
}

// lacks says what a node does not have for the need, when so much of it is
// given away; "" when it has all. An agent that leaves takes its engines back,
// and may come again with them.
func (n Need) lacks(node Node, used Resources) string {
	switch {
	case !node.Serves(n.Pool):
		return "is of pool " + node.Pool
	case len(node.Engines) > 0 && !slices.Contains(node.Engines, n.Engine):
		return "cannot " + n.Engine
	}
	for _, t := range slices.Sorted(maps.Keys(n.Takes.Accelerators)) {
		has, free := node.Capacity.Accelerators[t], node.Capacity.Accelerators[t]-used.Accelerators[t]
		switch {
		case has == 0:
			return "has no " + t
		case has < n.Takes.Accelerators[t]:
			return fmt.Sprintf("has %d x %s", has, t)
		case free < n.Takes.Accelerators[t]:
			return fmt.Sprintf("has %d of %d x %s free", max(0, free), has, t)
		}
	}
	for _, one := range []struct {
		needs, has, used int64
		suffix, resource string
	}{
		{n.Takes.CPUMilli, node.Capacity.CPUMilli, used.CPUMilli, "m", "CPU"},
		{n.Takes.MemoryMiB, node.Capacity.MemoryMiB, used.MemoryMiB, "", "MiB"},
	} {
		if one.has-one.used < one.needs {
			return fmt.Sprintf("has %d%s of %d%s %s free",
				max(0, one.has-one.used), one.suffix, one.has, one.suffix, one.resource)
		}
	}
	return ""
}

// FleetAccelerator is the type of accelerator that is taken where nobody names
// one: the default, where some node has it or none is known; otherwise the one
// that nodes have most of, or none.
func FleetAccelerator(nodes iter.Seq2[Name, Node]) string {
	known, most := false, map[string]int{}
	for _, node := range nodes {
		known = true
		for t, n := range node.Capacity.Accelerators {
			most[t] += n
		}
	}
	if !known || most[DefaultAccelerator] > 0 {
		return DefaultAccelerator
	}
	best := NoAccelerator
	for _, t := range ShapeAcceleratorTypes {
		if most[t] > most[best] {
			best = t
		}
	}
	return best
}
