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
	maxPageToken    = 32 << 10 // maximum length of a page token in bytes
)

// A Query is a request for a page of a list.
type Query struct {
	Filter       string
	OrderBy      string
	DefaultOrder string // the order when OrderBy is ""; "" orders by name
	PageSize     int    // maximum number of items; 0 is DefaultPageSize; reduced to MaxPageSize
	PageToken    string // NextPageToken of the previous page; "" for the first page
	// identifies the list and its other parameters; a page token is valid only for the Binding with
	// which it was created
	Binding  string
	Key      []byte // key of the HMAC in page tokens; all control planes must use the same one
	Position uint64 // log position of the rows, which page tokens then contain; 0 for the current rows
}

// A Page is the part of a list that one request returns.
type Page[R any] struct {
	Items         []R
	NextPageToken string // token with which the next page is requested; "" on the last page
	TotalSize     int    // number of matching rows on all pages together
}

// List returns one page of the rows that match q. rows can yield the rows in any order. render sets
// the fields of a zero R from a row; the fields name and createTime must have the values of the
// row.
//
// A page begins after the last item of the previous page, not at an offset. So an item that exists
// during the whole list and whose order keys do not change appears exactly once, even if other
// items are created or deleted between two pages. The error is a domain.Error with code
// InvalidArgument and a violation for each invalid field of q.
func List[S domain.State, R any](rows iter.Seq[*projections.Row[S]], render func(*projections.Row[S], *R),
	fields *Fields[R], q Query) (Page[R], error) {
	l, err := prepare(Rendering[S, R]{All: render}, fields, q)
	if err != nil {
		return Page[R]{}, err
	}
	for row := range rows {
		l.consider(row, false)
	}
	slices.SortFunc(l.kept.all, l.kept.compare)
	return l.page(q), nil
}

// ListIn returns one page like List, of those rows of an account in the table t for which keep
// returns true. A nil keep accepts all rows. A page of all rows by ascending name, or by create
// time, is read from an index. For other pages, ListIn scans the rows concurrently, so keep and the
// functions of render must be safe for concurrent use.
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

// A Rendering converts rows to their wire type R.
type Rendering[S domain.State, R any] struct {
	// All sets all fields of a zero R; the fields name and createTime must have the values of the
	// row.
	All func(*projections.Row[S], *R)
	// Field returns a function that sets only the top-level field with this JSON name, to the value
	// that All sets; nil if there is no such function. Filters and orders that need only such
	// fields then do not call All for every row. The value must depend on nothing but the row.
	// Field may be nil.
	Field func(field string) func(*projections.Row[S], *R)
	// Dependence returns on what the top-level field with this JSON name depends besides the row; nil
	// if it depends on nothing else. If Dependence is nil, any field may depend on something else.
	Dependence func(field string) *Dependence[S]
}

