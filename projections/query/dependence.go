package query

import (
	"unsafe"

	"anneal/projections"
)

// A Dependence says on what the value of a top-level field depends besides the row, such as other
// resources, live status or the server. The zero Dependence says that the value of every row may
// depend on something else. Lists render such a field for each row whose value they need. The values
// of other fields are kept in columns: see Block.Derive.
type Dependence[S any] struct {
	// When reports whether the value of a row depends on more than the row; nil means always.
	When func(*projections.Row[S]) bool
	// Stored and Shown are set for a text that follows from another text, which the row stores:
	// the field has the value Shown(Stored(row)). Lists call Shown once for all rows with the same
	// stored text.
	Stored func(*projections.Row[S]) string
	Shown  func(stored string) string
}

// A dependence is a Dependence of any state.
type dependence struct {
	when   func(row unsafe.Pointer) bool
	stored func(row unsafe.Pointer) string
	shown  func(stored string) string
}

// always reports whether every value of the field must be rendered. A nil dependence is that of a
// field that depends on nothing but the row.
func (d *dependence) always() bool { return d != nil && d.when == nil && d.stored == nil }

// alwaysDependent is the dependence of fields of which nothing is known.
var alwaysDependent = &dependence{}

// dependenceOf returns the dependence of a field in a rendering; nil if the field depends on nothing
// but the row.
func dependenceOf[S any](d *Dependence[S]) *dependence {
	if d == nil {
		return nil
	}
	out := &dependence{shown: d.Shown}
	if d.When != nil {
		out.when = func(row unsafe.Pointer) bool { return d.When((*projections.Row[S])(row)) }
	}
	if d.Stored != nil {
		out.stored = func(row unsafe.Pointer) string { return d.Stored((*projections.Row[S])(row)) }
	}
	return out
}

// shownTexts are the texts that a list shows for the texts of a column.
type shownTexts struct {
	block  int // number of the block for which byCode was computed
	byCode []string
	known  map[string]string // by stored text
}

// shownBy returns the texts that the list shows for the texts of column c, by code. index is the index
// of c in candidate.columns.
func (s *candidate) shownBy(index int, c *column, show func(string) string) []string {
	if s.shown == nil {
		s.shown = make([]shownTexts, maxColumns)
	}
	t := &s.shown[index]
	if t.block == s.block {
		return t.byCode
	}
	if t.known == nil {
		t.known = map[string]string{}
	}
	t.block, t.byCode = s.block, t.byCode[:0]
	for code := range c.texts() {
		stored := c.textAt(code)
		shown, ok := t.known[stored]
		if !ok {
			shown = show(stored)
			t.known[stored] = shown
		}
		t.byCode = append(t.byCode, shown)
	}
	return t.byCode
}
