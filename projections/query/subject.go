package query

import (
	"reflect"
	"unsafe"
)

// A subject is what a filter tests and what an order reads: a row, and its wire form, parts of which
// are rendered when they are read for the first time.
type subject struct {
	row      unsafe.Pointer // a Row[S]
	wire     unsafe.Pointer // an R
	rendered uint64         // the parts of wire that are rendered, a bit each
	render   func(part int) // renders a part into wire
	columns  []*column      // of the block that has the row; nil for fields that must be read from the row
	index    int            // index of the row in its block
}

// Parts of a subject. Further numbers are those of fields of the wire form that are rendered alone:
// see Rendering.
const (
	storedPart = -1 // the row
	wholePart  = 0  // the complete wire form
	maxPart    = 63
)

// renderedSubject returns a subject whose wire form is complete.
func renderedSubject[R any](wire *R) *subject {
	return &subject{wire: unsafe.Pointer(wire), rendered: 1 << wholePart}
}

// at returns the address of the row or the wire form, whichever has a part of the subject.
func (s *subject) at(part int) unsafe.Pointer {
	if part == storedPart {
		return s.row
	}
	if s.rendered&(1<<part|1<<wholePart) == 0 {
		s.render(part)
		s.rendered |= 1 << part
	}
	return s.wire
}

// A locator finds a field in a struct by its address. A scan of a list calls it for every row, where
// reflection would take most of the time. The offsets are those of the fields that path.steps name
// for reflection.
type locator struct {
	offset uintptr
	below  []uintptr // the offsets in the structs to which pointers on the way lead
}

// locate returns the locator of the path's field. The result is false if the path leads through a map
// or a list.
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

// find returns the address of the field in the struct at base; nil if a pointer on the way is nil.
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

// A scope has the fields that a filter or an order can name, and where a subject has them.
type scope struct {
	root   *field
	stored *field                // the fields that are read from the row; nil for none
	part   func(name string) int // returns the part of a top-level field, by its JSON name; nil: all are in wholePart

	columns []columnField // of the paths that were resolved
}

// resolve returns the path to the field whose dotted name has the given parts. The error is shown to
// the caller of the API.
func (c *scope) resolve(names []string) (path, error) {
	in, part := c.root, wholePart
	if c.root.shape == message {
		if top := c.root.byName[names[0]]; top != nil {
			in, part = c.source(top)
		}
	}
	p, err := in.resolve(names)
	if p.part = part; err == nil {
		p.column = c.column(&p)
	}
	return p, err
}

// source returns the message from which a field of the root is read, and its part.
func (c *scope) source(top *field) (*field, int) {
	if c.stored != nil && c.stored.byName[top.name] != nil {
		return c.stored, storedPart
	}
	if c.part == nil {
		return c.root, wholePart
	}
	return c.root, c.part(top.name)
}
