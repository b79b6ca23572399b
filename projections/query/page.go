package query

import (
	"container/heap"
	"errors"
	"iter"
	"reflect"
	"slices"
	"strings"
	"unsafe"

	"anneal/domain"
	"anneal/projections"
)

// Limits of a page.
const (
	DefaultPageSize = 50
	MaxPageSize     = 200
	maxPageToken    = 32 << 10 // bytes
)

// A Query describes the page of a list that a caller requests.
type Query struct {
	Filter       string
	OrderBy      string
	DefaultOrder string // the order when OrderBy is ""; "" is by name
	PageSize     int    // maximum number of items; 0 is DefaultPageSize; reduced to MaxPageSize
	PageToken    string // NextPageToken of the previous page; "" for the first page
	Binding      string // identifies the list and the request's other parameters; a page token is valid for one Binding
	Key          []byte // signs page tokens; all processes must use the same key
	Position     uint64 // position of the rows, which page tokens contain; 0 for rows of the present
}

// A Page is one part of a list.
type Page[R any] struct {
	Items         []R
	NextPageToken string // "" on the last page
	TotalSize     int    // number of matching rows on all pages together
}

// List returns one page of the rows that match q. rows can yield the rows in any order. render sets
// the fields of a zero R from a row; name and createTime must be the row's.
//
// A page begins after the last item of the previous page, not at an offset. So an item that exists
// during the whole list and whose order keys do not change appears exactly once, even if other
// items are created or deleted between two pages. The error is a domain.Error with code
// InvalidArgument and a violation for each invalid field of q.
func List[S domain.State, R any](rows iter.Seq[*projections.Row[S]], render func(*projections.Row[S], *R),
	fields *Fields[R], q Query) (Page[R], error) {
	l, err := prepare(Rendering[S, R]{Whole: render}, fields, q)
	if err != nil {
		return Page[R]{}, err
	}
	for row := range rows {
		l.offer(row)
	}
	slices.SortFunc(l.kept.all, l.kept.compare)
	return l.page(q), nil
}

// ListIn returns one page like List, of the account's rows in the table t for which keep returns
// true. A nil keep accepts all rows. A page of all rows by ascending name, or by create time, is
// read from an index; for other pages, ListIn scans the rows concurrently, so keep and the functions
// of render must be safe for concurrent use.
func ListIn[S domain.State, R any](t *projections.Table[S], account string, keep func(*projections.Row[S]) bool,
	render Rendering[S, R], fields *Fields[R], q Query) (Page[R], error) {
	l, err := prepare(render, fields, q)
	if err != nil {
		return Page[R]{}, err
	}
	l.keep = keep
	t = t.Of(account)
	walk := l.indexed(t, account)
	if walk == nil {
		l.scan(t, account)
		return l.page(q), nil
	}
	for row := range walk {
		l.kept.all = append(l.kept.all, l.entryOf(row))
		if len(l.kept.all) > l.size {
			break
		}
	}
	l.total = t.Count(account)
	return l.page(q), nil
}

// A Rendering renders rows as a wire type.
type Rendering[S domain.State, R any] struct {
	// Whole sets the fields of a zero R; name and createTime must be the row's.
	Whole func(*projections.Row[S], *R)
	// Part returns a function that sets one top-level field, whose JSON name is field, to the value that
	// Whole sets, whatever it was before; nil if there is no such function. It may be nil. Filters and
	// orders that need the field then do not render the others. The value must depend on nothing but the
	// row.
	Part func(field string) func(*projections.Row[S], *R)
}

// A listing is a call of List or ListIn in progress. It keeps the first rows after the last item of
// the previous page.
type listing[S domain.State, R any] struct {
	parts   []func(*projections.Row[S], *R) // renderers of the parts of a subject
	keep    func(*projections.Row[S]) bool  // nil accepts all
	keys    []orderKey
	matches predicate // nil accepts all
	after   *entry[S] // last item of the previous page; nil for the first page
	size    int
	columns []columnField
	first   domain.Name // at most the names of the rows of the block that is offered; "" if not known
	kept    entries[S]  // the first size+1 entries so far; the last shows whether there is another page
	total   int
	subject subject // the row that is offered
	scratch R       // the wire form of the subject
}

