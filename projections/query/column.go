package query

import (
	"math"
	"strings"
	"time"
)

// A column holds the values of one scalar field for all rows of a projections.Block. A scan reads
// columns instead of rows, because each row takes several memory accesses. Only fields that depend
// on nothing but the row have columns.
type column struct {
	absent   []uint64  // has a bit for each row: set if the row has no value; nil if all rows have one
	integers []int64   // values that are integers, booleans, durations, or times in nanoseconds since 1970
	floats   []float64 // values of the rows that are floating-point numbers
	text     string    // the texts of all rows, concatenated, or the one text that all rows have
	ends     []uint32  // end of each row's text in text; nil if all rows have the same text
}

// maxColumns is the maximum number of columns that one list uses. maxColumnText is the maximum
// average length of the texts in a column.
const (
	maxColumns    = 8
	maxColumnText = 64
)

// A columnKey is the key of a column for Block.Derive.
type columnKey struct {
	root *field // root of the tree of fields to which the field of the column belongs
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

func (c *column) integerAt(i int) int64 { return c.integers[i] }

func (c *column) boolAt(i int) bool { return c.integers[i] != 0 }

func (c *column) floatAt(i int) float64 { return c.floats[i] }

func (c *column) timeAt(i int) time.Time { return time.Unix(0, c.integers[i]).UTC() }

// valueAt returns the value of the block's row i. s is the shape of the column's field.
func (c *column) valueAt(s shape, i int) keyValue {
	switch {
	case c.isAbsent(i):
		return keyValue{missing: true}
	case s == text:
		return keyValue{text: c.textAt(i)}
	case s == number:
		return keyValue{float: c.floats[i]}
	case s == timestamp:
		return keyValue{time: c.timeAt(i)}
	}
	return keyValue{integer: c.integers[i]}
}

// newColumn returns a column with the values of field f in n rows. read returns the value of row i.
// The result is nil if the values are too large for a column.
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
			c.floats = append(c.floats, v.float)
		case f.shape == timestamp:
			if y := v.time.Year(); !v.missing && (y < 1700 || y > 2200) {
				return nil // no column, because the nanoseconds of the time may not fit into an int64
			}
			c.integers = append(c.integers, v.time.UnixNano())
		default:
			c.integers = append(c.integers, v.integer)
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

// A columnField is a field whose values a scan reads from a column.
type columnField struct {
	key  columnKey
	leaf *field
	read func(*candidate) keyValue // reads the value from the row, to compute the column
}

// column returns the index in c.columns of the column of the path's field, which it adds if needed;
// -1 if the field cannot have a column, or there are maxColumns others.
func (c *scope) column(p *path) int {
	if _, ok := p.locate(); !ok || p.renderer == fullRenderer || !p.leaf.shape.scalar() || p.leaf.parsed {
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

// column returns the column with this index; nil if the value must be read from the row.
func (s *candidate) column(index int) *column {
	if index < 0 || index >= len(s.columns) {
		return nil
	}
	return s.columns[index]
}
