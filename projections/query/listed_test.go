package query

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

var storedToys = func() *Fields[wireStored] {
	return StoredFieldsOf[toy, wireStored]("name", "createTime", "updateTime", "label", "tags", "notes")
}()

// wireStored shows a toy's fields under their own names, but for the size.
type wireStored struct {
	Name       string            `json:"name"`
	CreateTime *time.Time        `json:"createTime"`
	UpdateTime time.Time         `json:"updateTime"`
	Label      string            `json:"label"`
	Tags       []string          `json:"tags"`
	Notes      map[string]string `json:"notes"`
	Shown      int64             `json:"shown"`
}

func renderStored(row *projections.Row[toy], w *wireStored) {
	w.Name, w.CreateTime, w.UpdateTime = string(row.Name), &row.CreateTime, row.UpdateTime
	w.Label, w.Tags, w.Notes, w.Shown = row.State.Label, row.State.Tags, row.State.Notes, row.State.Size%10
}

// crowdOfToys is a world of n toys of account a, and a few of its neighbours;
// many are made at one moment.
func crowdOfToys(t testing.TB, n int) *projections.World {
	w := toyWorld()
	for i := range n {
		tell(t, w, toyName("a", i*7919%n), toyMade{fmt.Sprintf("toy %d", i%23), int64(i)}, i/300)
	}
	for i := range 50 {
		tell(t, w, toyName("A", i), toyMade{"toy 1", 1}, i)
		tell(t, w, toyName("a-b", i), toyMade{"toy 1", 1}, i)
	}
	return w
}

// tell folds the next event, of so many seconds after the epoch.
func tell(t testing.TB, w *projections.World, name domain.Name, fact domain.Event[toy], second int) {
	record, err := toys.Encode(fact)
	require.NoError(t, err)
	position := w.Position() + 1
	require.NoError(t, w.Apply(eventlog.Event{Record: record, ID: fmt.Sprint("event-", position), Name: name, Position: position,
		Time: epoch.Add(time.Duration(second) * time.Second)}))
}

// listedSlowly is the plain way to a page: render every row, look at what was
// rendered, sort it all. It answers the items and the total.
func listedSlowly(rows func(func(*projections.Row[toy]) bool), keep func(*projections.Row[toy]) bool, fields *Fields[wireStored], filter, orderBy, after string, size int) ([]wireStored, int, error) {
	matches, err := fields.Filter(filter)
	if err != nil {
		return nil, 0, err
	}
	order, err := fields.Order(orderBy, "")
	if err != nil {
		return nil, 0, err
	}
	var all []wireStored
	for row := range rows {
		var one wireStored
		if renderStored(row, &one); (keep == nil || keep(row)) && matches(&one) {
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b wireStored) int {
		for i := range order.keys {
			k := &order.keys[i]
			if c := k.compare(k.read(reflect.ValueOf(&a).Elem()), k.read(reflect.ValueOf(&b).Elem())); c != 0 {
				return c
			}
		}
		return strings.Compare(a.Name, b.Name)
	})
	from := 1 + slices.IndexFunc(all, func(one wireStored) bool { return one.Name == after })
	return all[from:min(from+size, len(all))], len(all), nil
}

// Whatever way a list takes, off the index, off the rows, shared among
// processors or not, its pages are those of the plain way, while a writer continues.
func TestEveryWayToAPageAnswersTheSame(t *testing.T) {
	for _, n := range []int{60, 3 * scanShare} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := crowdOfToys(t, n)
			turn, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				i := 0
				for range turn { // a few writes while a page is looked for
					for range 20 {
						tell(t, w, toyName("a", n+i), toyMade{fmt.Sprintf("toy %d", i%23), int64(i)}, i%50)
						tell(t, w, toyName("a", i%n), toyTagged{fmt.Sprint("tag", i%3)}, n+i)
						i++
					}
				}
			}()
			defer func() { close(turn); <-stopped }()
			checks := 0
			rapid.Check(t, func(r *rapid.T) {
				if checks++; n > scanShare && checks > 25 {
					return // each sorts all rows
				}
				turn <- struct{}{}
				checkPages(t, r, projections.TableOf(w.View(), toys))
			})
		})
	}
}

