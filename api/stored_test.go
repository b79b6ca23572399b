package api

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

// A list that reads fields off its rows answers what one that renders every row
// does, by whatever field it is filtered or ordered, in whatever state the rows
// are: a resource that names a field among its stored ones and renders it
// otherwise is found here.
func TestStoredFieldsAreThoseRendered(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine, and long")
	}
	for name, check := range map[string]func(*testing.T){
		"accounts": storedOf(accounts), "apiKeys": storedOf(apiKeys), "secrets": storedOf(secrets), "models": storedOf(models),
		"datasets": storedOf(datasets), "evaluators": storedOf(evaluators), "supervised jobs": storedOf(supervisedJobs),
		"DPO jobs": storedOf(dpoJobs), "reinforcement jobs": storedOf(reinforcementJobs), "trainer jobs": storedOf(trainerJobs),
		"shapes": storedOf(deploymentShapes), "deployments": storedOf(deployments), "deployed models": storedOf(deployedModels),
		"nodes": storedOf(nodes),
	} {
		t.Run(name, check)
	}
}

func storedOf[S domain.State, R any](res *resource[S, R]) func(*testing.T) {
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
				{Filter: name + ":*"}, {Filter: name + ` > "1"`}, {Filter: name + " = true"}, {Filter: name + " = READY"}, {Filter: name + " = OK"}, {Filter: name + `:"SPECIFIED"`},
				{Filter: name + ` = "2026-01-01T00:00:02Z"`}, {Filter: name + ` > "1s"`},
			} {
				want, refused := query.List(slices.Values(rows), render, plain, q)
				got, err := query.List(slices.Values(rows), render, res.fields, q)
				require.Equal(t, refused, err, "%+v", q)
				require.True(t, reflect.DeepEqual(want, got), "%+v answers something else", q)
			}
		}
	}
}

// scalarNames are the dotted names of a wire type's fields, down to two levels.
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

var randomTexts = []string{"", "", "OK", "OK", "READY", "READY", "CREATING", "UPLOADING", "a", "true", "30s", "FORMAT_UNSPECIFIED"}

// fillRandomly sets everything that is exported below v to few different values, zero often among them.
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
		v.Set(reflect.MakeSlice(v.Type(), 1+random.IntN(2), 2)) // some states hold one at least
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
