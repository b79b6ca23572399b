package rest

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/projections"
	"anneal/projections/query"
)

// TestComputedFieldsAreThoseRendered checks that the functions that set single fields of a resource set what
// its renderer sets, whatever the field was before, and nothing else.
func TestComputedFieldsAreThoseRendered(t *testing.T) {
	require.NotEmpty(t, datasets.computed)
	random := rand.New(rand.NewPCG(1, 2))
	view := projections.NewWorld().View()
	for range 200 {
		row := &projections.Row[domain.Dataset]{}
		fillRandomly(random, reflect.ValueOf(row).Elem(), 0)
		row.Name = "accounts/acme/datasets/d"
		var rendered Dataset
		datasets.render(view, row, &rendered)
		for name, compute := range datasets.computed {
			var other Dataset
			fillRandomly(random, reflect.ValueOf(&other).Elem(), 0)
			want := fieldsByName(other)
			want[name] = fieldsByName(rendered)[name]
			compute(row, &other)
			require.Equal(t, want, fieldsByName(other), name)
		}
	}
}

// fieldsByName returns the fields of a wire type by their JSON names.
func fieldsByName(wire any) map[string]any {
	all := map[string]any{}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(wire)) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			all[name] = reflect.ValueOf(wire).FieldByIndex(f.Index).Interface()
		}
	}
	return all
}

// TestStoredFieldsAreThoseRendered checks, for each field in filters and orderBy, that lists that
// read stored fields from rows equal lists that render every row. It detects a resource whose
// renderer changes a field that the resource declares as stored.
func TestStoredFieldsAreThoseRendered(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: filters and orders by every field")
	}
	for name, check := range map[string]func(*testing.T){
		"accounts": checkStored(accounts), "apiKeys": checkStored(apiKeys), "secrets": checkStored(secrets),
		"models":   checkStored(models),
		"datasets": checkStored(datasets), "evaluators": checkStored(evaluators),
		"supervised jobs": checkStored(supervisedJobs),
		"DPO jobs":        checkStored(dpoJobs), "reinforcement jobs": checkStored(reinforcementJobs),
		"trainer jobs": checkStored(trainerJobs),
		"shapes":       checkStored(deploymentShapes), "deployments": checkStored(deployments),
		"deployed models": checkStored(deployedModels),
		"nodes":           checkStored(nodes),
	} {
		t.Run(name, check)
	}
}

func checkStored[S domain.State, R any](res *resource[S, R]) func(*testing.T) {
	return func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		view := projections.NewWorld().View()
		render := func(row *projections.Row[S], out *R) { res.render(view, row, out) }
		var rows []*projections.Row[S]
		for i := range 200 {
			row := &projections.Row[S]{Name: domain.NewName("acme", res.kind.Collection, fmt.Sprintf("r%03d", i))}
			fillRandomly(random, reflect.ValueOf(row).Elem(), 0)
			row.Name = domain.NewName("acme", res.kind.Collection, fmt.Sprintf("r%03d", i))
			rows = append(rows, row)
		}
		names := scalarNames(reflect.TypeFor[R](), "", 0)
		require.NotEmpty(t, names)
		plain := fieldsOf[R]()
		for _, name := range names {
			for _, q := range []query.Query{
				{OrderBy: name}, {OrderBy: name + " desc", PageSize: 200},
				{Filter: name + ":*"}, {Filter: name + ` > "1"`}, {Filter: name + " = true"}, {Filter: name + " = READY"},
				{Filter: name + " = OK"}, {Filter: name + `:"SPECIFIED"`},
				{Filter: name + ` = "2026-01-01T00:00:02Z"`}, {Filter: name + ` > "1s"`},
			} {
				want, wantErr := query.List(slices.Values(rows), render, plain, q)
				got, err := query.List(slices.Values(rows), render, res.fields, q)
				require.Equal(t, wantErr, err, "%+v", q)
				require.True(t, reflect.DeepEqual(want, got), "%+v returns another page", q)
			}
		}
	}
}

// scalarNames returns the dotted names of the fields of a wire type, to a depth of two.
func scalarNames(t reflect.Type, prefix string, depth int) (names []string) {
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" || !f.IsExported() {
			continue
		}
		names = append(names, prefix+name)
		below := f.Type
		for below.Kind() == reflect.Pointer {
			below = below.Elem()
		}
		if below.Kind() == reflect.Struct && below != reflect.TypeFor[time.Time]() && depth < 2 {
			names = append(names, scalarNames(below, prefix+name+".", depth+1)...)
		}
	}
	return names
}

var randomTexts = []string{"", "", "OK", "OK", "READY", "READY", "CREATING", "UPLOADING", "a", "true", "30s",
	"FORMAT_UNSPECIFIED"}

// fillRandomly sets all exported fields below v. It chooses from few values, often zero, so that
// several rows have the same value.
func fillRandomly(random *rand.Rand, v reflect.Value, depth int) {
	switch {
	case v.Type() == reflect.TypeFor[time.Time]():
		if n := random.IntN(4); n > 0 {
			v.Set(reflect.ValueOf(time.Date(2026, 1, 1, 0, 0, n, 0, time.UTC)))
		}
		return
	case depth > 8:
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fillRandomly(random, v.Field(i), depth+1)
			}
		}
	case reflect.Pointer:
		if random.IntN(2) == 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fillRandomly(random, v.Elem(), depth+1)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1+random.IntN(2), 2)) // some states require an element
		for i := range v.Len() {
			fillRandomly(random, v.Index(i), depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fillRandomly(random, key, depth+1)
		fillRandomly(random, value, depth+1)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(randomTexts[random.IntN(len(randomTexts))])
	case reflect.Bool:
		v.SetBool(random.IntN(2) == 0)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(random.IntN(3)))
	default:
		switch {
		case v.CanInt():
			v.SetInt(int64(random.IntN(4)))
		case v.CanUint():
			v.SetUint(uint64(random.IntN(4)))
		}
	}
}
