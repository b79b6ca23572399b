package rest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/projections"
	"anneal/projections/live"
	"anneal/projections/query"
)

var updatePaths = flag.Bool("update-paths", false, "write testdata/filter_paths.txt")

// TestFilterPaths compares, for every field of every kind and every operator, what a repeated list does
// with a filter that names the field, with testdata/filter_paths.txt:
//
//	columns     no row is rendered but those of the page
//	some rows   rows whose field depends on more than the row are rendered, too
//	rendered    every row is rendered
//
// The word is a term without a field. TestFilterPaths requires every kind, or a reason to leave it out.
func TestFilterPaths(t *testing.T) {
	without := map[string]string{ // kinds whose lists have no columns
		"quotas":       fmt.Sprintf("rendered, but an account has always %d rows", len(domain.QuotaIDs)),
		"batchFiles":   "lists have no filter",
		"batches":      "lists have no filter",
		"usageRollups": "lists sum the rows of a period, and filter the sums",
	}
	var all strings.Builder
	all.WriteString("# see TestFilterPaths\n")
	for _, lines := range [][]string{pathsOf(t, accounts), pathsOf(t, apiKeys), pathsOf(t, secrets), pathsOf(t, models),
		pathsOf(t, datasets), pathsOf(t, evaluators), pathsOf(t, supervisedJobs), pathsOf(t, dpoJobs),
		pathsOf(t, reinforcementJobs), pathsOf(t, trainerJobs), pathsOf(t, deploymentShapes), pathsOf(t, deployments),
		pathsOf(t, deployedModels), pathsOf(t, nodes), pathsOf(t, subscriptions),
		pathsOf(t, trainingSessions), pathsOf(t, trainingRuns)} {
		fmt.Fprintln(&all, strings.Join(lines, "\n"))
	}
	for _, collection := range domain.Collections() {
		if without[collection] == "" {
			require.Contains(t, all.String(), "\n"+collection+" (word)")
			continue
		}
		fmt.Fprintf(&all, "%s: %s\n", collection, without[collection])
	}
	const file = "testdata/filter_paths.txt"
	if *updatePaths {
		require.NoError(t, os.WriteFile(file, []byte(all.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), all.String(), "run go test ./api/rest -run TestFilterPaths -update-paths")
}

// filterValues are values, at least one of which can be compared with a field of any type.
var filterValues = []string{"a", "1", "true", `"2026-01-01T00:00:02Z"`, `"30s"`, "READY", "SPECIFIED"}

func pathsOf[S domain.State, R any](t *testing.T, res *resource[S, R]) (lines []string) {
	const n = 400
	table, view := projections.NewTable(res.kind, slices.Values(randomRows(res, n))), projections.NewWorld().View()
	var rendered atomic.Int64
	rendering := renderingOf(res, view, func(row *projections.Row[S], out *R) {
		rendered.Add(1)
		res.render(view, row, out)
	})
	path := func(filter string) (string, bool) {
		for range 2 { // the first list builds the columns
			rendered.Store(0)
			page, err := query.ListIn(table, listedIn(res.kind), nil, rendering, res.fields,
				query.Query{Filter: filter, PageSize: 1})
			if err != nil {
				return "", false
			}
			rendered.Add(-int64(len(page.Items)))
		}
		switch r := rendered.Load(); {
		case r == 0:
			return "columns", true
		case r < n:
			return "some rows", true
		}
		return "rendered", true
	}
	word, ok := path(`"zz9"`)
	require.True(t, ok)
	lines = append(lines, fmt.Sprintf("%s (word): %s", res.kind.Collection, word))
	for _, name := range queryNames(reflect.TypeFor[R](), "", 0) {
		ops := map[string][]string{}
		for _, op := range []string{"=", "!=", "<", "<=", ">", ">=", ":", ":*"} {
			values := filterValues
			if op == ":*" {
				values = []string{""}
			}
			for _, value := range values {
				if one, ok := path(name + " " + op + value); ok {
					ops[one] = append(ops[one], op)
					break
				}
			}
		}
		for _, one := range []string{"columns", "some rows", "rendered"} {
			if len(ops[one]) > 0 {
				lines = append(lines, fmt.Sprintf("%s %s %s: %s", res.kind.Collection, name, strings.Join(ops[one], " "), one))
			}
		}
	}
	return lines
}

// queryNames returns the dotted names of the fields of a wire type that filters may name, also below
// lists. For a map, it adds a key.
func queryNames(t reflect.Type, prefix string, depth int) (names []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Map:
		return append([]string{prefix + "key"}, queryNames(t.Elem(), prefix+"key.", depth+1)...)
	case t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]() || depth > 3:
		return nil
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" && f.IsExported() && f.Tag.Get("query") != "-" {
			names = append(append(names, prefix+name), queryNames(f.Type, prefix+name+".", depth+1)...)
		}
	}
	return names
}

