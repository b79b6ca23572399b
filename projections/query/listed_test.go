package query

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/projections/toytest"
)

var storedToys = func() *Fields[wireStored] {
	return StoredFieldsOf[toytest.Toy, wireStored]("name", "createTime", "updateTime", "label", "tags", "notes")
}()

// wireStored is a wire type whose fields renderStored copies unchanged from a toy, except Shown,
// which it computes from the size.
type wireStored struct {
	Name       string            `json:"name"`
	CreateTime *time.Time        `json:"createTime"`
	UpdateTime time.Time         `json:"updateTime"`
	Label      string            `json:"label"`
	Tags       []string          `json:"tags"`
	Notes      map[string]string `json:"notes"`
	Shown      int64             `json:"shown"`
}

func renderStored(row *projections.Row[toytest.Toy], w *wireStored) {
	w.Name, w.CreateTime, w.UpdateTime = string(row.Name), &row.CreateTime, row.UpdateTime
	w.Label, w.Tags, w.Notes, w.Shown = row.State.Label, row.State.Tags, row.State.Notes, row.State.Size%10
}

// renderingStored renders as renderStored does, and Shown alone.
var renderingStored = Rendering[toytest.Toy, wireStored]{All: renderStored,
	Field: func(field string) func(*projections.Row[toytest.Toy], *wireStored) {
		if field != "shown" {
			return nil
		}
		return func(row *projections.Row[toytest.Toy], w *wireStored) { w.Shown = row.State.Size % 10 }
	}}

// manyToysWorld returns a world with n toys of account a and a few of other accounts. Many toys
// have the same create time.
func manyToysWorld(t testing.TB, n int) *projections.World {
	w := toyWorld()
	for i := range n {
		foldAt(t, w, toytest.Name("a", i*7919%n), toytest.Make(fmt.Sprintf("toy %d", i%23), int64(i)), i/300)
	}
	for i := range 50 {
		foldAt(t, w, toytest.Name("A", i), toytest.Make("toy 1", 1), i)
		foldAt(t, w, toytest.Name("a-b", i), toytest.Make("toy 1", 1), i)
	}
	return w
}

// foldAt folds an event into the world at the next position, with a time of second seconds after
// toytest.Epoch.
func foldAt(t testing.TB, w *projections.World, name domain.Name, fact domain.Event[toytest.Toy], second int) {
	record, err := toytest.Kind.Encode(fact)
	require.NoError(t, err)
	position := w.Position() + 1
	require.NoError(t, w.Apply(eventlog.Event{Record: record, ID: fmt.Sprint("event-", position), Name: name,
		Position: position,
		Time:     toytest.Epoch.Add(time.Duration(second) * time.Second)}))
}

// listNaively renders, filters and sorts all rows; List must return the same items. listNaively
// returns the items of the page that follows the toy with the name after, and the number of all
// matching rows.
func listNaively(rows func(func(*projections.Row[toytest.Toy]) bool), keep func(*projections.Row[toytest.Toy]) bool,
	fields *Fields[wireStored], filter, orderBy, after string, size int) ([]wireStored, int, error) {
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
			if c := k.compare(k.read(renderedCandidate(&a)), k.read(renderedCandidate(&b))); c != 0 {
				return c
			}
		}
		return strings.Compare(a.Name, b.Name)
	})
	from := 1 + slices.IndexFunc(all, func(one wireStored) bool { return one.Name == after })
	return all[from:min(from+size, len(all))], len(all), nil
}

