package grammar

import (
	"cmp"
	"slices"
	"unicode/utf8"
)

// A span is a range of characters, from lo to hi.
type span struct{ lo, hi rune }

// A class is a set of characters: spans in ascending order with gaps between them.
type class []span

// newClass sorts and merges spans.
func newClass(spans ...span) class {
	spans = slices.Clone(spans)
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
	var out class
	for _, s := range spans {
		s.lo, s.hi = max(s.lo, 0), min(s.hi, utf8.MaxRune)
		switch last := len(out) - 1; {
		case s.lo > s.hi:
		case last >= 0 && s.lo <= out[last].hi+1:
			out[last].hi = max(out[last].hi, s.hi)
		default:
			out = append(out, s)
		}
	}
	return out
}

func one(r rune) class { return class{{r, r}} }

var anyRune = class{{0, utf8.MaxRune}}

// without returns the characters of c that are not in d.
func (c class) without(d class) class {
	var out class
	for _, s := range c {
		for _, cut := range d {
			if cut.hi < s.lo || cut.lo > s.hi {
				continue
			}
			if cut.lo > s.lo {
				out = append(out, span{s.lo, cut.lo - 1})
			}
			s.lo = cut.hi + 1
		}
		if s.lo <= s.hi {
			out = append(out, s)
		}
	}
	return out
}

func (c class) has(r rune) bool {
	return slices.ContainsFunc(c, func(s span) bool { return s.lo <= r && r <= s.hi })
}

// runes returns an expression that matches a character of a class, in UTF-8.
func runes(c class) expr {
	return func(b *builder, next int32) int32 {
		var ways [][]edge
		for _, s := range c.without(class{{0xD800, 0xDFFF}}) {
			ways = encodings(ways, s)
		}
		return b.ways(ways, next)
	}
}

// ways returns a node from which each sequence of edges in ways leads to the node next. ways must
// be sorted.
func (b *builder) ways(ways [][]edge, next int32) int32 {
	var edges []edge
	for len(ways) > 0 {
		e, same := ways[0][0], 1
		for same < len(ways) && ways[same][0] == e {
			same++
		}
		e.next = next
		if len(ways[0]) > 1 {
			rest := make([][]edge, same)
			for i := range rest {
				rest[i] = ways[i][1:]
			}
			e.next = b.ways(rest, next)
		}
		edges = append(edges, e)
		ways = ways[same:]
	}
	if len(edges) == 1 {
		return b.single(edges[0])
	}
	return b.add(node{op: opBytes, edges: edges})
}

// encodings appends sequences of byte ranges that match the UTF-8 encodings of a span. It splits
// the span where the length of the encoding changes, and where the last bytes do not have their
// full range.
func encodings(ways [][]edge, s span) [][]edge {
	for _, last := range []rune{0x7F, 0x7FF, 0xFFFF} {
		if s.lo <= last && s.hi > last {
			return encodings(encodings(ways, span{s.lo, last}), span{last + 1, s.hi})
		}
	}
	if s.hi > 0x7F {
		for shift := 6; shift <= 18; shift += 6 {
			m := rune(1)<<shift - 1
			if s.lo&^m == s.hi&^m {
				break
			}
			if s.lo&m != 0 {
				return encodings(encodings(ways, span{s.lo, s.lo | m}), span{s.lo | m + 1, s.hi})
			}
			if s.hi&m != m {
				return encodings(encodings(ways, span{s.lo, s.hi&^m - 1}), span{s.hi &^ m, s.hi})
			}
		}
	}
	lo, hi := utf8.AppendRune(nil, s.lo), utf8.AppendRune(nil, s.hi)
	way := make([]edge, len(lo))
	for i := range way {
		way[i] = edge{lo: lo[i], hi: hi[i]}
	}
	return append(ways, way)
}
