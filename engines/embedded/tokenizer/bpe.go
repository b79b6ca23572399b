package tokenizer

import (
	"sync"
	"unicode/utf8"
)

// A bpe encodes words by byte-pair encoding (Sennrich et al. 2016): it splits a word into its
// smallest tokens, and repeatedly merges the pair of adjacent tokens with the lowest rank.
type bpe struct {
	bytes [256]int32     // ID of the token of each byte
	units map[rune]int32 // IDs of the tokens of single characters; nil if words are split into bytes
	// words are the IDs of tokens by their text. A word that is such a text is not merged from
	// smaller tokens (ignore_merges in tokenizer.json). nil if all words are merged.
	words  map[string]int32
	merges map[uint64]merged
}

// A merged is the result of merging a pair: the rank of the pair and the token that replaces it.
type merged struct{ rank, token int32 }

func pairOf(a, b int32) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

// append appends the tokens of a word to ids.
func (b *bpe) append(ids []int, word string) []int {
	if id, ok := b.words[word]; ok {
		return append(ids, int(id))
	}
	if len(b.merges) == 0 && b.units == nil {
		for i := range len(word) {
			ids = append(ids, int(b.bytes[word[i]]))
		}
		return ids
	}
	m := mergers.Get().(*merger)
	defer mergers.Put(m)
	m.begin(b, word)
	m.merge(b)
	for at := 0; at < len(m.parts); at = int(m.parts[at].next) {
		ids = append(ids, int(m.parts[at].token))
	}
	return ids
}

// A merger merges the tokens of one word. The tokens are a linked list, and the pairs that can be
// merged a heap, so that a word of n tokens takes n·log n steps.
type merger struct {
	parts []part
	heap  []candidate
}

// A part is a token in the list. token is -1 after the part was merged into the one before it.
type part struct{ token, previous, next int32 }

// A candidate is a pair that can be merged: the part at and the next one. It is outdated if the
// parts have changed since it was added to the heap.
type candidate struct {
	rank, at int32
	pair     uint64
	token    int32 // token that replaces the pair
}

func (c candidate) before(o candidate) bool {
	return c.rank < o.rank || c.rank == o.rank && c.at < o.at
}

var mergers = sync.Pool{New: func() any { return new(merger) }}

// begin splits a word into its smallest tokens.
func (m *merger) begin(b *bpe, word string) {
	m.parts, m.heap = m.parts[:0], m.heap[:0]
	add := func(token int32) {
		at := int32(len(m.parts))
		m.parts = append(m.parts, part{token, at - 1, at + 1})
	}
	for len(word) > 0 {
		size := 1
		var token int32
		known := false
		if b.units != nil {
			var r rune
			r, size = utf8.DecodeRuneInString(word)
			token, known = b.units[r]
			known = known && (r != utf8.RuneError || size > 1)
		}
		if known {
			add(token)
		} else {
			for i := range size {
				add(b.bytes[word[i]])
			}
		}
		word = word[size:]
	}
	for at := range m.parts {
		m.consider(b, int32(at))
	}
}

// consider adds part and the next one to the heap, if they can be merged.
func (m *merger) consider(b *bpe, part int32) {
	if part < 0 {
		return
	}
	next := m.parts[part].next
	if int(next) >= len(m.parts) {
		return
	}
	pair := pairOf(m.parts[part].token, m.parts[next].token)
	if found, ok := b.merges[pair]; ok {
		m.push(candidate{found.rank, part, pair, found.token})
	}
}

// merge merges pairs in the order of their ranks, until none can be merged.
func (m *merger) merge(b *bpe) {
	for len(m.heap) > 0 {
		c := m.pop()
		left := &m.parts[c.at]
		if left.token < 0 || int(left.next) >= len(m.parts) || pairOf(left.token, m.parts[left.next].token) != c.pair {
			continue
		}
		right := &m.parts[left.next]
		left.token, right.token = c.token, -1
		left.next = right.next
		if int(left.next) < len(m.parts) {
			m.parts[left.next].previous = c.at
		}
		m.consider(b, left.previous)
		m.consider(b, c.at)
	}
}

func (m *merger) push(c candidate) {
	m.heap = append(m.heap, c)
	for at := len(m.heap) - 1; at > 0; {
		parent := (at - 1) / 2
		if !m.heap[at].before(m.heap[parent]) {
			return
		}
		m.heap[at], m.heap[parent] = m.heap[parent], m.heap[at]
		at = parent
	}
}

func (m *merger) pop() candidate {
	first, last := m.heap[0], len(m.heap)-1
	m.heap[0] = m.heap[last]
	m.heap = m.heap[:last]
	for at := 0; ; {
		smallest := at
		for child := 2*at + 1; child <= 2*at+2 && child < last; child++ {
			if m.heap[child].before(m.heap[smallest]) {
				smallest = child
			}
		}
		if smallest == at {
			return first
		}
		m.heap[at], m.heap[smallest] = m.heap[smallest], m.heap[at]
		at = smallest
	}
}
