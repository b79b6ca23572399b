package placement

import "slices"

// maxRankings is the maximum number of rankings that a fleet caches. When there are more classes of
// requests, the cached rankings are discarded and computed again, with the same results.
const maxRankings = 4096

// A Fleet places requests on nodes. The index of a node is its rank: of nodes with the same score,
// the first one is chosen. An order of the nodes that does not follow their names or sizes gives
// the best results; it must be the same whenever a choice is repeated. A Fleet must not be used
// concurrently.
//
// The time of a choice grows with the number of nodes that changed since the last choice for an
// equal request; with an Order, also with the numbers of groups and of its Nodes.
type Fleet struct {
	// Eligible reports whether a node satisfies a request's Selector. It may depend on what is free
	// on this node, but on no other node, because it is called again only after the node has
	// changed. nil accepts every node.
	Eligible func(node int, r *Request) bool
	// Preference returns a number that is added to the score of a node. It is called under the same
	// conditions as Eligible.
	Preference func(node int, r *Request) int64

	// If FillShared is set, a share is placed on an unused device only if it fits on no shared
	// device of the node.
	FillShared bool

	nodes    []nodeState
	models   []string
	rankings map[Request]*ranking
	groups   *groups
	changes  []int // indexes of changed nodes, in the order of the changes
	base     int   // number of discarded changes, which preceded those in changes

	buffer  []int64
	devices []int
}

// NewFleet returns a fleet whose nodes have no requests placed on them. classes is the result of
// TypicalClasses, and prices that of Prices.
func NewFleet(nodes []Node, classes []Class, prices map[string]int64) (*Fleet, error) {
	if len(nodes) > MaxNodes {
		return nil, ErrTooManyNodes
	}
	f := &Fleet{nodes: make([]nodeState, len(nodes)), rankings: map[Request]*ranking{}}
	var tables []*fragmentation
	devices := 0
	for i, node := range nodes {
		model := slices.Index(f.models, node.Model)
		if model < 0 {
			model = len(f.models)
			f.models, tables = append(f.models, node.Model), append(tables, fragmentationOf(classes, node.Model))
		}
		n := nodeState{Node: node, cpu: node.CPUMilli, memory: node.MemoryMiB, model: model, table: tables[model],
			price: prices[node.Model], changed: -1, left: slices.Repeat([]int64{WholeDevice}, node.Devices)}
		n.refresh()
		f.nodes[i], devices = n, max(devices, node.Devices)
	}
	f.buffer = make([]int64, devices)
	f.groups = groupsOf(make([]int, len(nodes)))
	return f, nil
}

// Len returns the number of nodes in the fleet.
func (f *Fleet) Len() int { return len(f.nodes) }

// Model returns the model of a node's devices.
func (f *Fleet) Model(node int) string { return f.nodes[node].Model }

// Left returns what is free on each of a node's devices, in milli-GPU. The caller must not change
// it.
func (f *Fleet) Left(node int) []int64 { return f.nodes[node].left }

// Free returns what is free on all devices of a node together, in milli-GPU.
func (f *Fleet) Free(node int) int64 { return f.nodes[node].gpu }

// Fragmentation returns the fragmentation of a node in millionths of a milli-GPU.
func (f *Fleet) Fragmentation(node int) int64 { return f.nodes[node].frag }

// Take deducts a request from what is free on a node and on the given devices. What is free can
// become negative.
func (f *Fleet) Take(node int, r Request, devices []int) { f.change(node, r, devices, -1) }

// Set replaces what is free on a node: CPU, memory, and left on each device.
func (f *Fleet) Set(node int, cpuMilli, memoryMiB int64, left []int64) {
	n := &f.nodes[node]
	n.cpu, n.memory = cpuMilli, memoryMiB
	copy(n.left, left)
	n.refresh()
	f.touch(node)
}

// Release adds a request that Take has deducted to what is free on the node and the devices again.
func (f *Fleet) Release(node int, r Request, devices []int) { f.change(node, r, devices, 1) }

func (f *Fleet) change(node int, r Request, devices []int, sign int64) {
	n := &f.nodes[node]
	n.cpu += sign * r.CPUMilli
	n.memory += sign * r.MemoryMiB
	for _, i := range devices {
		n.left[i] += sign * r.Share
	}
	n.refresh()
	f.touch(node)
}

