package query

import (
	"math"
	"slices"
)

// integers holds the integers of a column in little memory: differences from the lowest one, if they
// fit into 32 bits, or nothing but one integer that all rows have.
type integers struct {
	base        int64
	differences []uint32 // nil if all are equal to base, or wide is set
	wide        []int64
}

func packed(values []int64) integers {
	if len(values) == 0 {
		return integers{}
	}
	lowest, highest := slices.Min(values), slices.Max(values)
	switch d := uint64(highest) - uint64(lowest); {
	case d == 0:
		return integers{base: lowest}
	case d > math.MaxUint32:
		return integers{wide: slices.Clone(values)}
	}
	out := integers{base: lowest, differences: make([]uint32, len(values))}
	for i, v := range values {
		out.differences[i] = uint32(uint64(v) - uint64(lowest))
	}
	return out
}

func (n *integers) at(i int) int64 {
	switch {
	case n.differences != nil:
		return n.base + int64(n.differences[i])
	case n.wide != nil:
		return n.wide[i]
	}
	return n.base
}

// same reports whether all integers are equal.
func (n *integers) same() bool { return n.differences == nil && n.wide == nil }