func checkPages(t *testing.T, r *rapid.T, table *projections.Table[toy]) {
	order := rapid.SampledFrom([]string{"", "name", "name desc", "createTime", "createTime desc", "createTime desc, name", "createTime, name desc",
		"updateTime desc", "label", "label desc, createTime", "shown", "label, shown desc"}).Draw(r, "order")
	filter := rapid.SampledFrom([]string{"", "", "label = 'toy 3'", "label:'2' AND NOT tags:tag1", "tags:*", "shown > 3", "label = '*1' AND shown < 8",
		"createTime > '2026-03-01T12:00:05Z'", "nothing = 1", "tag2", "update_time > create_time", "notes:x"}).Draw(r, "filter")
	keep := rapid.SampledFrom([]func(*projections.Row[toy]) bool{nil, nil, func(row *projections.Row[toy]) bool { return row.State.Size%3 > 0 }}).Draw(r, "keep")
	q := Query{Filter: filter, OrderBy: order, PageSize: rapid.SampledFrom([]int{1, 7, 50, 200}).Draw(r, "size"), Key: []byte("k")}
	account := rapid.SampledFrom([]string{"a", "a", "a", "A", "a-b", "b"}).Draw(r, "account")
	plain := FieldsOf[wireStored]()
	after := ""
	for range 3 {
		page, err := ListIn(table, account, keep, renderStored, storedToys, q)
		want, total, refused := listedSlowly(table.In(account), keep, plain, filter, order, after, q.PageSize)
		require.Equal(t, refused, err)
		if err != nil {
			return
		}
		require.Equal(t, total, page.TotalSize, "%+v", q)
		require.Equal(t, len(want), len(page.Items), "%+v", q)
		for i := range want {
			require.Equal(t, want[i], page.Items[i], "%d of %+v", i, q)
		}
		if page.NextPageToken == "" {
			return
		}
		q.PageToken, after = page.NextPageToken, page.Items[len(page.Items)-1].Name
	}
}

func TestAListRendersNoMoreThanItShows(t *testing.T) {
	table := projections.TableOf(crowdOfToys(t, 500).View(), toys)
	for _, q := range []Query{{}, {OrderBy: "name desc"}, {OrderBy: "createTime desc"}, {OrderBy: "createTime"}, {OrderBy: "label"}, {Filter: "label:toy AND tags:* OR name:*"}} {
		rendered := 0
		page, err := ListIn(table, "a", nil, func(row *projections.Row[toy], w *wireStored) { rendered++; renderStored(row, w) }, storedToys, q)
		require.NoError(t, err)
		require.Equal(t, 500, page.TotalSize)
		require.Equal(t, len(page.Items), rendered, "%+v", q)
	}
}

func TestStoredFieldsMustBeThere(t *testing.T) {
	require.PanicsWithValue(t, `query: query.wireStored has no field "size"`, func() { StoredFieldsOf[toy, wireStored]("size") })
	require.PanicsWithValue(t, `query: domain.Row[anneal/projections/query.toy] does not store "shown"`, func() { StoredFieldsOf[toy, wireStored]("shown") })
}

// A mistake in render reaches the caller, who can answer it, and not the
// runtime, which would end the process.
func TestAPanicOfASharedScanIsTheCallers(t *testing.T) {
	table := projections.TableOf(crowdOfToys(t, 3*scanShare).View(), toys)
	require.PanicsWithValue(t, "cursed", func() {
		_, _ = ListIn(table, "a", nil, func(*projections.Row[toy], *wireStored) { panic("cursed") }, storedToys, Query{Filter: "shown > 1"})
	})
}