// An entry is a row with the values of its order keys.
type entry[S domain.State] struct {
	name   domain.Name
	values []keyValue
	row    *projections.Row[S]
}

func prepare[S domain.State, R any](render Rendering[S, R], fields *Fields[R], q Query) (*listing[S, R], error) {
	var v domain.Violations
	l := &listing[S, R]{size: min(q.PageSize, MaxPageSize)}
	if l.size == 0 {
		l.size = DefaultPageSize
	}
	v.Require(q.PageSize >= 0, "pageSize", "must not be negative: leave it out for %d", DefaultPageSize)
	in := l.scope(render, fields)
	if strings.TrimSpace(q.Filter) != "" {
		matches, err := filterOf(in, q.Filter)
		v = append(v, violations(err)...)
		l.matches = matches
	}
	orderBy := q.OrderBy
	if strings.TrimSpace(orderBy) == "" {
		orderBy = q.DefaultOrder
	}
	keys, err := orderOf(in, orderBy)
	v = append(v, violations(err)...)
	l.order(withoutTieBreak(keys))
	l.columns = in.columns
	if q.PageToken != "" && err == nil {
		name, values, err := openToken(q, l.keys)
		if err != nil {
			v.Add("pageToken", "%v", err)
		}
		l.after = &entry[S]{name: name, values: values}
	}
	return l, v.Err()
}

// scope returns the scope of the listing's filter and order, which read stored fields from the row, and
// adds to the listing the renderers of the other fields that they name.
func (l *listing[S, R]) scope(render Rendering[S, R], fields *Fields[R]) *scope {
	in := &scope{root: fields.root}
	if fields.stored != nil && fields.stored.typ == reflect.TypeFor[projections.Row[S]]() {
		in.stored = fields.stored
	}
	l.parts = []func(*projections.Row[S], *R){wholePart: render.Whole}
	if render.Part == nil {
		return in
	}
	known := map[string]int{}
	in.part = func(name string) int {
		part, ok := known[name]
		if ok || len(l.parts) > maxPart {
			return part
		}
		if one := render.Part(name); one != nil {
			part = len(l.parts)
			l.parts = append(l.parts, one)
		}
		known[name] = part
		return part
	}
	return in
}

// order makes the listing order rows by the keys. The name and the create time are always read from the
// row.
func (l *listing[S, R]) order(keys []orderKey) {
	for i := range keys {
		switch keys[i].index {
		case nameIndex:
			keys[i].read = func(s *subject) keyValue { return keyValue{text: string((*projections.Row[S])(s.row).Name)} }
		case createTimeIndex:
			if keys[i].column >= 0 {
				continue
			}
			keys[i].read = func(s *subject) keyValue {
				created := (*projections.Row[S])(s.row).CreateTime
				return keyValue{at: created, missing: created.IsZero()}
			}
		}
	}
	l.keys, l.kept.keys = keys, keys
}

// withoutTieBreak returns keys without an ascending name at the end, because entries with equal
// values are ordered by name anyway.
func withoutTieBreak(keys []orderKey) []orderKey {
	for len(keys) > 0 && keys[len(keys)-1].index == nameIndex && !keys[len(keys)-1].descending {
		keys = keys[:len(keys)-1]
	}
	return keys
}

func violations(err error) domain.Violations {
	var e *domain.Error
	if errors.As(err, &e) {
		return e.Violations
	}
	return nil
}

// offer counts a row if it matches, and keeps it if it is among the first size+1 after the previous
// page.
func (l *listing[S, R]) offer(row *projections.Row[S]) {
	if l.keep != nil && !l.keep(row) {
		return
	}
	l.at(row)
	if l.matches != nil && !l.matches(&l.subject) {
		return
	}
	l.total++
	values := l.kept.spare()
	if !l.precedes(row, values) {
		return
	}
	candidate := entry[S]{name: row.Name, row: row, values: values}
	if l.after != nil && l.kept.compare(candidate, *l.after) <= 0 {
		return
	}
	if l.kept.Len() <= l.size {
		l.kept.used()
		heap.Push(&l.kept, candidate)
		return
	}
	l.kept.replaceLast(candidate)
}