// randomRows returns rows with random states. A part of them was created by the API key of
// otherView.
func randomRows[S domain.State, R any](res *resource[S, R], n int) (rows []*projections.Row[S]) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		row := &projections.Row[S]{}
		fillRandomly(random, reflect.ValueOf(row).Elem(), 0)
		row.Name = domain.NewName("acme", res.kind.Collection, fmt.Sprintf("r%03d", i))
		if by := reflect.ValueOf(&row.State).Elem().FieldByName("CreatedBy"); by.IsValid() && i%3 == 0 {
			by.SetString("accounts/acme/apiKeys/k")
		}
		if i%2 == 0 { // half of the jobs and deployments are not active
			switch state := any(&row.State).(type) {
			case domain.Job:
				state.Life().Nodes = nil
			case *domain.Deployment:
				state.Replicas = nil
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// otherView returns a view with resources and live status that a new world does not have, on which
// responses that show the rows may depend.
func otherView[S domain.State](rows []*projections.Row[S]) *projections.View {
	w := projections.NewWorld()
	at := time.Date(2026, 1, 1, 0, 0, 9, 0, time.UTC)
	for _, row := range rows {
		w.Live().Heartbeat(row.Name, at)
		w.Live().SetDevices(row.Name, []live.Device{{}}, at)
		w.Live().UseKey(row.Name, at)
		w.Live().Report(row.Name, live.Progress{Made: row.CreateTime, Step: 7, Steps: 9},
			live.MetricRow{Step: 7, Time: at, Values: map[string]float64{"train/loss": 7}})
	}
	view := w.View()
	view.APIKeys = projections.NewTable(domain.APIKeys, slices.Values([]*projections.Row[domain.APIKey]{
		{Name: "accounts/acme/apiKeys/k", State: domain.APIKey{APIKeySpec: domain.APIKeySpec{Email: "a@example.com"}}}}))
	node := func(name string, n domain.Node) *projections.Row[domain.Node] {
		return &projections.Row[domain.Node]{Name: domain.Name(name), State: n}
	}
	view.Nodes = projections.NewTable(domain.Nodes, slices.Values([]*projections.Row[domain.Node]{
		node("OK", domain.Node{State: domain.NodeLostState}),
		node("a", domain.Node{NodeSpec: domain.NodeSpec{Region: "EU"}})}))
	return view
}

// renderingOf returns the rendering of lists in a view, without fields that differ between servers.
func renderingOf[S domain.State, R any](res *resource[S, R], v *projections.View,
	render func(*projections.Row[S], *R)) query.Rendering[S, R] {
	rendering := query.Rendering[S, R]{All: render,
		Field: func(field string) func(*projections.Row[S], *R) { return res.computed[field] }}
	if res.dependent != nil {
		rendering.Dependence = func(field string) *query.Dependence[S] { return dependenceOf(res, v, field) }
	}
	return rendering
}

// TestColumnsAreThoseRendered checks, for each field in filters and orderBy of each kind, that lists that
// read columns equal lists that render every row: when the columns are built, when they are read, and in
// another view with the same rows. It detects a field that depends on more than the row, and of which
// resource.dependent does not say so.
func TestColumnsAreThoseRendered(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: filters and orders by every field")
	}
	for name, check := range map[string]func(*testing.T){
		"accounts": checkColumns(accounts), "apiKeys": checkColumns(apiKeys), "secrets": checkColumns(secrets),
		"models": checkColumns(models), "datasets": checkColumns(datasets), "evaluators": checkColumns(evaluators),
		"supervised jobs": checkColumns(supervisedJobs), "DPO jobs": checkColumns(dpoJobs),
		"reinforcement jobs": checkColumns(reinforcementJobs), "trainer jobs": checkColumns(trainerJobs),
		"shapes": checkColumns(deploymentShapes), "deployments": checkColumns(deployments),
		"deployed models": checkColumns(deployedModels), "nodes": checkColumns(nodes),
		"subscriptions": checkColumns(subscriptions),
	} {
		t.Run(name, check)
	}
}

// listedIn returns the account whose list has the rows that randomRows returns.
func listedIn(kind domain.AnyKind) string {
	if kind == domain.Accounts {
		return domain.System
	}
	return "acme"
}

func checkColumns[S domain.State, R any](res *resource[S, R]) func(*testing.T) {
	return func(t *testing.T) {
		rows := randomRows(res, projections.BlockRows+10)
		views := []*projections.View{projections.NewWorld().View(), otherView(rows)}
		table, plain := projections.NewTable(res.kind, slices.Values(rows)), fieldsOf[R]()
		queries := []query.Query{}
		for _, word := range []string{`"ok"`, "READY", `"Dy"`, `"s/r0"`, `"acme/"`, `"r*7"`, `"a@EX"`, `"é"`, `"waiting"`,
			`"a"`, `"r10"`, `"keys/k"`, `"*"`} {
			queries = append(queries, query.Query{Filter: word, PageSize: 200})
		}
		for _, name := range queryNames(reflect.TypeFor[R](), "", 0) {
			queries = append(queries, query.Query{OrderBy: name, PageSize: 200})
			for _, op := range []string{"=", ">=", ":", ":*"} {
				for n, value := range filterValues {
					if op == ":*" && n > 0 {
						break
					}
					if op == ":*" {
						value = ""
					}
					queries = append(queries, query.Query{Filter: name + " " + op + value, PageSize: 200})
				}
			}
		}
		for _, q := range queries {
			for i, view := range append(views, views[0]) {
				render := func(row *projections.Row[S], out *R) { res.render(view, row, out) }
				want, wantErr := query.List(slices.Values(rows), render, plain, q)
				got, err := query.ListIn(table, listedIn(res.kind), nil, renderingOf(res, view, render), res.fields, q)
				require.Equal(t, wantErr, err, "%+v", q)
				require.True(t, reflect.DeepEqual(want, got), "%+v returns another page in view %d: %d of %d rows", q, i,
					got.TotalSize, want.TotalSize)
				if err != nil {
					break
				}
			}
		}
	}
}
