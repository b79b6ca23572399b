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

// A decision is one test case: the command in when is decided at noon, on the state after the
// events in given. The expected result is an event, no event, or an error.
type decision[S domain.State] struct {
	name  string
	given []domain.Event[S]
	when  domain.Command[S]
	then  domain.Event[S] // expected event; nil if an error is expected, or if the event is already recorded
	fault string          // expected reason of the error, or its code if it has no reason
	says  string          // expected part of the error's message
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
				listedOnce(t, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, line.then, event)
		})
	}
}

// listedOnce requires that err lists no violation twice.
func listedOnce(t *testing.T, err error) {
	t.Helper()
	var fault *domain.Error
	require.ErrorAs(t, err, &fault)
	seen := map[domain.Violation]bool{}
	for _, v := range fault.Violations {
		require.False(t, seen[v], "the violation %s is listed twice", v)
		seen[v] = true
	}
}

// fold returns the state after the events in facts, each of which is encoded and decoded as in the
// log.
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

// also returns the events in history, followed by more.
func also[S any](history []domain.Event[S], more ...domain.Event[S]) []domain.Event[S] {
	return slices.Concat(history, more)
}

// golden compares text with a file in testdata, or rewrites the file with -update.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run the test with -update to create the file")
	require.Equal(t, string(want), text, "%s: run the test with -update when the change is meant", path)
}

// reserved returns the events in history, followed by the event of a deletion request.
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
