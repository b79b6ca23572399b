package query

import (
	"math"
	"strings"
	"time"
)

// A column has the values of one scalar field for all rows of a block. A scan reads it instead of the rows,
// each of which takes several accesses to memory. Only fields that depend on nothing but the row have
// columns.
type column struct {
	absent []uint64  // the rows without a value, a bit each; nil if all have one
	whole  []int64   // of integers, booleans, durations, and times in nanoseconds since 1970
	reals  []float64 // of numbers
	text   string    // the texts of all rows, or the one text that all rows have
	ends   []uint32  // the ends of the texts; nil if all rows have the same text
}

// maxColumns is the maximum number of columns of a list. maxColumnText is the maximum length of a text in a
// column with several texts, on average.
const (
	maxColumns    = 8
	maxColumnText = 64
)

// A columnKey identifies a column among the values that are derived from a block.
type columnKey struct {
	root *field // of the wire type
	name string
}

func (c *column) isAbsent(i int) bool { return c.absent != nil && c.absent[i/64]&(1<<(i%64)) != 0 }

func (c *column) textAt(i int) string {
	switch {
	case c.ends == nil:
		return c.text
	case i == 0:
		return c.text[:c.ends[0]]
	}
	return c.text[c.ends[i-1]:c.ends[i]]
}

func (c *column) wholeAt(i int) int64 { return c.whole[i] }

func (c *column) boolAt(i int) bool { return c.whole[i] != 0 }

func (c *column) realAt(i int) float64 { return c.reals[i] }

func (c *column) timeAt(i int) time.Time { return time.Unix(0, c.whole[i]).UTC() }

// valueAt returns the value of a row as an order key of a shape reads it.
func (c *column) valueAt(s shape, i int) keyValue {
	switch {
	case c.isAbsent(i):
		return keyValue{missing: true}
	case s == text:
		return keyValue{text: c.textAt(i)}
	case s == number:
		return keyValue{real: c.reals[i]}
	case s == instant:
		return keyValue{at: c.timeAt(i)}
	}
	return keyValue{whole: c.whole[i]}
}

// newColumn returns the column of a field with the values of n rows, which read returns. The result is nil
// if the values are too large for a column.
func newColumn(f *field, n int, read func(i int) keyValue) *column {
	c := &column{}
	var texts []string
	for i := range n {
		v := read(i)
		if v.missing {
			if c.absent == nil {
				c.absent = make([]uint64, (n+63)/64)
			}
			c.absent[i/64] |= 1 << (i % 64)
		}
		switch {
		case f.shape == text:
			texts = append(texts, v.text)
		case f.shape == number:
			c.reals = append(c.reals, v.real)
		case f.shape == instant:
			if y := v.at.Year(); !v.missing && (y < 1700 || y > 2200) {
				return nil // the nanoseconds may not fit
			}
			c.whole = append(c.whole, v.at.UnixNano())
		default:
			c.whole = append(c.whole, v.whole)
		}
	}
	if texts != nil && !c.setTexts(texts) {
		return nil
	}
	return c
}

func (c *column) setTexts(texts []string) (fit bool) {
	size, same := 0, true
	for _, s := range texts {
		size += len(s)
		same = same && s == texts[0]
	}
	if same {
		c.text = texts[0]
		return true
	}
	if size > maxColumnText*len(texts) || size > math.MaxUint32 {
		return false
	}
	c.ends = make([]uint32, len(texts))
	var all strings.Builder
	all.Grow(size)
	for i, s := range texts {
		all.WriteString(s)
		c.ends[i] = uint32(all.Len())
	}
	c.text = all.String()
	return true
}

// A columnField is a field with a column.
type columnField struct {
	key  columnKey
	leaf *field
	read func(*subject) keyValue // reads a value from the row
}

// column returns the index of the field's column among those of the scope; -1 if it has none.
func (c *scope) column(p *path) int {
	if _, ok := p.locate(); !ok || p.part == wholePart || !p.leaf.shape.scalar() || p.leaf.parsed {
		return -1
	}
	key := columnKey{c.root, p.name}
	for i, one := range c.columns {
		if one.key == key {
			return i
		}
	}
	if len(c.columns) == maxColumns {
		return -1
	}
	c.columns = append(c.columns, columnField{key, p.leaf, p.reader()})
	return len(c.columns) - 1
}

// column returns the column with an index; nil if it must be read from the row.
func (s *subject) column(index int) *column {
	if index < 0 || index >= len(s.columns) {
		return nil
	}
	return s.columns[index]
}
