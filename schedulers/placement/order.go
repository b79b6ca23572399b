package placement

// An Order prefers nodes for a reason that is not part of their score, such as the number of
// replicas in their failure domain. A nil Order prefers none.
type Order struct {
	// Cost returns the cost of a node. The node with the lowest cost is preferred.
	Cost func(node int) int64
	// If First is set, the node with the lowest cost is chosen, and of nodes with the same cost
	// that with the highest score; each choice then looks at all nodes. Otherwise the cost decides
	// only between the nodes with the highest score.
	First bool
	// Floor is a lower bound of the results of Cost. The search for a node ends at the first node
	// with this cost.
	Floor int64
}

// choose returns the feasible node that the order prefers. best is the node that is chosen without
// an order.
func (o *Order) choose(k *ranking, best int) int {
	if o == nil {
		return best
	}
	chosen, lowest := best, o.Cost(best)
	if o.First {
		for node, key := range k.keys[k.leaves:] {
			if key == infeasible {
				continue
			}
			cost := o.Cost(node)
			if cost < lowest || cost == lowest && key > k.keys[k.leaves+chosen] {
				chosen, lowest = node, cost
			}
		}
		return chosen
	}
	for node, more := k.next(best); more && lowest > o.Floor; node, more = k.next(node) {
		if cost := o.Cost(node); cost < lowest {
			chosen, lowest = node, cost
		}
	}
	return chosen
}
