package grammar

import (
	"bytes"
	"cmp"
	"slices"
)

// A Vocabulary has the tokens of a model, as a prefix tree of their bytes.
type Vocabulary struct {
	size  int
	bytes [][]byte
	// nodes are the nodes of the tree; the first one is the root, and the children of a node are
	// adjacent and sorted.
	nodes []branch
	ids   []int32 // token IDs, grouped by the node at which the tokens end
}

// A branch is a node of the tree: its byte, its children, and the tokens that end at it.
type branch struct {
	byte                 byte
	child, children      int32
	firstToken, numToken int32
}

// NewVocabulary returns the vocabulary of the tokens from 0 to size-1. text returns the bytes of a
// token. A token without bytes is never allowed.
func NewVocabulary(size int, text func(token int) []byte) *Vocabulary {
	v := &Vocabulary{size: size, bytes: make([][]byte, size)}
	var order []int32
	for token := range size {
		if v.bytes[token] = text(token); len(v.bytes[token]) > 0 {
			order = append(order, int32(token))
		}
	}
	slices.SortFunc(order, func(a, b int32) int {
		return cmp.Or(bytes.Compare(v.bytes[a], v.bytes[b]), cmp.Compare(a, b))
	})
	v.ids = order
	v.nodes = []branch{{}}
	v.grow(0, 0, len(order), 0)
	return v
}

// grow adds the subtree of the tokens v.ids[lower:upper] below the node parent. The first depth
// bytes of these tokens are equal.
func (v *Vocabulary) grow(parent, lower, upper, depth int) {
	v.nodes[parent].firstToken = int32(lower)
	for lower < upper && len(v.bytes[v.ids[lower]]) == depth {
		v.nodes[parent].numToken++
		lower++
	}
	var ends []int
	first := len(v.nodes)
	for begin := lower; begin < upper; {
		c, end := v.bytes[v.ids[begin]][depth], begin
		for end < upper && v.bytes[v.ids[end]][depth] == c {
			end++
		}
		v.nodes = append(v.nodes, branch{byte: c})
		ends = append(ends, end)
		begin = end
	}
	v.nodes[parent].child, v.nodes[parent].children = int32(first), int32(len(ends))
	for i, end := range ends {
		v.grow(first+i, lower, end, depth+1)
		lower = end
	}
}

// Bytes returns the bytes of a token.
func (v *Vocabulary) Bytes(token int) []byte { return v.bytes[token] }

// A Mask is a set of tokens, with one bit for each token.
type Mask []uint64

// Has reports whether the mask contains a token.
func (m Mask) Has(token int) bool { return m[token/64]>>(token%64)&1 == 1 }

// Allow adds a token to the mask.
func (m Mask) Allow(token int) { m[token/64] |= 1 << (token % 64) }

// NewMask returns an empty mask for a vocabulary of size tokens.
func NewMask(size int) Mask { return make(Mask, (size+63)/64) }

// Allowed returns the mask of the tokens of v that the grammar accepts after the state s. It caches
// the mask in s.
func (g *Grammar) Allowed(s *State, v *Vocabulary) (Mask, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.prepareCall()
	s = g.adopt(s)
	if s.masked == v {
		return s.mask, nil
	}
	mask := NewMask(v.size)
	g.allow(mask, v, s, &v.nodes[0])
	if err := g.exceeded(); err != nil {
		return nil, err
	}
	s.mask, s.masked = mask, v
	g.tables.masks += 8 * len(mask)
	return mask, nil
}

func (g *Grammar) allow(mask Mask, v *Vocabulary, s *State, at *branch) {
	for i := at.child; i < at.child+at.children && !g.tables.limitReached(); i++ {
		child := &v.nodes[i]
		next := g.step(s, child.byte)
		if next == dead {
			continue
		}
		for _, token := range v.ids[child.firstToken : child.firstToken+child.numToken] {
			mask.Allow(int(token))
		}
		g.allow(mask, v, next, child)
	}
}