// A listing is the state of a call of List or ListIn. It keeps the first rows after the last item
// of the previous page.
type listing[S domain.State, R any] struct {
	// functions that render rows, by the number of the renderer: see fullRenderer
	renderers []func(*projections.Row[S], *R)
	keep      func(*projections.Row[S]) bool // reports whether a row belongs to the list; nil accepts all rows
	keys      []orderKey
	matches   *predicate // nil accepts all rows
	after     *entry[S]  // last item of the previous page; nil on the first page
	size      int
	columns   []columnField
	first     domain.Name // lower bound of the names in the block whose rows are considered; "" if it is unknown
	// the first size+1 entries of the rows considered so far; an entry size+1 shows that there is
	// another page
	kept      entries[S]
	total     int
	candidate candidate             // the row that is considered
	block     *projections.Block[S] // the block that is considered; nil without one
	scratch   R                     // the wire form of the candidate
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
	v.Require(q.PageSize >= 0, "pageSize", "must not be negative: leave it out for the default, %d", DefaultPageSize)
	in := l.scope(render, fields)
	if strings.TrimSpace(q.Filter) != "" {
		matches, err := filterOf(in, q.Filter)
		v = append(v, violations(err)...)
		l.matches = &matches
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

// scope returns the scope for compiling the filter and the order of the listing. Resolving a field
// in it adds the renderer of the field to the listing, unless the field is stored in the row.
func (l *listing[S, R]) scope(render Rendering[S, R], fields *Fields[R]) *scope {
	in := &scope{root: fields.root}
	if fields.stored != nil && fields.stored.typ == reflect.TypeFor[projections.Row[S]]() {
		in.stored = fields.stored
	}
	l.renderers = []func(*projections.Row[S], *R){fullRenderer: render.All}
	if render.Dependence != nil {
		in.depends = func(name string) *dependence { return dependenceOf(render.Dependence(name)) }
	}
	if render.Field == nil {
		return in
	}
	known := map[string]int{}
	in.renderer = func(name string) int {
		renderer, ok := known[name]
		if ok || len(l.renderers) > maxRenderers {
			return renderer
		}
		if one := render.Field(name); one != nil {
			renderer = len(l.renderers)
			l.renderers = append(l.renderers, one)
		}
		known[name] = renderer
		return renderer
	}
	return in
}

// order sets the order keys of the listing. The name and the create time are always read from the
// row.
func (l *listing[S, R]) order(keys []orderKey) {
	for i := range keys {
		switch keys[i].index {
		case nameIndex:
			keys[i].read = func(s *candidate) keyValue { return keyValue{text: string((*projections.Row[S])(s.row).Name)} }
		case createTimeIndex:
			if keys[i].column >= 0 {
				continue
			}
			keys[i].read = func(s *candidate) keyValue {
				created := (*projections.Row[S])(s.row).CreateTime
				return keyValue{time: created, missing: created.IsZero()}
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

// consider counts a row if it matches the filter, and keeps it if it is among the first size+1 rows
// after the previous page. matches says that it is known to match the filter.
func (l *listing[S, R]) consider(row *projections.Row[S], matches bool) {
	if l.keep != nil && !l.keep(row) {
		return
	}
	l.setCandidate(row)
	if !matches && l.matches != nil && !l.matches.row(&l.candidate) {
		return
	}
	l.total++
	values := l.kept.spare()
	if !l.precedes(row, values) {
		return
	}
	e := entry[S]{name: row.Name, row: row, values: values}
	if l.after != nil && l.kept.compare(e, *l.after) <= 0 {
		return
	}
	if l.kept.Len() <= l.size {
		l.kept.used()
		heap.Push(&l.kept, e)
		return
	}
	l.kept.replaceLast(e)
}

// setCandidate makes a row the candidate.
func (l *listing[S, R]) setCandidate(row *projections.Row[S]) {
	s := &l.candidate
	s.row, s.rendered = unsafe.Pointer(row), 0
	if s.wire == nil {
		s.wire, s.render = unsafe.Pointer(&l.scratch), l.renderInto
	}
}

// renderInto calls a renderer of the listing, which sets fields of the candidate's wire form.
func (l *listing[S, R]) renderInto(renderer int) {
	if renderer == fullRenderer {
		var zero R
		l.scratch = zero
	}
	l.renderers[renderer]((*projections.Row[S])(l.candidate.row), &l.scratch)
}

// precedes reads the values of the order keys of row, the candidate, into values. It reports
// whether the row must be kept: fewer than size+1 entries are kept, or the row comes before the
// last of them. If not, it may leave values incomplete.
func (l *listing[S, R]) precedes(row *projections.Row[S], values []keyValue) bool {
	var last *entry[S] // the last of the kept entries, to compare with; nil once the row is known to be kept
	if l.kept.Len() > l.size {
		last = &l.kept.all[0]
	}
	for i := range l.keys {
		values[i] = l.keys[i].read(&l.candidate)
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
	l.setCandidate(row)
	for i := range l.keys {
		e.values[i] = l.keys[i].read(&l.candidate)
	}
	return e
}

// page returns the kept rows, which must be sorted, as a rendered page.
func (l *listing[S, R]) page(q Query) Page[R] {
	p := Page[R]{Items: make([]R, min(len(l.kept.all), l.size)), TotalSize: l.total}
	for i := range p.Items {
		l.renderers[fullRenderer](l.kept.all[i].row, &p.Items[i])
	}
	if len(l.kept.all) > l.size {
		last := l.kept.all[l.size-1]
		p.NextPageToken = sealToken(q, l.keys, last.name, last.values)
	}
	return p
}

// entries is a heap of the kept entries, whose top is the entry that comes last in the order.
type entries[S domain.State] struct {
	keys  []orderKey
	all   []entry[S]
	extra []keyValue // memory for the order key values of the next entry
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

// replaceLast replaces the entry that comes last in the order by e. It keeps the memory of the
// replaced entry's values for the next entry.
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
