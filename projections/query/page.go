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

// Sizes of a page.
const (
	DefaultPageSize = 50
	MaxPageSize     = 200
	maxPageToken    = 32 << 10 // bytes
)

// A Query is the list that a caller requests.
type Query struct {
	Filter       string
	OrderBy      string
	DefaultOrder string // "" is name
	PageSize     int    // 0 is DefaultPageSize; above MaxPageSize is MaxPageSize
	PageToken    string // of the page before, or "" for the first
	Binding      string // every other parameter of the request, and whose list it is
	Key          []byte // makes page tokens unforgeable; the same for all processes
}

// A Page is one part of a list.
type Page[R any] struct {
	Items         []R
	NextPageToken string // "" on the last page
	TotalSize     int    // what matches in all, on this page or not
}

// List answers one page of the rows that match, which come in any order; render
// fills a zero R, whose name and createTime are the row's.
//
// Pages are cut by value and not by number: an item that exists throughout and
// whose order keys do not change appears exactly once, whatever is created or
// deleted between two pages. An error is a fault, InvalidArgument on each field
// that is wrong.
func List[S domain.State, R any](rows iter.Seq[*projections.Row[S]], render func(*projections.Row[S], *R), fields *Fields[R], q Query) (Page[R], error) {
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

// ListIn answers what List answers for the rows of an account, those that keep
// refuses left out; a nil keep refuses none. It takes a page by name or by
// create time of all of them from the index, and shares any other among the
// processors; render and keep must be safe for concurrent use.
func ListIn[S domain.State, R any](t *projections.Table[S], account string, keep func(*projections.Row[S]) bool, render func(*projections.Row[S], *R), fields *Fields[R], q Query) (Page[R], error) {
	l, err := prepare[S](fields, q)
	if err != nil {
		return Page[R]{}, err
	}
	l.render, l.keep = render, keep
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

// A listing is a List under way: it keeps the first rows after the cursor.
type listing[S domain.State, R any] struct {
	render  func(*projections.Row[S], *R)
	keep    func(*projections.Row[S]) bool // nil keeps everything
	keys    []orderKey
	matches predicate // nil matches everything
	renders bool      // matches and the keys look at the wire, not at the row
	after   *entry[S] // the last of the page before
	size    int
	kept    entries[S] // the best size+1 so far
	total   int
	scratch R
}

// An entry is a row with its place in the order.
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

// withoutTieBreak leaves out the name at the end, by which equals are ordered
// anyway.
func withoutTieBreak(keys []orderKey) []orderKey {
	for len(keys) > 0 && keys[len(keys)-1].source == rowName && !keys[len(keys)-1].descending {
		keys = keys[:len(keys)-1]
	}
	return keys
}

// readRows lets the listing look at rows and not at the wire, if the stored
// fields are all that its filter and its order name.
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
	var f *domain.Error
	if errors.As(err, &f) {
		return f.Violations
	}
	return nil
}

// offer counts the row if it matches, and keeps it if it is among the first.
func (l *listing[S, R]) offer(row *projections.Row[S]) {
	if l.keep != nil && !l.keep(row) {
		return
	}
	var looked reflect.Value
	if l.renders {
		var zero R
		l.scratch = zero
		l.render(row, &l.scratch)
		looked = reflect.ValueOf(&l.scratch).Elem()
	} else if l.matches != nil || len(l.keys) > 0 {
		looked = reflect.ValueOf(row).Elem()
	}
	if l.matches != nil && !l.matches(looked) {
		return
	}
	l.total++
	one := entry[S]{name: row.Name, row: row}
	if len(l.keys) > 0 {
		one.values = l.kept.spare()
		for i := range l.keys {
			one.values[i] = place(&l.keys[i], row, looked)
		}
	}
	switch {
	case l.after != nil && l.kept.compare(one, *l.after) <= 0:
	case l.kept.Len() <= l.size:
		l.kept.used()
		heap.Push(&l.kept, one)
	case l.kept.compare(one, l.kept.all[0]) < 0:
		l.kept.replaceLast(one)
	}
}

// entryOf is the place of a row that is in the order by its name and create
// time alone.
func (l *listing[S, R]) entryOf(row *projections.Row[S]) entry[S] {
	one := entry[S]{name: row.Name, values: make([]keyValue, len(l.keys)), row: row}
	for i := range l.keys {
		one.values[i] = place(&l.keys[i], row, reflect.Value{})
	}
	return one
}

func place[S domain.State](k *orderKey, row *projections.Row[S], looked reflect.Value) keyValue {
	switch k.source {
	case rowName:
		return keyValue{text: string(row.Name)}
	case rowCreateTime:
		return keyValue{at: row.CreateTime}
	}
	return k.read(looked)
}

// page renders what was kept, which is in order.
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

// entries is a heap with the last in order on top.
type entries[S domain.State] struct {
	keys  []orderKey
	all   []entry[S]
	extra []keyValue // space for the values of the next entry
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

// replaceLast puts one in the place of the last in order, whose values become
// the spare ones.
func (h *entries[S]) replaceLast(one entry[S]) {
	h.extra = h.all[0].values
	h.all[0] = one
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
