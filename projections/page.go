package projections

import (
	"container/heap"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"iter"
	"reflect"
	"slices"
	"strings"

	"anneal/domain"
)

// Sizes of a page.
const (
	DefaultPageSize = 50
	MaxPageSize     = 200
	maxPageToken    = 32 << 10 // bytes
)

// A Query is what a caller asks of a list.
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
func List[S domain.State, R any](rows iter.Seq[*Row[S]], render func(*Row[S], *R), fields *Fields[R], q Query) (Page[R], error) {
	l, err := prepare[S](fields, q)
	if err != nil {
		return Page[R]{}, err
	}
	l.render = render
	for row := range rows {
		l.offer(row)
	}
	return l.page(q), nil
}

// A listing is a List under way: it keeps the first rows after the cursor.
type listing[S domain.State, R any] struct {
	render  func(*Row[S], *R)
	keys    []orderKey
	matches func(*R) bool // nil matches everything
	renders bool          // a row must be rendered to be placed
	after   *entry[S]     // the last of the page before
	size    int
	kept    entries[S] // the best size+1 so far
	total   int
	scratch R
}

// An entry is a row with its place in the order.
type entry[S domain.State] struct {
	name   domain.Name
	values []keyValue
	row    *Row[S]
}

func prepare[S domain.State, R any](fields *Fields[R], q Query) (*listing[S, R], error) {
	var v domain.Violations
	l := &listing[S, R]{size: min(q.PageSize, MaxPageSize)}
	if l.size == 0 {
		l.size = DefaultPageSize
	}
	v.Require(q.PageSize >= 0, "pageSize", "must not be negative: leave it out for %d", DefaultPageSize)
	if strings.TrimSpace(q.Filter) != "" {
		matches, err := fields.Filter(q.Filter)
		v = append(v, violations(err)...)
		l.matches = matches
	}
	order, err := fields.Order(q.OrderBy, q.DefaultOrder)
	v = append(v, violations(err)...)
	if order != nil {
		l.keys = order.keys
		for len(l.keys) > 0 && l.keys[len(l.keys)-1].source == rowName && !l.keys[len(l.keys)-1].descending {
			l.keys = l.keys[:len(l.keys)-1] // the tie-break does it
		}
		l.kept.keys = l.keys
		l.renders = slices.ContainsFunc(l.keys, func(k orderKey) bool { return k.source == rendered })
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

func violations(err error) domain.Violations {
	var f *domain.Fault
	if errors.As(err, &f) {
		return f.Violations
	}
	return nil
}

// offer counts the row if it matches, and keeps it if it is among the first.
func (l *listing[S, R]) offer(row *Row[S]) {
	var wire reflect.Value
	if l.matches != nil || l.renders {
		var zero R
		l.scratch = zero
		l.render(row, &l.scratch)
		wire = reflect.ValueOf(&l.scratch).Elem()
	}
	if l.matches != nil && !l.matches(&l.scratch) {
		return
	}
	l.total++
	one := entry[S]{name: row.Name, row: row}
	if len(l.keys) > 0 {
		one.values = l.kept.spare()
		for i := range l.keys {
			one.values[i] = place(&l.keys[i], row, wire)
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

func place[S domain.State](k *orderKey, row *Row[S], wire reflect.Value) keyValue {
	switch k.source {
	case rowName:
		return keyValue{text: string(row.Name)}
	case rowCreateTime:
		return keyValue{at: row.CreateTime}
	}
	return k.read(wire)
}

// page renders what was kept.
func (l *listing[S, R]) page(q Query) Page[R] {
	slices.SortFunc(l.kept.all, l.kept.compare)
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
	extra []keyValue // room for the values of the next entry
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

// A cursor is what a page token holds: the place of a page's last item.
type cursor struct {
	Name   domain.Name `json:"n"`
	Values []*string   `json:"k,omitempty"`
}

var errToken = errors.New("is not a token of this list: a token goes with the very request that its page answered, all other parameters the same; leave pageToken out to begin again")

func sealToken(q Query, keys []orderKey, name domain.Name, values []keyValue) string {
	c := cursor{Name: name}
	for i := range keys {
		c.Values = append(c.Values, keys[i].spell(values[i]))
	}
	data, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings only
	}
	return base64.RawURLEncoding.EncodeToString(append(seal(q, data), data...))
}

func openToken(q Query, keys []orderKey) (domain.Name, []keyValue, error) {
	if len(q.PageToken) > maxPageToken {
		return "", nil, errToken
	}
	token, err := base64.RawURLEncoding.Strict().DecodeString(q.PageToken)
	if err != nil || len(token) < sealSize || !hmac.Equal(token[:sealSize], seal(q, token[sealSize:])) {
		return "", nil, errToken
	}
	var c cursor
	if err := json.Unmarshal(token[sealSize:], &c); err != nil || len(c.Values) != len(keys) {
		return "", nil, errToken
	}
	values := make([]keyValue, len(keys))
	for i := range keys {
		if values[i], err = keys[i].parse(c.Values[i]); err != nil {
			return "", nil, errToken
		}
	}
	return c.Name, values, nil
}

const sealSize = 16 // bytes of the HMAC that a token carries

// seal is an HMAC over the request that a token belongs to, and its content.
func seal(q Query, data []byte) []byte {
	mac := hmac.New(sha256.New, q.Key)
	for _, part := range []string{q.Binding, q.Filter, q.OrderBy, q.DefaultOrder, string(data)} {
		mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		mac.Write([]byte(part))
	}
	return mac.Sum(nil)[:sealSize]
}