// TestAllListPathsAgree checks that ListIn returns the pages of listNaively for queries that read
// an index, stored fields of rows, or rendered rows in a concurrent scan, while a writer changes
// the world.
func TestAllListPathsAgree(t *testing.T) {
	for _, n := range []int{60, 3 * minBlocksPerScan * 128} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := manyToysWorld(t, n)
			turn, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				i := 0
				for range turn { // writes during the list
					for range 20 {
						if i%3 == 0 {
							foldAt(t, w, toytest.Name("a", i), toytest.Broken{}, n+i)
							foldAt(t, w, toytest.Name("a", i), toytest.Make(fmt.Sprintf("toy %d", i%19), int64(i)), i%50)
						}
						if i%5 == 0 && i > 0 {
							foldAt(t, w, toytest.Name("a", n+i-1), toytest.Broken{}, n+i)
						}
						foldAt(t, w, toytest.Name("a", n+i), toytest.Make(fmt.Sprintf("toy %d", i%23), int64(i)), i%50)
						foldAt(t, w, toytest.Name("a", i%n), toytest.Tag(fmt.Sprint("tag", i%3)), n+i)
						i++
					}
				}
			}()
			defer func() { close(turn); <-stopped }()
			checks := 0
			rapid.Check(t, func(r *rapid.T) {
				if checks++; n > 1000 && checks > 25 {
					return // listNaively sorts all rows, so fewer queries suffice for a large world
				}
				turn <- struct{}{}
				checkPages(t, r, projections.TableOf(w.View(), toytest.Kind))
			})
		})
	}
}

