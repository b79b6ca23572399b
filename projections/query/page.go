package query

import (
	"container/heap"
	"errors"
	"iter"
	"reflect"
	"slices"
	"strings"

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
	l, err := prepare[S](fields, q)
	if err != nil {
		return Page[R]{}, err
	}
	l.render = render
	for row := range rows {
		l.offer(row)
	}
	slices.SortFunc(l.kept.all, l.kept.compare)
	return l.page(q), nil
}

// ListIn returns one page like List, of the account's rows in the table t for which keep returns
// true. A nil keep accepts all rows. A page of all rows by ascending name, or by create time, is
// read from an index; for other pages, ListIn scans the rows concurrently, so render and keep must
// be safe for concurrent use.
func ListIn[S domain.State, R any](t *projections.Table[S], account string, keep func(*projections.Row[S]) bool,
	render func(*projections.Row[S], *R), fields *Fields[R], q Query) (Page[R], error) {
	l, err := prepare[S](fields, q)
	if err != nil {
		return Page[R]{}, err
	}
	l.render, l.keep = render, keep
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

// A listing is a call of List or ListIn in progress. It keeps the first rows after the last item of
// the previous page.
type listing[S domain.State, R any] struct {
	render  func(*projections.Row[S], *R)
	keep    func(*projections.Row[S]) bool // nil accepts all
	keys    []orderKey
	matches predicate // nil accepts all
	renders bool      // matches and keys read the rendered row, not the stored one
	after   *entry[S] // last item of the previous page; nil for the first page
	size    int
	kept    entries[S] // the first size+1 entries so far; the last shows whether there is another page
	total   int
	scratch R
}

// An entry is a row with the values of its order keys.
type entry[S domain.State] struct {
	name   domain.Name
	values []keyValue
	row    *projections.Row[S]
}

func prepare[S domain.State, R any](fields *Fields[R], q Query) (*listing[S, R], error) {
	var v domain.Violations
	l := &listing[S, R]{size: min(q.PageSize, MaxPageSize)}
	if l.size == 0 {
		l.size = DefaultPageSize
	}
	v.Require(q.PageSize >= 0, "pageSize", "must not be negative: leave it out for %d", DefaultPageSize)
	if strings.TrimSpace(q.Filter) != "" {
		matches, err := fields.filter(q.Filter)
		v = append(v, violations(err)...)
		l.matches = matches
	}
	order, err := fields.Order(q.OrderBy, q.DefaultOrder)
	v = append(v, violations(err)...)
	if order != nil {
		l.keys = withoutTieBreak(order.keys)
		l.renders = l.matches != nil || slices.ContainsFunc(l.keys, func(k orderKey) bool { return k.source == rendered })
		if l.renders && fields.stored != nil && fields.stored.typ == reflect.TypeFor[projections.Row[S]]() {
			l.readRows(fields.stored, q)
		}
		l.kept.keys = l.keys
	}
	if q.PageToken != "" && order != nil {
		name, values, err := openToken(q, l.keys)
		if err != nil {
			v.Add("pageToken", "%v", err)
		}
		l.after = &entry[S]{name: name, values: values}
	}
	return l, v.Err()
}

// withoutTieBreak returns keys without an ascending name at the end, because entries with equal
// values are ordered by name anyway.
func withoutTieBreak(keys []orderKey) []orderKey {
	for len(keys) > 0 && keys[len(keys)-1].source == rowName && !keys[len(keys)-1].descending {
		keys = keys[:len(keys)-1]
	}
	return keys
}

// readRows makes the listing filter and sort the rows themselves, if stored has every field that
// the filter and the order use. Otherwise the listing renders each row, as the resource of a
// response, and reads the fields of the rendered row.
func (l *listing[S, R]) readRows(stored *field, q Query) {
	var matches predicate
	if l.matches != nil {
		var err error
		if matches, err = compileFilter(stored, q.Filter); err != nil {
			return
		}
	}
	orderBy := q.OrderBy
	if strings.TrimSpace(orderBy) == "" {
		orderBy = q.DefaultOrder
	}
	keys, err := compileOrder(stored, orderBy)
	if err != nil {
		return
	}
	l.matches, l.keys, l.renders = matches, withoutTieBreak(keys), false
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
	var subject reflect.Value
	if l.renders {
		var zero R
		l.scratch = zero
		l.render(row, &l.scratch)
		subject = reflect.ValueOf(&l.scratch).Elem()
	} else if l.matches != nil || len(l.keys) > 0 {
		subject = reflect.ValueOf(row).Elem()
	}
	if l.matches != nil && !l.matches(subject) {
		return
	}
	l.total++
	candidate := entry[S]{name: row.Name, row: row}
	if len(l.keys) > 0 {
		candidate.values = l.kept.spare()
		for i := range l.keys {
			candidate.values[i] = keyOf(&l.keys[i], row, subject)
		}
	}
	switch {
	case l.after != nil && l.kept.compare(candidate, *l.after) <= 0:
	case l.kept.Len() <= l.size:
		l.kept.used()
		heap.Push(&l.kept, candidate)
	case l.kept.compare(candidate, l.kept.all[0]) < 0:
		l.kept.replaceLast(candidate)
	}
}

// entryOf returns the entry of a row when all order keys are the name or the create time.
func (l *listing[S, R]) entryOf(row *projections.Row[S]) entry[S] {
	e := entry[S]{name: row.Name, values: make([]keyValue, len(l.keys)), row: row}
	for i := range l.keys {
		e.values[i] = keyOf(&l.keys[i], row, reflect.Value{})
	}
	return e
}

func keyOf[S domain.State](k *orderKey, row *projections.Row[S], subject reflect.Value) keyValue {
	switch k.source {
	case rowName:
		return keyValue{text: string(row.Name)}
	case rowCreateTime:
		return keyValue{at: row.CreateTime}
	}
	return k.read(subject)
}

// page renders the kept rows, which must be sorted, and returns them as a page.
func (l *listing[S, R]) page(q Query) Page[R] {
	p := Page[R]{Items: make([]R, min(len(l.kept.all), l.size)), TotalSize: l.total}
	for i := range p.Items {
		l.render(l.kept.all[i].row, &p.Items[i])
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
	if h.extra == nil {
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
