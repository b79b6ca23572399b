package query

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/projections"
	"anneal/projections/toytest"
)

// labels sorts items by orderBy and returns the concatenation of their states, which identify the
// items.
func labels(t *testing.T, orderBy string, items ...wireToy) string {
	t.Helper()
	rows := func(yield func(*projections.Row[toytest.Toy]) bool) {
		for i := range items {
			if !yield(&projections.Row[toytest.Toy]{Name: domain.Name(items[i].State), State: toytest.Toy{Size: int64(i)}}) {
				return
			}
		}
	}
	page, err := List(rows, func(r *projections.Row[toytest.Toy], w *wireToy) { *w = items[r.State.Size] }, wireToys,
		Query{OrderBy: orderBy})
	require.NoError(t, err)
	var all []string
	for _, one := range page.Items {
		all = append(all, one.State)
	}
	return strings.Join(all, "")
}

func TestOrder(t *testing.T) {
	one, two := 1, 2
	late := toytest.Epoch.Add(time.Hour)
	items := []wireToy{
		{State: "a", wireSpec: wireSpec{DisplayName: "x", LearningRate: 2}, Status: &wireStatus{Code: "OK"}, Enabled: true,
			Window: "90s"},
		{State: "b", wireSpec: wireSpec{DisplayName: "y", LearningRate: 1, MaxReplicas: &two}, ExpireTime: &late,
			ExampleCount: 9, Window: "soon", Timeout: 2},
		{State: "c", wireSpec: wireSpec{DisplayName: "x", MaxReplicas: &one}, ExpireTime: &toytest.Epoch, ExampleCount: 10,
			Notes: map[string]string{"k": "v"}, Window: "2m"},
	}
	for _, c := range []struct{ orderBy, want string }{
		{"", "abc"},
		{"state desc", "cba"},
		{"displayName", "acb"},
		{"display_name desc", "bac"},
		{"displayName desc, state desc", "bca"},
		{"displayName asc,state  desc", "cab"},
		{"learningRate", "cba"},
		{"maxReplicaCount", "acb"},
		{"maxReplicaCount desc", "bca"},
		{"expireTime", "acb"},
		{"exampleCount desc", "cba"},
		{"status.code", "bca"},
		{"enableAddons desc", "abc"},
		{"notes.k desc", "cab"},
		{"scaleUpWindow", "bac"},
		{"timeout desc", "bac"},
	} {
		require.Equal(t, c.want, labels(t, c.orderBy, items...), c.orderBy)
	}
}

func TestOrderErrors(t *testing.T) {
	for _, c := range []struct{ orderBy, says string }{
		{"colour", `there is no field "colour"`},
		{"status", "status is not a single value"},
		{"tags", "tags is not a single value"},
		{"parts.step", "parts.step is not a single value"},
		{"raw", "raw is not a single value"},
		{"state descending", `"state descending" must be the name of a field`},
		{"state,,name", "has an empty entry, between two commas"},
		{"state,", "has an empty entry, between two commas"},
		{"state.code", `state is text and has no field "code"`},
		{strings.Repeat("state,", 8) + "state", "names 9 fields: at most 8"},
		{strings.Repeat("s", MaxOrder+1), "at most 1024"},
	} {
		_, err := wireToys.Order(c.orderBy, "name")
		require.ErrorContains(t, err, c.says, c.orderBy)
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	}
}

func FuzzOrder(f *testing.F) {
	for _, seed := range []string{"createTime desc, name", "status.code", "notes.k,exampleCount desc", ","} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, orderBy string) {
		order, err := wireToys.Order(orderBy, "name")
		if err != nil {
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
			return
		}
		for _, key := range order.keys {
			require.True(t, key.leaf.shape.scalar())
		}
		// With a total order, the result does not depend on the order of the input.
		there := labels(t, orderBy, wireToy{State: "a"}, wireToy{State: "b", Enabled: true}, *aToy())
		require.True(t, slices.Contains(strings.Split(there, ""), "b"))
	})
}
