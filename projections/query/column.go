package query

import (
	"math"
	"strings"
	"time"
	"unique"
	"unsafe"

	"anneal/projections"
)

// A column holds the values of one scalar field for all rows of a projections.Block. A scan reads
// columns instead of rows, because each row takes several memory accesses. A column has only values
// that depend on nothing but the row.
type column struct {
	absent    *rowSet   // the rows without a value; nil if all rows have one
	dependent *rowSet   // the rows whose value depends on more than the row; nil if there are none
	integers  integers  // values that are integers, booleans, durations, or times in nanoseconds since 1970
	floats    []float64 // values that are floating-point numbers
	text      string    // the different texts of the rows, concatenated, or the one text that all rows have
	ends      []uint16  // end of each text in text; nil if all rows have the same text
	codes     []uint8   // number of each row's text; nil if every row has a text of its own
	kind      columnKind
	lowest    uint8 // number of a row with the lowest value in the order of a list
	highest   uint8 // number of a row with the highest value
}

// A columnKind says which fields of a column hold its values.
type columnKind uint8

const (
	integerColumn columnKind = iota
	floatColumn
	textColumn
)

// A rowSet is a set of rows of a block.
type rowSet [projections.BlockRows / 64]uint64

// maxColumns is the maximum number of columns that one list uses. maxColumnText is the maximum size
// of the different texts in a column, in bytes for each row.
const (
	maxColumns    = 8
	maxColumnText = 64
)

// A columnKey is the key of a column for Block.Derive.
type columnKey struct {
	root *field // root of the tree of fields to which the field of the column belongs
	name string
}

// textAt returns the text with a number: see code.
func (c *column) textAt(code int) string {
	switch {
	case c.ends == nil:
		return c.text
	case code == 0:
		return c.text[:c.ends[0]]
	}
	return c.text[c.ends[code-1]:c.ends[code]]
}

// texts returns the number of texts in a column of texts.
func (c *column) texts() int { return max(1, len(c.ends)) }

// code returns the number of the text of row i.
func (c *column) code(i int) int {
	switch {
	case c.ends == nil:
		return 0
	case c.codes == nil:
		return i
	}
	return int(c.codes[i])
}

func (c *column) integerAt(i int) int64 { return c.integers.at(i) }

func (c *column) boolAt(i int) bool { return c.integers.at(i) != 0 }

func (c *column) floatAt(i int) float64 { return c.floats[i] }

func (c *column) timeAt(i int) time.Time { return time.Unix(0, c.integers.at(i)).UTC() }

// valueAt returns the value of the block's row i. s is the shape of the column's field.
func (c *column) valueAt(s shape, i int) keyValue {
	switch {
	case c.absent.has(i):
		return keyValue{missing: true}
	case s == text:
		return keyValue{text: c.textAt(c.code(i))}
	case s == number:
		return keyValue{float: c.floats[i]}
	case s == timestamp:
		return keyValue{time: c.timeAt(i)}
	}
	return keyValue{integer: c.integers.at(i)}
}

// matching returns the rows, of n in the block, with a value for which match returns true. match gets
// the number of the row or, for a column of texts, the number of its text.
func (c *column) matching(n int, match func(c *column, i int) bool) (rows rowSet) {
	switch {
	case c.kind == integerColumn && c.integers.same() || c.kind == textColumn && c.ends == nil:
		if match(c, 0) {
			rows = firstRows(n)
		}
	case c.kind == textColumn && c.codes != nil:
		var found [projections.BlockRows]bool
		for code := range c.texts() {
			found[code] = match(c, code)
		}
		for i, code := range c.codes {
			if found[code] {
				rows.add(i)
			}
		}
	default:
		for i := range n {
			if match(c, i) {
				rows.add(i)
			}
		}
	}
	if c.absent != nil {
		for i := range rows {
			rows[i] &^= c.absent[i]
		}
	}
	return rows
}