// at makes a row the subject.
func (l *listing[S, R]) at(row *projections.Row[S]) {
	s := &l.subject
	s.row, s.rendered = unsafe.Pointer(row), 0
	if s.wire == nil {
		s.wire, s.render = unsafe.Pointer(&l.scratch), l.renderPart
	}
}

// renderPart renders a part of the subject.
func (l *listing[S, R]) renderPart(part int) {
	if part == wholePart {
		var zero R
		l.scratch = zero
	}
	l.parts[part]((*projections.Row[S])(l.subject.row), &l.scratch)
}

// precedes reads the values of the order keys of the subject, which is a row, and reports whether there is
// room for the row or it comes before the last of the kept entries. If not, it reads no more than that
// takes.
func (l *listing[S, R]) precedes(row *projections.Row[S], values []keyValue) bool {
	var last *entry[S] // nil when the row is known to precede
	if l.kept.Len() > l.size {
		last = &l.kept.all[0]
	}
	for i := range l.keys {
		values[i] = l.keys[i].read(&l.subject)
		if last == nil {
			continue
		}
		switch c := l.keys[i].compare(values[i], last.values[i]); {
		case c > 0:
			return false
		case c < 0:
			last = nil
		}
	}
	return last == nil || l.first < last.name && row.Name < last.name
}

// entryOf returns the entry of a row when all order keys are the name or the create time.
func (l *listing[S, R]) entryOf(row *projections.Row[S]) entry[S] {
	e := entry[S]{name: row.Name, values: make([]keyValue, len(l.keys)), row: row}
	l.at(row)
	for i := range l.keys {
		e.values[i] = l.keys[i].read(&l.subject)
	}
	return e
}

// page renders the kept rows, which must be sorted, and returns them as a page.
func (l *listing[S, R]) page(q Query) Page[R] {
	p := Page[R]{Items: make([]R, min(len(l.kept.all), l.size)), TotalSize: l.total}
	for i := range p.Items {
		l.parts[wholePart](l.kept.all[i].row, &p.Items[i])
	}
	if len(l.kept.all) > l.size {
		last := l.kept.all[l.size-1]
		p.NextPageToken = sealToken(q, l.keys, last.name, last.values)
	}
	return p
}

// entries is a heap whose top is the entry that comes last in the order.
type entries[S domain.State] struct {
	keys  []orderKey
	all   []entry[S]
	extra []keyValue // memory of a replaced entry's values, for the values of the next entry
}

func (h *entries[S]) compare(a, b entry[S]) int {
	for i := range h.keys {
		if c := h.keys[i].compare(a.values[i], b.values[i]); c != 0 {
			return c
		}
	}
	return strings.Compare(string(a.name), string(b.name))
}

func (h *entries[S]) spare() []keyValue {
	if h.extra == nil && len(h.keys) > 0 {
		h.extra = make([]keyValue, len(h.keys))
	}
	return h.extra
}

func (h *entries[S]) used() { h.extra = nil }

// replaceLast replaces the entry that comes last in the order by e. The memory of the replaced
// entry's values is reused.
func (h *entries[S]) replaceLast(e entry[S]) {
	h.extra = h.all[0].values
	h.all[0] = e
	heap.Fix(h, 0)
}

func (h *entries[S]) Len() int           { return len(h.all) }
func (h *entries[S]) Less(i, j int) bool { return h.compare(h.all[i], h.all[j]) > 0 }
func (h *entries[S]) Swap(i, j int)      { h.all[i], h.all[j] = h.all[j], h.all[i] }
func (h *entries[S]) Push(x any)         { h.all = append(h.all, x.(entry[S])) }
func (h *entries[S]) Pop() any {
	last := h.all[len(h.all)-1]
	h.all = h.all[:len(h.all)-1]
	return last
}
