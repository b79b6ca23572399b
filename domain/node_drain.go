package domain

import "time"

// A NodeCordon closes a node for new allocations until the operator uncordons the node, even if the
// node is lost and returns in between. With a Deadline, the node is drained: its jobs and replicas
// move to other nodes, and those that have not moved are stopped at the deadline.
type NodeCordon struct {
	Reason   string    `json:"reason"`
	Time     time.Time `json:"time"`
	Deadline time.Time `json:"deadline,omitzero"` // when remaining work is stopped; zero without a drain
	Drained  time.Time `json:"drained,omitzero"`  // when the last allocation was released; zero until then
}

// Values of Node.Scheduling.
const (
	NodeSchedulable   = "SCHEDULABLE"
	NodeCordonedState = "CORDONED" // no new allocations; the work on the node continues
	NodeDrainingState = "DRAINING" // the work on the node moves to other nodes
	NodeDrainedState  = "DRAINED"  // the node has no allocations and gets none
)

// DefaultDrain and MaxDrain are the default and the maximum time of a drain until its deadline.
const (
	DefaultDrain = 10 * time.Minute
	MaxDrain     = 7 * 24 * time.Hour
)

// Scheduling returns NodeSchedulable, NodeCordonedState, NodeDrainingState or NodeDrainedState.
func (n Node) Scheduling() string {
	switch {
	case n.Cordon == nil:
		return NodeSchedulable
	case n.Cordon.Deadline.IsZero():
		return NodeCordonedState
	case n.Cordon.Drained.IsZero():
		return NodeDrainingState
	}
	return NodeDrainedState
}

// Draining reports whether the work on the node must move to other nodes.
func (n Node) Draining() bool { return n.Scheduling() == NodeDrainingState }

type NodeCordoned struct {
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

func (e NodeCordoned) Evolve(n *Node) { n.Cordon = &NodeCordon{Reason: e.Reason, Time: e.Time} }

type NodeUncordoned struct {
	Time time.Time `json:"time"`
}

func (NodeUncordoned) Evolve(n *Node) { n.Cordon = nil }

type NodeDraining struct {
	Reason   string    `json:"reason"`
	Deadline time.Time `json:"deadline"`
	Time     time.Time `json:"time"`
}

func (e NodeDraining) Evolve(n *Node) {
	n.Cordon = &NodeCordon{Reason: e.Reason, Time: e.Time, Deadline: e.Deadline}
}

type NodeDrained struct {
	Time time.Time `json:"time"`
}

func (e NodeDrained) Evolve(n *Node) {
	drained := *n.Cordon
	drained.Drained = e.Time
	n.Cordon = &drained
}

// CordonNode closes a node for new allocations. It records nothing if the node is cordoned or
// drained already.
type CordonNode struct{ Reason string }

func (c CordonNode) Decide(n Node, now time.Time) (Event[Node], error) {
	switch {
	case !n.Exists():
		return nil, notFound("node")
	case n.Cordon != nil:
		return nil, nil
	}
	return NodeCordoned{c.Reason, now}, nil
}

// UncordonNode opens a node for new allocations, and ends its drain.
type UncordonNode struct{}

func (UncordonNode) Decide(n Node, now time.Time) (Event[Node], error) {
	switch {
	case !n.Exists():
		return nil, notFound("node")
	case n.Cordon == nil:
		return nil, nil
	}
	return NodeUncordoned{now}, nil
}

// DrainNode cordons a node and moves its jobs and replicas to other nodes. Those that have not
// moved after Within are stopped. A repeated drain changes the reason and the deadline of a drain
// in progress.
type DrainNode struct {
	Reason string
	Within time.Duration // time until the deadline; 0 stops all jobs and replicas on the node immediately
}

func (c DrainNode) Decide(n Node, now time.Time) (Event[Node], error) {
	var v Violations
	v.Require(c.Within >= 0 && c.Within <= MaxDrain, "deadline",
		"is %s after the request, but the deadline must be from 0s to %s after it", c.Within, MaxDrain)
	if err := v.Err(); err != nil {
		return nil, err
	}
	deadline := now.Add(c.Within)
	switch {
	case !n.Exists():
		return nil, notFound("node")
	case n.Scheduling() == NodeDrainedState:
		return nil, nil
	case n.Draining() && n.Cordon.Reason == c.Reason && n.Cordon.Deadline.Equal(deadline):
		return nil, nil
	}
	return NodeDraining{c.Reason, deadline, now}, nil
}

// FinishDrain makes a node that is being drained DRAINED, because it has no allocations any more.
type FinishDrain struct{}

func (FinishDrain) Decide(n Node, now time.Time) (Event[Node], error) {
	switch {
	case !n.Exists():
		return nil, notFound("node")
	case n.Scheduling() == NodeDrainedState:
		return nil, nil
	case !n.Draining():
		return nil, precondition("NODE_NOT_DRAINING", "the node is %s and is not being drained any more", n.Scheduling())
	case len(n.Allocations) > 0:
		return nil, precondition("NODE_IN_USE", "the node has %d allocations: its drain is not finished", len(n.Allocations))
	}
	return NodeDrained{now}, nil
}

// mustSchedule returns an error if the node is cordoned, so that it gets no new allocations.
func (n Node) mustSchedule() error {
	if n.Cordon == nil {
		return nil
	}
	return precondition("NODE_CORDONED", "the node is %s (%s): uncordon it with `anneal node uncordon`", n.Scheduling(),
		n.Cordon.Reason)
}
