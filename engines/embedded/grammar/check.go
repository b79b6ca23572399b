package grammar

// nullable reports for each node whether the end of its rule can be reached from it without
// consuming a byte.
func nullable(nodes []node) []bool {
	return fixpoint(nodes, func(n node, is []bool) bool {
		switch n.op {
		case opReturn:
			return true
		case opSplit:
			return some(n.split, is)
		case opCall:
			return is[n.body] && is[n.next]
		case opRepeat:
			return is[n.next] && (n.min == 0 || is[n.body])
		}
		return false
	})
}

// prune removes the branches of nodes from which the end of the rule cannot be reached. It reports
// for each node whether the end can be reached.
func prune(nodes []node) []bool {
	ends := fixpoint(nodes, func(n node, is []bool) bool {
		switch n.op {
		case opReturn:
			return true
		case opSplit:
			return some(n.split, is)
		case opCall:
			return is[n.body] && is[n.next]
		case opRepeat:
			return is[n.next] && (n.min == 0 || is[n.body])
		}
		for _, e := range n.edges {
			if is[e.next] {
				return true
			}
		}
		return false
	})
	for i := range nodes {
		n := &nodes[i]
		switch n.op {
		case opSplit:
			n.split = kept(n.split, func(to int32) bool { return ends[to] })
		case opBytes:
			n.edges = kept(n.edges, func(e edge) bool { return ends[e.next] })
		case opRepeat:
			if !ends[n.body] {
				*n = node{op: opSplit, split: kept([]int32{n.next}, func(to int32) bool { return n.min == 0 && ends[to] })}
			}
		case opCall:
			if !ends[i] {
				*n = node{op: opSplit}
			}
		}
	}
	return ends
}

func kept[T any](list []T, keep func(T) bool) []T {
	out := list[:0:0]
	for _, one := range list {
		if keep(one) {
			out = append(out, one)
		}
	}
	return out
}

func some(list []int32, is []bool) bool {
	for _, i := range list {
		if is[i] {
			return true
		}
	}
	return false
}

// fixpoint computes a property of all nodes: the least solution in which rule, given a node and the
// property of all nodes, returns the property of that node. It visits a node again only after a
// successor has changed.
func fixpoint(nodes []node, rule func(node, []bool) bool) []bool {
	before := make([][]int32, len(nodes))
	for i, n := range nodes {
		for _, to := range follows(n) {
			before[to] = append(before[to], int32(i))
		}
	}
	is := make([]bool, len(nodes))
	queue := make([]int32, len(nodes))
	for i := range queue {
		queue[i] = int32(i)
	}
	for len(queue) > 0 {
		i := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if !is[i] && rule(nodes[i], is) {
			is[i] = true
			queue = append(queue, before[i]...)
		}
	}
	return is
}

// follows returns the successors of a node.
func follows(n node) []int32 {
	switch n.op {
	case opSplit:
		return n.split
	case opCall, opRepeat:
		return []int32{n.body, n.next}
	}
	var to []int32
	for _, e := range n.edges {
		to = append(to, e.next)
	}
	return to
}

// leftRecursive returns the first node of a rule that can call itself without consuming a byte; -1
// if there is none. Matching such a rule would not terminate.
func leftRecursive(nodes []node) int32 {
	null := nullable(nodes)
	silent := func(n node) []int32 { // successors that are reached without consuming a byte
		switch n.op {
		case opSplit:
			return n.split
		case opCall, opRepeat:
			if null[n.body] || n.op == opRepeat && n.min == 0 {
				return []int32{n.body, n.next}
			}
			return []int32{n.body}
		}
		return nil
	}
	component := components(nodes, silent)
	for i, n := range nodes {
		if n.op == opCall && component[i] == component[n.body] {
			return n.body
		}
	}
	return -1
}

// components returns for each node the number of its strongly connected component (Tarjan 1972).
// successors returns the successors of a node. components is iterative, because grammars can be
// deeply nested.
func components(nodes []node, successors func(node) []int32) []int32 {
	const unseen = 0
	order, low := make([]int32, len(nodes)), make([]int32, len(nodes))
	component := make([]int32, len(nodes))
	type visit struct {
		at   int32
		rest []int32
	}
	var path []int32
	var visits []visit
	count, found := int32(0), int32(0)
	enter := func(i int32) {
		count++
		order[i], low[i] = count, count
		path = append(path, i)
		visits = append(visits, visit{i, successors(nodes[i])})
	}
	for root := range nodes {
		if order[root] == unseen {
			enter(int32(root))
		}
		for len(visits) > 0 {
			v := &visits[len(visits)-1]
			if len(v.rest) > 0 {
				next := v.rest[0]
				v.rest = v.rest[1:]
				if order[next] == unseen {
					enter(next)
				} else if component[next] == 0 {
					low[v.at] = min(low[v.at], order[next])
				}
				continue
			}
			at := v.at
			visits = visits[:len(visits)-1]
			if len(visits) > 0 {
				up := visits[len(visits)-1].at
				low[up] = min(low[up], low[at])
			}
			if low[at] != order[at] {
				continue
			}
			found++
			for {
				last := path[len(path)-1]
				path = path[:len(path)-1]
				component[last] = found
				if last == at {
					break
				}
			}
		}
	}
	return component
}
