package grammar

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"

	"anneal/domain"
)

// Limits of a grammar at run time. A cache of states that exceeds its limits is dropped. A call of
// Next or Allowed that exceeds the limits for one token returns an error.
const (
	maxStates  = 4096
	maxMasks   = 8 << 20 // maximum size of the cached masks, in bytes
	maxConfigs = 4096    // maximum number of alternatives in a state
	maxWork    = 1 << 20 // maximum number of nodes visited for a token
	maxFresh   = 1 << 15 // maximum number of states created for a token
	maxFrames  = 1 << 18
)

// A Grammar constrains completions. It is safe for concurrent use.
type Grammar struct {
	nodes []node
	start int32
	// closing has, for each node inside the reasoning, the node that matches the rest of the
	// delimiter.
	closing map[int32]int32

	mu     sync.Mutex
	tables tables

	write sync.Once
	gbnf  string // result of the method GBNF, computed once
}

// tables are the cached states of a grammar, and counters of the current call.
type tables struct {
	generation int
	frames     map[frameKey]*frame
	states     map[string]*State
	masks      int // size of the cached masks, in bytes
	work       int // number of nodes visited in the current call of Next or Allowed
	fresh      int // number of states created in the current call of Next or Allowed
	begin      *State
}

// A frame is a return address: where the automaton continues after a rule or body. Equal frames in
// the cache have the same address.
type frame struct {
	frameKey
	id         uint32
	generation int
}

type frameKey struct {
	node  int32 // node after the rule or body
	count int32 // number of completed repetitions; -1 for a rule
	up    *frame
}

// A config is a node that expects a byte, and the stack of frames to which it returns.
type config struct {
	node  int32
	stack *frame
}

// A State is the set of configs that the automaton can be in after a text.
type State struct {
	configs    []config
	accepts    bool
	generation int
	next       *[256]*State // cached states after each byte; dead is the state of a rejected byte
	mask       Mask
	masked     *Vocabulary // vocabulary for which mask was computed
}

var dead = &State{}

// Accepts reports whether the text may end here.
func (s *State) Accepts() bool { return s.accepts }

// Complete reports whether the text must end here, because the grammar allows no further byte.
func (s *State) Complete() bool { return s.accepts && len(s.configs) == 0 }

// Start returns the state before any text.
func (g *Grammar) Start() (*State, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.prepareCall()
	if g.tables.begin == nil {
		g.tables.begin = g.closure([]config{{g.start, nil}})
	}
	return g.tables.begin, g.exceeded()
}

// Next returns the state after s and text; nil if the grammar rejects text. It returns
// InvalidArgument if the grammar is too ambiguous to be matched within the limits for one call.
func (g *Grammar) Next(s *State, text []byte) (*State, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.prepareCall()
	s = g.adopt(s)
	for _, c := range text {
		if s = g.step(s, c); s == dead {
			return nil, g.exceeded()
		}
	}
	return s, g.exceeded()
}

// exceeded returns an error if the current call has exceeded its limits.
func (g *Grammar) exceeded() error {
	if !g.tables.limitReached() {
		return nil
	}
	g.tables.states, g.tables.begin = nil, nil // the cached states may be incomplete, so they are dropped
	return domain.Errorf(domain.InvalidArgument,
		"format: the grammar is too ambiguous: one text has too many derivations; "+
			"make alternatives differ at their beginning")
}

// limitReached reports whether the current call has exceeded its limits.
func (t *tables) limitReached() bool {
	return t.work > maxWork || t.fresh > maxFresh || len(t.frames) > maxFrames
}

// prepareCall resets the counters at the start of a call, and drops the cache if it exceeds its limits.
func (g *Grammar) prepareCall() {
	t := &g.tables
	t.work, t.fresh = 0, 0
	if t.states == nil || len(t.states) > maxStates || t.masks > maxMasks || len(t.frames) > maxFrames/4 {
		*t = tables{generation: t.generation + 1, frames: map[frameKey]*frame{}, states: map[string]*State{}}
	}
}

