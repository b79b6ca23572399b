package query

import "math/bits"

// A predicate reports whether candidates match a term, or several combined terms, of a filter.
type predicate struct {
	// row reports whether the candidate matches.
	row func(*candidate) bool
	// rows returns the rows of the block that a scan considers which may match. If exact is true, all
	// of them do. It reads columns, not rows. It may be nil: then all rows may match.
	rows func(*candidate) (rows rowSet, exact bool)
}

// rowPredicate returns the predicate that calls match for each candidate.
func rowPredicate(match func(*candidate) bool) predicate { return predicate{row: match} }

// among returns the rows of the block that may match: see rows.
func (p predicate) among(s *candidate) (rows rowSet, exact bool) {
	if p.rows == nil {
		return firstRows(s.length), false
	}
	return p.rows(s)
}

// not returns the negation of the predicate.
func (p predicate) not() predicate {
	return predicate{
		row: func(s *candidate) bool { return !p.row(s) },
		rows: func(s *candidate) (rowSet, bool) {
			all := firstRows(s.length)
			rows, exact := p.among(s)
			if !exact {
				return all, false
			}
			return all.without(&rows), true
		}}
}

// join returns the disjunction of the predicates if or is true, otherwise their conjunction.
func join(parts []predicate, or bool) predicate {
	return predicate{
		row: func(s *candidate) bool {
			for _, one := range parts {
				if one.row(s) == or {
					return or
				}
			}
			return !or
		},
		rows: func(s *candidate) (rows rowSet, exact bool) {
			if !or {
				rows = firstRows(s.length)
			}
			exact = true
			for _, one := range parts {
				found, known := one.among(s)
				if exact = exact && known; or {
					rows.addAll(&found)
				} else if rows.retain(&found); rows == (rowSet{}) {
					return rows, true
				}
			}
			return rows, exact
		}}
}

// termRows are the rows of a block that match a term of a filter, and those of which only the row says
// whether they match.
type termRows struct {
	block            int // number of the block for which the sets were computed: see candidate.block
	matches, unknown rowSet
}

// term returns the predicate of a term whose rows compute computes once for each block. slow reports
// the same for one row, without a block.
func (c *scope) term(slow func(*candidate) bool, compute func(*candidate) (matches, unknown rowSet)) predicate {
	index := c.terms
	c.terms++
	of := func(s *candidate) *termRows {
		if index >= len(s.terms) {
			s.terms = append(s.terms, make([]termRows, index+1-len(s.terms))...)
		}
		t := &s.terms[index]
		if t.block != s.block {
			t.block = s.block
			t.matches, t.unknown = compute(s)
		}
		return t
	}
	return predicate{
		row: func(s *candidate) bool {
			if s.scan == nil {
				return slow(s)
			}
			t := of(s)
			return t.matches.has(s.index) || t.unknown.has(s.index) && slow(s)
		},
		rows: func(s *candidate) (rowSet, bool) {
			t := of(s)
			rows := t.matches
			rows.addAll(&t.unknown)
			return rows, t.unknown == rowSet{}
		}}
}

// firstRows returns the set of the rows below n.
func firstRows(n int) (all rowSet) {
	for i := range all {
		switch left := n - 64*i; {
		case left >= 64:
			all[i] = ^uint64(0)
		case left > 0:
			all[i] = 1<<left - 1
		}
	}
	return all
}

func (s *rowSet) has(i int) bool { return s != nil && s[i/64]&(1<<(i%64)) != 0 }
func (s *rowSet) add(i int)      { s[i/64] |= 1 << (i % 64) }

func (s *rowSet) addAll(o *rowSet) {
	for i := range s {
		s[i] |= o[i]
	}
}

func (s *rowSet) retain(o *rowSet) {
	for i := range s {
		s[i] &= o[i]
	}
}

// without returns the rows of the set that are not in o; all rows if o is nil.
func (s *rowSet) without(o *rowSet) rowSet {
	out := *s
	if o != nil {
		for i := range out {
			out[i] &^= o[i]
		}
	}
	return out
}

// each calls f for each row of the set, in ascending order.
func (s *rowSet) each(f func(i int)) {
	for w, word := range s {
		for ; word != 0; word &= word - 1 {
			f(64*w + bits.TrailingZeros64(word))
		}
	}
}

func (s *rowSet) count() (n int) {
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

// addTo adds row i to the set at s, which it creates if it is nil.
func addTo(s **rowSet, i int) {
	if *s == nil {
		*s = new(rowSet)
	}
	(*s).add(i)
}

// orNone returns the set at s; the empty set if s is nil.
func orNone(s *rowSet) rowSet {
	if s == nil {
		return rowSet{}
	}
	return *s
}
