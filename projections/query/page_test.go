package query

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/projections/toytest"
)

func renderToy(row *projections.Row[toytest.Toy], w *wireToy) {
	w.Name, w.CreateTime = string(row.Name), row.CreateTime
	w.DisplayName, w.ExampleCount, w.Tags, w.Notes = row.State.Label, domain.Count(row.State.Size), row.State.Tags,
		row.State.Notes
}

func manyToys(t testing.TB, n int) *projections.Table[toytest.Toy] {
	log, w := eventlog.NewMemory(), toyWorld()
	for i := range n {
		record, err := toytest.Kind.Encode(toytest.Make(fmt.Sprintf("toy %d", i%7), int64(i)))
		require.NoError(t, err)
		_, err = log.Append(t.Context(),
			eventlog.Write{Event: eventlog.Event{Record: record, ID: fmt.Sprint("event-", i),
				Name: toytest.Name("acme", (i*7919)%n),
				Time: toytest.Epoch.Add(1e9 * 60)}})
		require.NoError(t, err)
	}
	return projections.TableOf(replay(t, w, log).View(), toytest.Kind)
}

func TestPageSizes(t *testing.T) {
	table := manyToys(t, 211)
	for _, c := range []struct{ size, items int }{{0, 50}, {1, 1}, {200, 200}, {201, 200}, {1 << 40, 200}} {
		for _, order := range []string{"", "exampleCount desc"} {
			page, err := List(table.In("acme"), renderToy, wireToys, Query{PageSize: c.size, OrderBy: order})
			require.NoError(t, err)
			require.Len(t, page.Items, c.items)
			require.NotEmpty(t, page.NextPageToken)
			require.Equal(t, 211, page.TotalSize)
		}
	}
	page, err := List(table.In("acme"), renderToy, wireToys, Query{Filter: "exampleCount < 30 AND displayName = 'toy 1'"})
	require.NoError(t, err)
	require.Len(t, page.Items, 5)
	require.Equal(t, 5, page.TotalSize)
	require.Empty(t, page.NextPageToken)
	page, err = List(table.In("nobody"), renderToy, wireToys, Query{})
	require.NoError(t, err)
	require.Empty(t, page.Items)
	require.NotNil(t, page.Items)
	require.Zero(t, page.TotalSize)
}

func TestAFullLastPageHasNoToken(t *testing.T) {
	table := manyToys(t, 100)
	first, err := List(table.All(), renderToy, wireToys, Query{})
	require.NoError(t, err)
	second, err := List(table.All(), renderToy, wireToys, Query{PageToken: first.NextPageToken})
	require.NoError(t, err)
	require.Len(t, second.Items, 50)
	require.Empty(t, second.NextPageToken)
}

func TestAllViolationsOfAQueryAreListed(t *testing.T) {
	_, err := List(manyToys(t, 1).All(), renderToy, wireToys, Query{Filter: "x = 1", PageSize: -1, PageToken: "?"})
	var f *domain.Error
	require.ErrorAs(t, err, &f)
	var fields []string
	for _, v := range f.Violations {
		fields = append(fields, v.Field)
	}
	require.Equal(t, []string{"pageSize", "filter", "pageToken"}, fields)
	_, err = List(manyToys(t, 1).All(), renderToy, wireToys, Query{OrderBy: "x", PageToken: "?"})
	require.ErrorContains(t, err, "orderBy: there is no field")
}