func checkPages(t *testing.T, r *rapid.T, table *projections.Table[toytest.Toy]) {
	order := rapid.SampledFrom([]string{"", "name", "name desc", "createTime", "createTime desc",
		"createTime desc, name", "createTime, name desc", "updateTime desc", "label", "label desc, createTime", "shown",
		"label, shown desc", "shown desc, updateTime"}).Draw(r, "order")
	filter := rapid.SampledFrom([]string{"", "", "label = 'toy 3'", "label:'2' AND NOT tags:tag1", "tags:*", "shown > 3",
		"label = '*1' AND shown < 8", "createTime > '2026-03-01T12:00:05Z'", "nothing = 1", "tag2",
		"update_time > create_time", "notes:x", "shown = 3 OR label:'1'", "shown:* AND createTime:*", "NOT shown <= 4.5",
		"name:'00' AND shown < 5", "'toy 7' OR shown = 1", "label >= 'toy 2' AND label < 'toy 3'", "'0*3'",
		"'toys/*00'", "'S/0*1*1'", "'toy*/0'", "'y*s'"}).Draw(r, "filter")
	keep := rapid.SampledFrom([]func(*projections.Row[toytest.Toy]) bool{nil, nil,
		func(row *projections.Row[toytest.Toy]) bool { return row.State.Size%3 > 0 }}).Draw(r, "keep")
	q := Query{Filter: filter, OrderBy: order, PageSize: rapid.SampledFrom([]int{1, 7, 50, 200}).Draw(r, "size"),
		Key: []byte("k")}
	account := rapid.SampledFrom([]string{"a", "a", "a", "A", "a-b", "b"}).Draw(r, "account")
	render := rapid.SampledFrom([]Rendering[toytest.Toy, wireStored]{renderingStored, {All: renderStored}}).Draw(r,
		"rendering")
	plain := FieldsOf[wireStored]()
	after := ""
	for range 3 {
		page, err := ListIn(table, account, keep, render, storedToys, q)
		want, total, refused := listNaively(table.In(account), keep, plain, filter, order, after, q.PageSize)
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

func TestAListRendersOnlyWhatItReturns(t *testing.T) {
	table := projections.TableOf(manyToysWorld(t, 500).View(), toytest.Kind)
	for _, q := range []Query{{}, {OrderBy: "name desc"}, {OrderBy: "createTime desc"}, {OrderBy: "createTime"},
		{OrderBy: "label"}, {Filter: "label:toy AND tags:* OR name:*"}} {
		rendered := 0
		render := func(row *projections.Row[toytest.Toy], w *wireStored) { rendered++; renderStored(row, w) }
		page, err := ListIn(table, "a", nil, Rendering[toytest.Toy, wireStored]{All: render}, storedToys, q)
		require.NoError(t, err)
		require.Equal(t, 500, page.TotalSize)
		require.Equal(t, len(page.Items), rendered, "%+v", q)
	}
}

// TestColumnsAreReadInsteadOfRows checks that a repeated list reads nothing but columns, and that a list
// after a change reads no other rows than those of the block of the changed row.
func TestColumnsAreReadInsteadOfRows(t *testing.T) {
	const n = 3_000
	w := manyToysWorld(t, n)
	var read atomic.Int64
	render := renderingStored
	render.Field = func(field string) func(*projections.Row[toytest.Toy], *wireStored) {
		part := renderingStored.Field(field)
		if part == nil {
			return nil
		}
		return func(row *projections.Row[toytest.Toy], w *wireStored) { read.Add(1); part(row, w) }
	}
	list := func(filter, orderBy string) (total, reads int) {
		read.Store(0)
		page, err := ListIn(projections.TableOf(w.View(), toytest.Kind), "a", nil, render, storedToys,
			Query{Filter: filter, OrderBy: orderBy})
		require.NoError(t, err)
		return page.TotalSize, int(read.Load())
	}
	total, reads := list("shown = 3", "")
	require.Equal(t, []int{n / 10, n}, []int{total, reads})
	for _, query := range [][2]string{{"shown = 3", ""}, {"shown = 4", "shown desc"}, {"", "shown"}} {
		_, reads = list(query[0], query[1])
		require.Zero(t, reads, query)
	}
	foldAt(t, w, toytest.Name("a", 7), toytest.Tag("changed"), n)
	total, reads = list("shown = 3", "")
	require.Equal(t, n/10, total)
	require.Positive(t, reads)
	require.LessOrEqual(t, reads, 128)
}

// TestColumns checks that columns have the values that they are built from.
func TestColumns(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		at := toytest.Epoch
		for _, c := range []struct {
			shape  shape
			values []keyValue
		}{
			{text, []keyValue{{text: ""}, {text: "a"}, {text: "ä b"}, {text: strings.Repeat("x", 200)}, {missing: true}}},
			{integer, []keyValue{{integer: 0}, {integer: -1}, {integer: math.MaxInt64}, {missing: true}}},
			{integer, []keyValue{{integer: -3}, {integer: math.MaxUint32 - 3}, {integer: 7}}},
			{boolean, []keyValue{{integer: 0}, {integer: 1}}},
			{number, []keyValue{{float: 0}, {float: math.Inf(1)}, {missing: true}}},
			{timestamp, []keyValue{{time: at}, {time: at.Add(1)}, {missing: true},
				{time: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}}},
		} {
			all := rapid.SliceOfN(rapid.SampledFrom(c.values), 1, projections.BlockRows).Draw(r, c.shape.String())
			column := newColumn(&field{shape: c.shape}, len(all), nil, func(i int) keyValue { return all[i] })
			if column == nil { // its texts are too long, or its times too late
				require.True(t, slices.ContainsFunc(all, func(v keyValue) bool { return len(v.text) > 64 || v.time.Year() > 2200 }))
				continue
			}
			for i, want := range all {
				require.Equal(t, want, column.valueAt(c.shape, i), c.shape)
				require.LessOrEqual(t, compareValues(c.shape, all[column.lowest], want), 0)
				require.GreaterOrEqual(t, compareValues(c.shape, all[column.highest], want), 0)
			}
		}
	})
}

func TestStoredFieldsMustExist(t *testing.T) {
	require.PanicsWithValue(t, `query: query.wireStored has no field "size"`,
		func() { StoredFieldsOf[toytest.Toy, wireStored]("size") })
	require.PanicsWithValue(t, `query: domain.Row[anneal/projections/toytest.Toy] does not store "shown"`,
		func() { StoredFieldsOf[toytest.Toy, wireStored]("shown") })
}

// TestAPanicOfAConcurrentScanReachesTheCaller checks that a panic of render in a concurrent scan
// panics in the goroutine of the caller, which can recover it, instead of ending the process.
func TestAPanicOfAConcurrentScanReachesTheCaller(t *testing.T) {
	table := projections.TableOf(manyToysWorld(t, 3*minBlocksPerScan*128).View(), toytest.Kind)
	require.PanicsWithValue(t, "cursed", func() {
		render := func(*projections.Row[toytest.Toy], *wireStored) { panic("cursed") }
		_, _ = ListIn(table, "a", nil, Rendering[toytest.Toy, wireStored]{All: render}, storedToys,
			Query{Filter: "shown > 1"})
	})
}