// adopt returns the cached state that equals s, which may be from a cache that was dropped.
func (g *Grammar) adopt(s *State) *State {
	if s.generation == g.tables.generation {
		return s
	}
	known := map[*frame]*frame{nil: nil}
	configs := make([]config, len(s.configs))
	for i, c := range s.configs {
		var path []*frame
		f := c.stack
		for known[f] == nil && f != nil {
			path = append(path, f)
			f = f.up
		}
		now := known[f]
		for _, old := range slices.Backward(path) {
			now = g.frame(frameKey{old.node, old.count, now})
			known[old] = now
		}
		configs[i] = config{c.node, now}
	}
	return g.intern(configs, s.accepts)
}

func (g *Grammar) frame(key frameKey) *frame {
	t := &g.tables
	f := t.frames[key]
	if f == nil {
		f = &frame{key, uint32(len(t.frames) + 1), t.generation}
		t.frames[key] = f
	}
	return f
}

// step returns the state after s and the byte c.
func (g *Grammar) step(s *State, c byte) *State {
	if s.next == nil {
		s.next = new([256]*State)
	}
	if s.next[c] != nil {
		return s.next[c]
	}
	var after []config
	for _, at := range s.configs {
		g.tables.work++
		for _, e := range g.nodes[at.node].edges {
			if e.lo <= c && c <= e.hi {
				after = append(after, config{e.next, at.stack})
			}
		}
	}
	next := dead
	if len(after) > 0 {
		next = g.closure(after)
	}
	s.next[c] = next
	return next
}

// closure returns the state of all configs that can be reached from those in open without consuming
// a byte.
func (g *Grammar) closure(open []config) *State {
	seen := map[config]bool{}
	var configs []config
	accepts := false
	push := func(c config) {
		if !seen[c] {
			seen[c] = true
			open = append(open, c)
		}
	}
	// adds the configs of a repetition with count completed repetitions
	again := func(node, count int32, up *frame) {
		n := &g.nodes[node]
		if n.max == unbounded || count < n.max {
			push(config{n.body, g.frame(frameKey{node, count, up})})
		}
		if count >= n.min {
			push(config{n.next, up})
		}
	}
	for len(open) > 0 && len(configs) <= maxConfigs && !g.tables.limitReached() {
		c := open[len(open)-1]
		open = open[:len(open)-1]
		g.tables.work++
		switch n := &g.nodes[c.node]; {
		case n.op == opBytes:
			configs = append(configs, c)
		case n.op == opSplit:
			for _, to := range n.split {
				push(config{to, c.stack})
			}
		case n.op == opCall && n.next == returns: // a tail call needs no new frame
			push(config{n.body, c.stack})
		case n.op == opCall:
			push(config{n.body, g.frame(frameKey{n.next, -1, c.stack})})
		case n.op == opRepeat:
			again(c.node, 0, c.stack)
		case c.stack == nil:
			accepts = true
		case c.stack.count < 0:
			push(config{c.stack.node, c.stack.up})
		default:
			again(c.stack.node, g.counted(c.stack), c.stack.up)
		}
	}
	if len(configs) > maxConfigs {
		g.tables.work = maxWork + 1
	}
	return g.intern(configs, accepts)
}

// counted returns the number of completed repetitions after another one. Without a maximum it does
// not count beyond the minimum, because more repetitions make no difference.
func (g *Grammar) counted(f *frame) int32 {
	if n := &g.nodes[f.node]; n.max == unbounded && f.count >= n.min {
		return f.count
	}
	return f.count + 1
}

// intern returns the cached state with these configs, and creates it if necessary.
func (g *Grammar) intern(configs []config, accepts bool) *State {
	id := func(f *frame) uint32 {
		if f == nil {
			return 0
		}
		return f.id
	}
	slices.SortFunc(configs, func(a, b config) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(id(a.stack), id(b.stack)))
	})
	configs = slices.Compact(configs)
	key := make([]byte, 1, 1+8*len(configs))
	if accepts {
		key[0] = 1
	}
	for _, c := range configs {
		key = binary.LittleEndian.AppendUint32(key, uint32(c.node))
		key = binary.LittleEndian.AppendUint32(key, id(c.stack))
	}
	s := g.tables.states[string(key)]
	if s == nil {
		s = &State{configs: configs, accepts: accepts, generation: g.tables.generation}
		g.tables.states[string(key)] = s
		g.tables.fresh++
	}
	return s
}
