package placement

import "math"

// An Order prefers nodes for a reason that is not part of their score, such as the number of
// replicas in their failure domain. The node with the lowest cost is preferred. A nil Order prefers
// none.
//
// Most nodes cost as much as their group. So a choice looks at the groups and at the nodes with a
// cost of their own, and not at all nodes.
type Order struct {
	// Group returns the cost of the nodes of a group: see Fleet.SetGroups.
	Group func(group int) int64
	// Extra returns what is added to the cost of a node. It is 0 for the nodes that are not in Nodes.
	// nil adds nothing.
	Extra func(node int) int64
	Nodes []int // in any order
	// If First is set, the node with the lowest cost is chosen, and of nodes with the same cost
	// that with the highest score. Otherwise the cost decides only between the nodes with the
	// highest score.
	First bool
}

// groups are sets of the nodes of a fleet.
type groups struct {
	of       []int // group of each node
	position []int // number of each node in its group
	sizes    []int // number of nodes in each group
}

func groupsOf(of []int) *groups {
	g := &groups{of: of, position: make([]int, len(of))}
	for node, group := range of {
		for len(g.sizes) <= group {
			g.sizes = append(g.sizes, 0)
		}
		g.position[node] = g.sizes[group]
		g.sizes[group]++
	}
	return g
}

// SetGroups assigns a group, numbered from 0, to each node, by which an Order prefers nodes. Before
// the first call, all nodes are in group 0.
func (f *Fleet) SetGroups(of []int) {
	f.groups = groupsOf(of)
	clear(f.rankings)
}

func (o *Order) extra(node int) int64 {
	if o.Extra == nil {
		return 0
	}
	return o.Extra(node)
}

// choose returns the feasible node that the order prefers. best is the node that is chosen without
// an order.
func (o *Order) choose(k *ranking, best int) int {
	if o == nil {
		return best
	}
	top := scoreOf(k.key(best))
	chosen, lowest := int64(infeasible), int64(0)
	consider := func(key, cost int64) {
		if key == infeasible || !o.First && scoreOf(key) < top {
			return
		}
		if chosen == infeasible || cost < lowest || cost == lowest && key > chosen {
			chosen, lowest = key, cost
		}
	}
	for _, node := range o.Nodes {
		consider(k.key(node), o.Group(k.groups.of[node])+o.extra(node))
	}
	trees := k.ofGroups()
	cheapest := o.cheapest(trees)
	consider(o.firstOf(k, trees[cheapest]), o.Group(cheapest))
	for group, t := range trees {
		root, cost := t.root(), o.Group(group)
		if root != infeasible && (chosen == infeasible || cost < lowest || cost == lowest && root > chosen) {
			consider(o.firstOf(k, t), cost)
		}
	}
	return nodeOf(chosen)
}

// cheapest returns the group with the lowest cost of those with feasible nodes. If choose looks at
// it first, it need not look at most other groups.
func (o *Order) cheapest(trees []tournament) (group int) {
	lowest := int64(math.MaxInt64)
	for i, t := range trees {
		if t.root() != infeasible && o.Group(i) < lowest {
			group, lowest = i, o.Group(i)
		}
	}
	return group
}

// firstOf returns the greatest key of the nodes of a group that have no cost of their own;
// infeasible if there is none.
func (o *Order) firstOf(k *ranking, t tournament) int64 {
	var skipped []int64
	for t.root() != infeasible && o.extra(nodeOf(t.root())) != 0 {
		skipped = append(skipped, t.root())
		t.set(k.groups.position[nodeOf(t.root())], infeasible)
	}
	first := t.root()
	for _, key := range skipped {
		t.set(k.groups.position[nodeOf(key)], key)
	}
	return first
}
