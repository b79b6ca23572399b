package openapi_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/openapi"
)

// TestJoinedRejectsAKeyOfTwoTables checks that no table of descriptions replaces the entry of another
// table: the field of one type would get the description of a field of another type.
func TestJoinedRejectsAKeyOfTwoTables(t *testing.T) {
	hotLoad := map[string]string{"served": "Weights that replicas serve."}
	require.Equal(t, map[string]string{"served": hotLoad["served"], "folded": "Digest."},
		openapi.Joined(hotLoad, map[string]string{"folded": "Digest."}))
	require.PanicsWithValue(t, "openapi: two tables describe served", func() {
		openapi.Joined(hotLoad, map[string]string{"served": "Digest."})
	})
}