func TestAPageTokenBelongsToOneRequest(t *testing.T) {
	table := manyToys(t, 60)
	asked := Query{Filter: "exampleCount >= 0", OrderBy: "displayName", Binding: "accounts/acme/toys showDeleted=true",
		Key: []byte("key")}
	first, err := List(table.All(), renderToy, wireToys, asked)
	require.NoError(t, err)
	token := first.NextPageToken
	with := func(change func(*Query)) Query {
		q := asked
		q.PageToken = token
		change(&q)
		return q
	}
	next, err := List(table.All(), renderToy, wireToys, with(func(*Query) {}))
	require.NoError(t, err)
	require.Len(t, next.Items, 10)
	next, err = List(table.All(), renderToy, wireToys, with(func(q *Query) { q.PageSize = 3 }))
	require.NoError(t, err, "the page size may change")
	require.Len(t, next.Items, 3)

	flipped := []byte(token)
	flipped[30] ^= 1
	for name, q := range map[string]Query{
		"filter":    with(func(q *Query) { q.Filter = "exampleCount >= 1" }),
		"order":     with(func(q *Query) { q.OrderBy = "exampleCount" }),
		"binding":   with(func(q *Query) { q.Binding = "accounts/other/toys showDeleted=true" }),
		"key":       with(func(q *Query) { q.Key = []byte("other") }),
		"tampered":  with(func(q *Query) { q.PageToken = string(flipped) }),
		"cut":       with(func(q *Query) { q.PageToken = token[:len(token)-4] }),
		"short":     with(func(q *Query) { q.PageToken = token[:8] }),
		"no base64": with(func(q *Query) { q.PageToken = "not a token!" }),
		"padded":    with(func(q *Query) { q.PageToken += "=" }),
		"huge":      with(func(q *Query) { q.PageToken = string(make([]byte, maxPageToken+1)) }),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := List(table.All(), renderToy, wireToys, q)
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
			require.ErrorContains(t, err, "pageToken: is not a page token of this list")
		})
	}
}

// TestPagingIsStable checks that each item that exists during the whole list appears exactly once
// when other items are created or deleted between two pages.
func TestPagingIsStable(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		log, w := eventlog.NewMemory(), toyWorld()
		for range rapid.IntRange(0, 40).Draw(r, "before") {
			addRandom(t, r, log, w)
		}
		throughout := map[string]bool{}
		for row := range projections.TableOf(w.View(), toytest.Kind).All() {
			throughout[string(row.Name)] = true
		}
		q := Query{
			OrderBy: rapid.SampledFrom([]string{"", "name desc", "createTime", "createTime desc",
				"displayName, exampleCount desc", "exampleCount"}).Draw(r, "order"),
			Filter:   rapid.SampledFrom([]string{"", "name:*"}).Draw(r, "filter"),
			PageSize: rapid.IntRange(1, 5).Draw(r, "size"), Key: []byte("k"),
		}
		shown := map[string]int{}
		for {
			page, err := List(projections.TableOf(w.View(), toytest.Kind).All(), renderToy, wireToys, q)
			require.NoError(t, err)
			require.Equal(t, projections.TableOf(w.View(), toytest.Kind).Len(), page.TotalSize)
			for _, item := range page.Items {
				shown[item.Name]++
			}
			if q.PageToken = page.NextPageToken; q.PageToken == "" {
				break
			}
			for range rapid.IntRange(0, 3).Draw(r, "between") {
				if name, fact := addRandom(t, r, log, w); fact == (toytest.Broken{}) {
					delete(throughout, string(name))
				}
			}
		}
		for name := range throughout {
			require.Equal(t, 1, shown[name], "%s ordered by %q", name, q.OrderBy)
		}
	})
}

func FuzzPageToken(f *testing.F) {
	table := manyToys(f, 60)
	q := Query{OrderBy: "displayName desc, createTime", Key: []byte("key")}
	page, err := List(table.All(), renderToy, wireToys, q)
	require.NoError(f, err)
	f.Add(page.NextPageToken)
	f.Add("AAAA")
	f.Fuzz(func(t *testing.T, token string) {
		q := q
		q.PageToken = token
		_, err := List(table.All(), renderToy, wireToys, q)
		if token != "" && token != page.NextPageToken {
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
		}
	})
}

func TestRowsMayComeInAnyOrder(t *testing.T) {
	table := manyToys(t, 9)
	var shown []string
	q := Query{PageSize: 4}
	for {
		page, err := List(table.Newest("acme"), renderToy, wireToys, q)
		require.NoError(t, err)
		for _, item := range page.Items {
			shown = append(shown, item.Name)
		}
		if q.PageToken = page.NextPageToken; q.PageToken == "" {
			break
		}
	}
	require.Equal(t, names(table.All()), shown)
}
