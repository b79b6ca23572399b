package domain_test

import (
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// catalogue holds one body of every stored name, and of every shape that such
// a body ever had. Lines are only ever added: a body that was written once may
// be in somebody's log, and must fold for ever.
const catalogue = "catalogue.txt"

// TestCatalogue writes down a sample of every fact with all its fields set,
// and reads back every sample that was ever written down. With -update it adds
// the samples that are new.
func TestCatalogue(t *testing.T) {
	path := filepath.Join("testdata", catalogue)
	recorded, err := os.ReadFile(path)
	if !*update {
		require.NoError(t, err, "run the test with -update to make the file")
	}
	lines := strings.Split(strings.TrimSpace(string(recorded)), "\n")
	for sample := range samples(t) {
		if line := sample.Type + " " + string(sample.Data); !slices.Contains(lines, line) {
			require.True(t, *update, "%s is written in a way that %s does not know: when that is meant, and old bodies still mean the same, run the test with -update\n%s", sample.Type, path, line)
			lines = append(lines, line)
		}
	}
	lines = slices.DeleteFunc(lines, func(line string) bool { return line == "" })
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(nameOf(a), nameOf(b)) })
	for _, line := range lines {
		name, body, _ := strings.Cut(line, " ")
		require.True(t, folds(t, domain.Record{Type: name, Data: json.RawMessage(body)}), "no kind knows %s any more", name)
	}
	golden(t, catalogue, strings.Join(lines, "\n")+"\n")
}

func nameOf(line string) string {
	name, _, _ := strings.Cut(line, " ")
	return name
}

// samples yields a record of every fact of every kind.
func samples(t *testing.T) iter.Seq[domain.Record] {
	return func(yield func(domain.Record) bool) {
		for _, kind := range domain.Kinds {
			if !sampled(t, kind, yield) {
				return
			}
		}
	}
}

func sampled(t *testing.T, kind domain.AnyKind, yield func(domain.Record) bool) bool {
	for name, goType := range kind.EventTypes() {
		fact := reflect.New(goType)
		fill(fact.Elem(), "", 1)
		data, err := json.Marshal(fact.Interface())
		require.NoError(t, err)
		record := domain.Record{Type: name, Data: data}
		event, err := kind.DecodeEvent(record)
		require.NoError(t, err)
		again, err := kind.EncodeEvent(event)
		require.NoError(t, err)
		require.Equal(t, name, again.Type)
		require.JSONEq(t, string(data), string(again.Data), "%s loses something on its way through the log", name)
		if !yield(again) {
			return false
		}
	}
	return true
}

// folds reports whether some kind folds the record onto a resource that exists.
func folds(t *testing.T, r domain.Record) bool {
	for _, kind := range domain.Kinds {
		for name := range kind.EventTypes() {
			if name == r.Type {
				state := reflect.New(kind.StateType())
				fill(state.Elem(), "", 1)
				_, err := kind.FoldRecord(state.Elem().Interface(), r)
				require.NoError(t, err, "a body that was once written no longer folds: %s %s", r.Type, r.Data)
				return true
			}
		}
	}
	return false
}

// fill sets every field below v: text to its field's name, numbers to one after
// the other, so that no field can be mistaken for another.
func fill(v reflect.Value, name string, n int) int {
	switch v.Type() {
	case reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(noon.Add(time.Duration(n) * time.Second)))
		return n + 1
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(name)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(n))
		n++
	case reflect.Float64:
		v.SetFloat(float64(n) + 0.5)
		n++
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(uint64(n))
		n++
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		n = fill(v.Elem(), name, n)
	case reflect.Struct:
		for i := range v.NumField() {
			n = fill(v.Field(i), v.Type().Field(i).Name, n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		n = fill(v.Index(0), name, n)
	case reflect.Map:
		element := reflect.New(v.Type().Elem()).Elem()
		n = fill(element, name, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf(name).Convert(v.Type().Key()), element)
	default:
		panic(fmt.Sprintf("the catalogue cannot fill a %s", v.Type()))
	}
	return n
}
