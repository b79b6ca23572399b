package query

import (
	"reflect"
	"unsafe"
)

// A candidate is a row that a filter tests or an order compares, with the row's wire form. A field
// of the wire form is rendered when it is read for the first time.
type candidate struct {
	row      unsafe.Pointer     // pointer to the row, of type Row[S]
	wire     unsafe.Pointer     // pointer to the wire form, of type R
	rendered uint64             // has a bit for each renderer: set if it was called for this row
	render   func(renderer int) // calls the renderer with this number, which sets fields of wire
	columns  []*column          // columns of the row's block; nil for fields that must be read from the row
	index    int                // index of the row in its block
	block    int                // number of the block among those that the scan has considered, from 1; 0 without one
	length   int                // number of rows of the block
	terms    []termRows         // by term of the filter
	shown    []shownTexts       // by column
	scan     scanned            // the block; nil without one
}

// scanned is the block of rows that a scan considers.
type scanned interface {
	derive(key any, compute func() any) any // see projections.Block.Derive
	// each makes every row of the block the candidate, in turns, and calls f with its number, its
	// address and its name.
	each(f func(i int, row unsafe.Pointer, name string))
}

// Numbers of the renderers of a candidate. Numbers from 1 stand for renderers of single fields: see
// Rendering.Field.
const (
	storedField  = -1 // the field is read from the row, without rendering
	fullRenderer = 0  // Rendering.All, which sets all fields of the wire form
	maxRenderers = 63
)

// renderedCandidate returns a candidate whose wire form is already rendered.
func renderedCandidate[R any](wire *R) *candidate {
	return &candidate{wire: unsafe.Pointer(wire), rendered: 1 << fullRenderer}
}

// at returns the address of the row for storedField. For other renderers, it returns the address of
// the wire form, after it has called the renderer if needed.
func (s *candidate) at(renderer int) unsafe.Pointer {
	if renderer == storedField {
		return s.row
	}
	if s.rendered&(1<<renderer|1<<fullRenderer) == 0 {
		s.render(renderer)
		s.rendered |= 1 << renderer
	}
	return s.wire
}

// A locator computes the address of a field from the address of a struct. A scan calls it for every
// row, for which reflection would be too slow. Its offsets are those of the fields in path.steps.
type locator struct {
	offset uintptr
	below  []uintptr // for each pointer on the way to the field: the next offset, in the struct to which it points
}

// locate returns the locator of the path's field. The result is false if the path leads through a
// map or a list, which has no fixed offset.
func (p *path) locate() (locator, bool) {
	t, offsets := p.root, []uintptr{0}
	direct := func() {
		for t.Kind() == reflect.Pointer {
			t, offsets = t.Elem(), append(offsets, 0)
		}
	}
	for _, s := range p.steps {
		if s.each || s.key != nil {
			return locator{}, false
		}
		for _, i := range s.index {
			direct()
			f := t.Field(i)
			t = f.Type
			offsets[len(offsets)-1] += f.Offset
		}
	}
	direct()
	return locator{offsets[0], offsets[1:]}, t == p.leaf.typ
}

// find returns the address of the field in the struct at the address base; nil if a pointer on the
// way is nil.
func (l *locator) find(base unsafe.Pointer) unsafe.Pointer {
	at := unsafe.Add(base, l.offset)
	for _, offset := range l.below {
		if at = *(*unsafe.Pointer)(at); at == nil {
			return nil
		}
		at = unsafe.Add(at, offset)
	}
	return at
}

// A scope holds the fields that a filter or an order can name, and how to read them from a
// candidate.
type scope struct {
	root     *field
	stored   *field                // the fields that are read from the row; nil if there are none
	renderer func(name string) int // returns the renderer of a top-level field; if nil, all fields have fullRenderer

	// depends returns the dependence of a top-level field; nil if there is none. If depends is nil,
	// all rendered fields are alwaysDependent.
	depends func(name string) *dependence

	columns []columnField // columns of the fields that were resolved
	terms   int           // number of terms whose rows are computed for each block
}

// resolve returns the path to the field whose dotted name has the parts names. The error is for the
// user of the API.
func (c *scope) resolve(names []string) (path, error) {
	in, renderer := c.root, fullRenderer
	if c.root.shape == objectShape {
		if top := c.root.byName[names[0]]; top != nil {
			in, renderer = c.source(top)
		}
	}
	p, err := in.resolve(names)
	p.scope, p.renderer, p.depends = c, renderer, c.dependence(names[0], renderer)
	if err == nil {
		p.column = c.column(&p)
	}
	return p, err
}

// dependence returns the dependence of a top-level field that is read with a renderer.
func (c *scope) dependence(name string, renderer int) *dependence {
	switch {
	case renderer != fullRenderer:
		return nil
	case c.depends == nil || c.root.shape != objectShape || c.root.byName[name] == nil:
		return alwaysDependent
	}
	return c.depends(c.root.byName[name].name)
}

// source returns the object field that contains the top-level field top, and the renderer with
// which to read it.
func (c *scope) source(top *field) (*field, int) {
	if c.stored != nil && c.stored.byName[top.name] != nil {
		return c.stored, storedField
	}
	if c.renderer == nil {
		return c.root, fullRenderer
	}
	return c.root, c.renderer(top.name)
}
