package grammar

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"

	"anneal/domain"
)

// Bounds of what is remembered and worked through for one grammar. What is
// remembered is dropped when it outgrows them; work beyond them is refused.
const (
	maxStates  = 4096
	maxMasks   = 8 << 20 // bytes
	maxConfigs = 4096    // ways in one state
	maxWork    = 1 << 20 // nodes that are looked at for one token
	maxFresh   = 1 << 15 // states that are made for one token
	maxFrames  = 1 << 18
)

// A Grammar is what answers are held to. It is safe for concurrent use.
type Grammar struct {
	nodes   []node
	start   int32
	closing map[int32]int32 // nodes inside of reasoning, and where its end is forced

	mu     sync.Mutex
	tables tables
}

// tables are what is remembered of a grammar's states.
type tables struct {
	generation int
	frames     map[frameKey]*frame
	states     map[string]*State
	masks      int // bytes
	work       int // nodes looked at since the last call
	fresh      int // states made since the last call
	begin      *State
}

// A frame is what follows when a rule or a body ends. Frames of one generation
// with the same content are the same.
type frame struct {
	frameKey
	id         uint32
	generation int
}

type frameKey struct {
	node  int32 // where it goes on
	count int32 // of a repetition: how often before; -1 for a rule
	up    *frame
}

// A config is a place where a byte is awaited, and what follows that rule.
type config struct {
	node  int32
	stack *frame
}

// A State is what may follow the text so far.
type State struct {
	configs    []config
	accepts    bool
	generation int
	next       *[256]*State // what is known of it; dead where nothing may follow
	mask       Mask
	masked     *Vocabulary // of mask
}

var dead = &State{}

// Accepts tells that the text may end here.
func (s *State) Accepts() bool { return s.accepts }

// Complete tells that it must.
func (s *State) Complete() bool { return s.accepts && len(s.configs) == 0 }

// Start is the state before any text.
func (g *Grammar) Start() (*State, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tidy()
	if g.tables.begin == nil {
		g.tables.begin = g.closure([]config{{g.start, nil}})
	}
	return g.tables.begin, g.exceeded()
}

// Next is the state after more text; nil when that text may not follow.
func (g *Grammar) Next(s *State, text []byte) (*State, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tidy()
	s = g.adopt(s)
	for _, c := range text {
		if s = g.step(s, c); s == dead {
			return nil, g.exceeded()
		}
	}
	return s, g.exceeded()
}

// exceeded is the error of a grammar that takes too much work.
func (g *Grammar) exceeded() error {
	if !g.tables.spent() {
		return nil
	}
	g.tables.states, g.tables.begin = nil, nil // which may lack something
	return domain.Errorf(domain.InvalidArgument,
		"format: it is too ambiguous: there are too many ways to read one text; make its alternatives differ in how they begin")
}

// spent tells that no more may be done for this token.
func (t *tables) spent() bool {
	return t.work > maxWork || t.fresh > maxFresh || len(t.frames) > maxFrames
}

// tidy begins a call: it drops what was remembered when that is too much.
func (g *Grammar) tidy() {
	t := &g.tables
	t.work, t.fresh = 0, 0
	if t.states == nil || len(t.states) > maxStates || t.masks > maxMasks || len(t.frames) > maxFrames/4 {
		*t = tables{generation: t.generation + 1, frames: map[frameKey]*frame{}, states: map[string]*State{}}
	}
}

// adopt is the state in the words of this generation.
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

// step is the state after one more byte.
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

// closure follows everything that takes no byte.
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
	again := func(node, count int32, up *frame) { // a repetition after count times
		n := &g.nodes[node]
		if n.max == unbounded || count < n.max {
			push(config{n.body, g.frame(frameKey{node, count, up})})
		}
		if count >= n.min {
			push(config{n.next, up})
		}
	}
	for len(open) > 0 && len(configs) <= maxConfigs && !g.tables.spent() {
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
		case n.op == opCall && n.next == returns: // nothing follows: no need to come back
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

// counted is the count after one more time. One that no longer matters stays.
func (g *Grammar) counted(f *frame) int32 {
	if n := &g.nodes[f.node]; n.max == unbounded && f.count >= n.min {
		return f.count
	}
	return f.count + 1
}

// intern is the state of these ways; the same is made once.
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