// newColumn returns a column with the values of field f in n rows. read returns the value of row i.
// dependent reports whether the value of row i depends on more than the row; nil if none does. The
// result is nil if the values are too large for a column.
func newColumn(f *field, n int, dependent func(i int) bool, read func(i int) keyValue) *column {
	c := &column{kind: integerColumn}
	var texts []string
	var integers []int64
	var lowest, highest keyValue
	for i := range n {
		var v keyValue
		if dependent != nil && dependent(i) {
			addTo(&c.dependent, i)
		} else {
			v = read(i)
		}
		if v.missing {
			addTo(&c.absent, i)
		}
		if i == 0 || compareValues(f.shape, v, lowest) < 0 {
			lowest, c.lowest = v, uint8(i)
		}
		if i == 0 || compareValues(f.shape, v, highest) > 0 {
			highest, c.highest = v, uint8(i)
		}
		switch {
		case f.shape == text:
			texts = append(texts, v.text)
		case f.shape == number:
			c.floats = append(c.floats, v.float)
		case f.shape == timestamp:
			if y := v.time.Year(); !v.time.IsZero() && (y < 1700 || y > 2200) {
				return nil // the nanoseconds may not fit into an int64
			}
			integers = append(integers, v.time.UnixNano())
		default:
			integers = append(integers, v.integer)
		}
	}
	switch {
	case texts != nil:
		if c.kind = textColumn; !c.setTexts(texts) {
			return nil
		}
	case c.floats != nil:
		c.kind = floatColumn
	default:
		c.integers = packed(integers)
	}
	return c
}

func (c *column) setTexts(texts []string) (fit bool) {
	known := make(map[string]uint8, len(texts))
	codes, different, size := make([]uint8, len(texts)), texts[:0:0], 0
	for i, s := range texts {
		if i > 0 && s == texts[i-1] {
			codes[i] = codes[i-1]
			continue
		}
		code, ok := known[s]
		if !ok {
			code = uint8(len(different))
			known[s], different, size = code, append(different, s), size+len(s)
		}
		codes[i] = code
	}
	switch {
	case len(different) == 1:
		c.text = strings.Clone(different[0])
		return true
	case size > maxColumnText*len(texts):
		return false
	case len(different) > len(texts)/2:
		different, size = texts, 0
		for _, s := range texts {
			size += len(s)
		}
		if size > math.MaxUint16 {
			return false
		}
	default:
		c.codes = codes
	}
	c.ends = make([]uint16, len(different))
	var all strings.Builder
	all.Grow(size)
	for i, s := range different {
		all.WriteString(s)
		c.ends[i] = uint16(all.Len())
	}
	c.text = all.String()
	return true
}

// A columnField is a field whose values a scan reads from a column.
type columnField struct {
	key       unique.Handle[columnKey] // a handle is compared faster
	leaf      *field
	read      func(*candidate) keyValue     // reads the value from the row, to compute the column
	dependent func(row unsafe.Pointer) bool // see Dependence.When; nil if the value depends on nothing but the row
}

// column returns the index in c.columns of the column of the path's field, which it adds if needed;
// -1 if the field cannot have a column, or there are maxColumns others.
func (c *scope) column(p *path) int {
	if _, ok := p.locate(); !ok || p.depends.always() || !p.leaf.shape.scalar() || p.leaf.parsed {
		return -1
	}
	key := unique.Make(columnKey{c.root, p.name})
	for i, one := range c.columns {
		if one.key == key {
			return i
		}
	}
	if len(c.columns) == maxColumns {
		return -1
	}
	one := columnField{key: key, leaf: p.leaf, read: p.reader()}
	if d := p.depends; d != nil {
		one.dependent = d.when
		if d.stored != nil {
			one.read = func(s *candidate) keyValue { return keyValue{text: d.stored(s.row)} }
		}
	}
	c.columns = append(c.columns, one)
	return len(c.columns) - 1
}

// column returns the column with this index; nil if the value of the candidate must be read from the
// row.
func (s *candidate) column(index int) *column {
	if index < 0 || index >= len(s.columns) || s.columns[index] == nil || s.columns[index].dependent.has(s.index) {
		return nil
	}
	return s.columns[index]
}
