package api

import (
	"github.com/stretchr/testify/require"

	"anneal/blobs/reconcile"
	"anneal/domain"
	"anneal/projections"
)

// reconcile deletes all unreferenced files and data keys, without a grace period.
func (s *harness) reconcile() {
	s.Helper()
	r := reconcile.New(reconcile.Options{Log: s.log, World: s.world, Blobs: s.store, Keys: s.vault})
	require.NoError(s, r.Reconcile(s.Context(), 0))
}

// dataKeys returns the IDs of all data keys.
func (s *harness) dataKeys() (ids []string) {
	s.Helper()
	for key, err := range s.vault.DataKeys(s.Context()) {
		require.NoError(s, err)
		ids = append(ids, key.ID)
	}
	return ids
}

func evaluatorRow(s *harness, name domain.Name) *projections.Row[domain.Evaluator] {
	row, ok := s.world.View().Evaluators.Get(name)
	require.True(s, ok)
	return row
}
