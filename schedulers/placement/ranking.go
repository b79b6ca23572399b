package placement

import "math"

// rankBits is the number of low bits of a key that hold the rank of a node.
const rankBits = 24

// infeasible is the key of a node on which the request does not fit.
const infeasible = math.MinInt64

// A ranking orders the nodes of a fleet for equal requests. It is a tournament tree of keys, whose
// root is the key of the node with the highest score, and of nodes with the same score the first
// one in the fleet.
type ranking struct {
	request  Request
	allowed  []bool // whether the request allows a model, by index of the model in Fleet.models
	seen     int    // number of changes of nodes since NewFleet that the keys include; -1 before the first update
	feasible int
	leaves   int     // number of leaves of the tree, a power of two that is at least the number of nodes
	keys     []int64 // the tree: root at 1, children of i at 2i and 2i+1, leaf of node n at leaves+n
}

// keyOf returns the key of a node: the score in the high bits, and below it the rank, so that the
// greatest key is the first node with the highest score.
func keyOf(score int64, node int) int64 { return score<<rankBits | int64(MaxNodes-1-node) }

func scoreOf(key int64) int64 { return key >> rankBits }

func nodeOf(key int64) int { return MaxNodes - 1 - int(key&(MaxNodes-1)) }

func newRanking(r Request, nodes int) *ranking {
	leaves := 1
	for leaves < nodes {
		leaves *= 2
	}
	k := &ranking{request: r, seen: -1, leaves: leaves, keys: make([]int64, 2*leaves)}
	for i := range k.keys {
		k.keys[i] = infeasible
	}
	return k
}

// set replaces the key of a node, and updates the tree above its leaf.
func (k *ranking) set(node int, key int64) {
	i := k.leaves + node
	if k.keys[i] == key {
		return
	}
	if k.keys[i] != infeasible {
		k.feasible--
	}
	if key != infeasible {
		k.feasible++
	}
	k.keys[i] = key
	for i /= 2; i > 0; i /= 2 {
		greatest := max(k.keys[2*i], k.keys[2*i+1])
		if k.keys[i] == greatest {
			return
		}
		k.keys[i] = greatest
	}
}

// build computes the inner keys of the tree from its leaves.
func (k *ranking) build() {
	for i := k.leaves - 1; i > 0; i-- {
		k.keys[i] = max(k.keys[2*i], k.keys[2*i+1])
	}
}

// best returns the first node with the highest score; ok is false when no node is feasible.
func (k *ranking) best() (node int, ok bool) {
	if k.keys[1] == infeasible {
		return 0, false
	}
	return nodeOf(k.keys[1]), true
}

// next returns the first node after the given one that has the same score; ok is false if there is
// none.
func (k *ranking) next(node int) (next int, ok bool) {
	lowest := scoreOf(k.keys[k.leaves+node]) << rankBits
	i := k.leaves + node
	for i > 1 && (i%2 == 1 || k.keys[i+1] < lowest) {
		i /= 2
	}
	if i <= 1 {
		return 0, false
	}
	for i++; i < k.leaves; {
		i *= 2
		if k.keys[i] < lowest {
			i++
		}
	}
	return i - k.leaves, true
}
