package placement

import "math"

// rankBits is the number of low bits of a key that hold the rank of a node.
const rankBits = 24

// infeasible is the key of a node on which the request does not fit.
const infeasible = math.MinInt64

// A ranking orders the nodes of a fleet for equal requests. The root of its tree is the key of the
// node with the highest score, and of nodes with the same score the first one in the fleet.
type ranking struct {
	request  Request
	allowed  []bool // whether the request allows a model, by index of the model in Fleet.models
	seen     int    // number of changes of nodes since NewFleet that the keys include; -1 before the first update
	feasible int
	all      tournament // keys of all nodes
	groups   *groups
	byGroup  []tournament // keys of the nodes of each group; nil before the first choice with an order
}

// keyOf returns the key of a node: the score in the high bits, and below it the rank, so that the
// greatest key is the first node with the highest score.
func keyOf(score int64, node int) int64 { return score<<rankBits | int64(MaxNodes-1-node) }

func scoreOf(key int64) int64 { return key >> rankBits }

func nodeOf(key int64) int { return MaxNodes - 1 - int(key&(MaxNodes-1)) }

func newRanking(r Request, nodes int, g *groups) *ranking {
	return &ranking{request: r, seen: -1, all: newTournament(nodes), groups: g}
}

// key returns the key of a node.
func (k *ranking) key(node int) int64 { return k.all.keys[k.all.leaves+node] }

// set replaces the key of a node.
func (k *ranking) set(node int, key int64) {
	old := k.key(node)
	if old == key {
		return
	}
	if old != infeasible {
		k.feasible--
	}
	if key != infeasible {
		k.feasible++
	}
	k.all.set(node, key)
	if k.byGroup != nil {
		k.byGroup[k.groups.of[node]].set(k.groups.position[node], key)
	}
}

// replace replaces the keys of all nodes.
func (k *ranking) replace(key func(node int) int64, nodes int) {
	k.feasible, k.byGroup = 0, nil
	for node := range nodes {
		one := key(node)
		k.all.keys[k.all.leaves+node] = one
		if one != infeasible {
			k.feasible++
		}
	}
	k.all.build()
}

// best returns the first node with the highest score; ok is false when no node is feasible.
func (k *ranking) best() (node int, ok bool) {
	if k.all.root() == infeasible {
		return 0, false
	}
	return nodeOf(k.all.root()), true
}

// ofGroups returns the tournament of each group. The caller must undo its changes of them.
func (k *ranking) ofGroups() []tournament {
	if k.byGroup != nil {
		return k.byGroup
	}
	k.byGroup = make([]tournament, len(k.groups.sizes))
	for group, size := range k.groups.sizes {
		k.byGroup[group] = newTournament(size)
	}
	for node, group := range k.groups.of {
		t := k.byGroup[group]
		t.keys[t.leaves+k.groups.position[node]] = k.key(node)
	}
	for _, t := range k.byGroup {
		t.build()
	}
	return k.byGroup
}

// A tournament is a tree of keys, whose inner nodes have the greatest key below them.
type tournament struct {
	leaves int     // number of leaves, a power of two that is at least the number of nodes
	keys   []int64 // root at 1, children of i at 2i and 2i+1, leaf of node n at leaves+n
}

func newTournament(nodes int) tournament {
	leaves := 1
	for leaves < nodes {
		leaves *= 2
	}
	t := tournament{leaves, make([]int64, 2*leaves)}
	for i := range t.keys {
		t.keys[i] = infeasible
	}
	return t
}

// root returns the greatest key.
func (t tournament) root() int64 { return t.keys[1] }

// set replaces the key of a leaf, and updates the tree above it.
func (t tournament) set(leaf int, key int64) {
	i := t.leaves + leaf
	t.keys[i] = key
	for i /= 2; i > 0; i /= 2 {
		greatest := max(t.keys[2*i], t.keys[2*i+1])
		if t.keys[i] == greatest {
			return
		}
		t.keys[i] = greatest
	}
}

// build computes the inner keys of the tree from its leaves.
func (t tournament) build() {
	for i := t.leaves - 1; i > 0; i-- {
		t.keys[i] = max(t.keys[2*i], t.keys[2*i+1])
	}
}
