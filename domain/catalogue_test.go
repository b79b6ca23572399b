package domain_test

import (
	"cmp"
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
	"anneal/internal/testutil"
)

// catalogue is the file with samples of every stored event, one for each form that a version of anneal
// wrote. Lines are never removed or changed, because logs may still contain events in these forms, and
// every version must fold them.
const catalogue = "catalogue.txt"

// TestCatalogue checks that the catalogue contains a sample of every event with all fields set, and
// folds every sample of the catalogue. With -update, the test adds missing samples to the catalogue.
func TestCatalogue(t *testing.T) {
	path := filepath.Join("testdata", catalogue)
	recorded, err := os.ReadFile(path)
	if !*update {
		require.NoError(t, err, "run the test with -update to create the file")
	}
	lines := strings.Split(strings.TrimSpace(string(recorded)), "\n")
	for sample := range samples(t) {
		if line := sample.Type + " " + string(sample.Data); !slices.Contains(lines, line) {
			require.True(t, *update, "%s is encoded in a form that is not in %s: if the change is intended, and older forms "+
				"still fold to the same state, run the test with -update\n%s", sample.Type, path, line)
			lines = append(lines, line)
		}
	}
	lines = slices.DeleteFunc(lines, func(line string) bool { return line == "" })
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(nameOf(a), nameOf(b)) })
	for _, line := range lines {
		name, body, _ := strings.Cut(line, " ")
		require.True(t, folds(t, domain.Record{Type: name, Data: json.RawMessage(body)}), "no kind has the event %s", name)
	}
	golden(t, catalogue, strings.Join(lines, "\n")+"\n")
}

func nameOf(line string) string {
	name, _, _ := strings.Cut(line, " ")
	return name
}

// samples yields a record of every event of every kind.
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
		data := testutil.Marshal(t, fact.Interface())
		record := domain.Record{Type: name, Data: data}
		event, err := kind.DecodeEvent(record)
		require.NoError(t, err)
		again, err := kind.EncodeEvent(event)
		require.NoError(t, err)
		require.Equal(t, name, again.Type)
		require.JSONEq(t, string(data), string(again.Data), "%s changes when it is decoded and encoded", name)
		if !yield(again) {
			return false
		}
	}
	return true
}

// folds reports whether any kind can fold the record onto the state of an existing resource.
func folds(t *testing.T, r domain.Record) bool {
	for _, kind := range domain.Kinds {
		for name := range kind.EventTypes() {
			if name == r.Type {
				state := reflect.New(kind.StateType())
				fill(state.Elem(), "", 1)
				_, err := kind.FoldRecord(state.Elem().Interface(), r)
				require.NoError(t, err, "a stored event does not fold: %s %s", r.Type, r.Data)
				return true
			}
		}
	}
	return false
}

// sampleText has the texts of fields that were renamed after their samples were written, by JSON tag.
// The text of another field is its name: see fill.
var sampleText = map[string]string{"folder": "Folder"}

// fill sets every field of v, also of nested values: text to the name of the field, and numbers to
// n, n+1 and so on, so that all values differ. It returns the next number.
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
			field := v.Type().Field(i)
			n = fill(v.Field(i), cmp.Or(sampleText[field.Tag.Get("json")], field.Name), n)
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