// touch records that a node has changed, so that its keys in all rankings are outdated.
func (f *Fleet) touch(node int) {
	if len(f.changes) > 4*len(f.nodes)+64 {
		f.base += len(f.changes)
		f.changes = f.changes[:0]
	}
	f.nodes[node].changed = f.base + len(f.changes)
	f.changes = append(f.changes, node)
}

// Place places the request on the node with the highest score, and deducts it from what is free
// there. order, which can be nil, decides between nodes with the same score (see Order). ok is
// false when the request fits on no node.
func (f *Fleet) Place(r Request, order *Order) (choice Choice, ok bool) {
	k := f.rankingOf(r)
	f.update(k)
	return f.place(k, order)
}

// place is Place for a request that is equal to those of the ranking k. k must be up to date.
func (f *Fleet) place(k *ranking, order *Order) (choice Choice, ok bool) {
	node, ok := k.best()
	if !ok {
		return Choice{}, false
	}
	node = order.choose(k, node)
	n := &f.nodes[node]
	before := n.frag
	_, f.devices = n.after(&k.request, f.buffer[:len(n.left)], f.devices, f.FillShared)
	choice = Choice{Node: node, Devices: append([]int(nil), f.devices...), Score: scoreOf(k.key(node)),
		Feasible: k.feasible}
	f.Take(node, k.request, choice.Devices)
	choice.Fragmentation = n.frag - before
	return choice, true
}

// PlaceGang places as many requests equal to r as the gang has members, or none if they do not all
// fit. If apart is true, each is placed on a different node.
func (f *Fleet) PlaceGang(r Request, members int, apart bool, order *Order) ([]Choice, bool) {
	choices := make([]Choice, 0, members)
	k := f.rankingOf(r)
	for range members {
		f.update(k)
		if apart && len(choices) > 0 {
			k.set(choices[len(choices)-1].Node, infeasible)
		}
		choice, ok := f.place(k, order)
		if !ok {
			break
		}
		choices = append(choices, choice)
	}
	complete := len(choices) == members
	for _, choice := range choices {
		switch {
		case !complete:
			f.Release(choice.Node, r, choice.Devices)
		case apart:
			// compute the key of the node again, which was set to infeasible so that no other
			// member gets it
			f.touch(choice.Node)
		}
	}
	if !complete {
		return nil, false
	}
	return choices, true
}

// rankingOf returns the ranking of the nodes for requests equal to r, which may be outdated: see
// update.
func (f *Fleet) rankingOf(r Request) *ranking {
	k, known := f.rankings[r]
	if known {
		return k
	}
	if len(f.rankings) >= maxRankings {
		clear(f.rankings)
	}
	k = newRanking(r, len(f.nodes), f.groups)
	for _, model := range f.models {
		k.allowed = append(k.allowed, allows(r.Models, model))
	}
	f.rankings[r] = k
	return k
}

// update brings a ranking up to date: it computes the keys of the nodes that have changed since the
// last update.
func (f *Fleet) update(k *ranking) {
	end := f.base + len(f.changes)
	if k.seen < f.base {
		k.replace(func(node int) int64 { return f.key(node, k) }, len(f.nodes))
		k.seen = end
		return
	}
	for at := k.seen; at < end; at++ {
		if node := f.changes[at-f.base]; f.nodes[node].changed == at {
			k.set(node, f.key(node, k))
		}
	}
	k.seen = end
}

// key computes the key of a node in a ranking.
func (f *Fleet) key(node int, k *ranking) int64 {
	n := &f.nodes[node]
	if !n.fits(&k.request) || k.request.Devices > 0 && !k.allowed[n.model] ||
		f.Eligible != nil && !f.Eligible(node, &k.request) {
		return infeasible
	}
	after, devices := n.after(&k.request, f.buffer[:len(n.left)], f.devices, f.FillShared)
	f.devices = devices
	score := n.score(&k.request, after)
	if f.Preference != nil {
		score += f.Preference(node, &k.request)
	}
	return keyOf(score, node)
}
