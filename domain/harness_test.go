package domain_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

var update = flag.Bool("update", false, "rewrite the golden files of testdata")

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func later(d time.Duration) *time.Time { t := noon.Add(d); return &t }

func ptr[T any](v T) *T { return &v }

// A decision is one line of a table: given these events, when this is
// requested at noon, then that is recorded, or nothing, or it is refused.
type decision[S domain.State] struct {
	name  string
	given []domain.Event[S]
	when  domain.Command[S]
	then  domain.Event[S] // nil, with no fault: already recorded
	fault string          // the fault's reason, or its code where it has none
	says  string          // part of the fault's message
}

func decide[S domain.State](t *testing.T, kind *domain.Kind[S], table []decision[S]) {
	t.Helper()
	for _, line := range table {
		t.Run(line.name, func(t *testing.T) {
			state := fold(t, kind, line.given...)
			event, err := line.when.Decide(state, noon)
			if line.fault != "" {
				require.Error(t, err)
				require.Equal(t, line.fault, reasonOf(err), err.Error())
				require.Contains(t, err.Error(), line.says)
				toldOnce(t, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, line.then, event)
		})
	}
}

// toldOnce: no violation is in one refusal twice.
func toldOnce(t *testing.T, err error) {
	t.Helper()
	var fault *domain.Error
	require.ErrorAs(t, err, &fault)
	seen := map[domain.Violation]bool{}
	for _, v := range fault.Violations {
		require.False(t, seen[v], "%s is told twice", v)
		seen[v] = true
	}
}

// fold is the state after the facts, each of which is written and read on the
// way, as the log does.
func fold[S domain.State](t testing.TB, kind *domain.Kind[S], facts ...domain.Event[S]) S {
	t.Helper()
	var state S
	for _, fact := range facts {
		record, err := kind.Encode(fact)
		require.NoError(t, err)
		require.NoError(t, kind.Fold(&state, record))
	}
	return state
}

func reasonOf(err error) string {
	var fault *domain.Error
	switch {
	case !errors.As(err, &fault):
		return "not a fault"
	case fault.Reason != "":
		return fault.Reason
	}
	return fault.Code.String()
}

func events[S any](events ...domain.Event[S]) []domain.Event[S] { return events }

// also is a history and what came after it.
func also[S any](history []domain.Event[S], more ...domain.Event[S]) []domain.Event[S] {
	return slices.Concat(history, more)
}

// golden compares text with a file of testdata, or rewrites the file.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run the test with -update to make the file")
	require.Equal(t, string(want), text, "%s: run the test with -update when the change is meant", path)
}

// reserved is a history and then the request to delete.
func reserved[S domain.State](k *domain.Kind[S], history []domain.Event[S]) []domain.Event[S] {
	var state S
	for _, e := range history {
		e.Evolve(&state)
	}
	requested, err := domain.RequestDeletion(k).Decide(state, noon)
	if err != nil {
		panic(err)
	}
	return append(slices.Clone(history), requested)
}
