package query

import (
	"reflect"
	"slices"
)

// search returns a predicate that reports whether any text of a candidate contains the word. It tests
// fields that are read from the row first, because the others must be rendered. When a scan considers
// a block, it searches the block's textIndex.
func (c *scope) search(w *word) predicate {
	if c.root.shape != objectShape {
		p := path{root: c.root.typ, leaf: c.root, column: -1}
		return p.matches(textsTest(c.root, w.isIn))
	}
	inRow, inWire := c.searchLocal(w.isIn)
	local := c.term(join(append(inRow, inWire...), true).row, func(s *candidate) (matches, unknown rowSet) {
		ix := c.textIndex(s)
		if ix == nil || !ix.finds(w) {
			return matches, firstRows(s.length)
		}
		return ix.find(w), orNone(ix.dependent)
	})
	return join(append([]predicate{local}, c.searchDependent(w.isIn)...), true)
}

// searchLocal returns predicates, at least one of which is true if found returns true for a text in a
// field whose values, at least of some rows, depend on nothing but the row. inRow are those of fields
// that are read from the row, inWire those of fields that are rendered.
func (c *scope) searchLocal(found func(string) bool) (inRow, inWire []predicate) {
	for _, top := range c.root.ordered {
		in, renderer := c.source(top)
		if d := c.dependence(top.name, renderer); d != nil && d.when == nil {
			continue
		}
		child := in.byName[top.name]
		p := path{root: in.typ, renderer: renderer, leaf: child, steps: []step{{index: child.index}}, column: -1}
		if renderer == storedField {
			inRow = append(inRow, p.search(found)...)
		} else {
			inWire = append(inWire, p.search(found)...)
		}
	}
	return inRow, inWire
}

// searchDependent returns the predicates of the fields that searchLocal leaves out.
func (c *scope) searchDependent(found func(string) bool) (all []predicate) {
	for _, top := range c.root.ordered {
		in, renderer := c.source(top)
		d := c.dependence(top.name, renderer)
		if d == nil || d.when != nil {
			continue
		}
		child := in.byName[top.name]
		p := path{root: in.typ, renderer: renderer, leaf: child, steps: []step{{index: child.index}}, column: -1}
		if d.stored != nil {
			p.name, p.scope, p.depends = top.name, c, d
			p.column = c.column(&p)
		}
		all = append(all, p.search(found)...)
	}
	return all
}

// search returns predicates, at least one of which is true if found returns true for a text in the
// value of the path's field.
func (p path) search(found func(string) bool) (all []predicate) {
	if p.leaf.shape != objectShape {
		if hasSearchableText(p.leaf) {
			all = append(all, p.matches(textsTest(p.leaf, found)))
		}
		return all
	}
	for _, child := range p.leaf.ordered {
		below := p
		below.leaf, below.steps = child, append(slices.Clip(p.steps), step{index: child.index})
		all = append(all, below.search(found)...)
	}
	return all
}

// hasSearchableText reports whether a term that is a word without a field searches the values of f.
func hasSearchableText(f *field) bool {
	return f.shape == text || f.shape == anyJSON ||
		f.shape == objectShape && slices.ContainsFunc(f.ordered, hasSearchableText) ||
		f.shape == list && hasSearchableText(f.elem)
}

// textsTest returns a test that reports whether found returns true for any text in a value of f.
func textsTest(f *field, found func(string) bool) test {
	if f.shape == text {
		return textTestOf(found)
	}
	return test{value: func(v reflect.Value) bool { return searchTexts(f, v, found) }}
}

func searchTexts(f *field, v reflect.Value, found func(string) bool) bool {
	if v = pointee(v); !v.IsValid() {
		return false
	}
	switch f.shape {
	case text:
		return found(v.String())
	case anyJSON:
		return searchFree(v.Interface(), found)
	case objectShape:
		for _, child := range f.ordered {
			if at := fieldAt(v, child.index); at.IsValid() && searchTexts(child, at, found) {
				return true
			}
		}
	case list:
		for i := range v.Len() {
			if searchTexts(f.elem, v.Index(i), found) {
				return true
			}
		}
	}
	return false
}
