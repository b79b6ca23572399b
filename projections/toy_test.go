package projections

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections/toytest"
)

func toyWorld() *World { return NewWorldOf(toytest.Kind) }

// replay folds the events of the log after the world's position and returns the world.
func replay(t testing.TB, w *World, log eventlog.Log) *World {
	t.Helper()
	for e, err := range log.Read(context.Background(), everything, w.Position()) {
		require.NoError(t, err)
		require.NoError(t, w.Apply(e))
	}
	return w
}

func names[S domain.State](rows func(func(*Row[S]) bool)) []string {
	found := []string{}
	for row := range rows {
		found = append(found, string(row.Name))
	}
	return found
}
