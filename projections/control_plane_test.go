package projections

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestControlPlaneDoesNotAffectTheWorld checks that events fold to the same world whatever control
// plane they name, and also if they name none, like events of earlier versions.
func TestControlPlaneDoesNotAffectTheWorld(t *testing.T) {
	log, unnamed := threeToys(t)
	named := toyWorld()
	for e, err := range log.Read(t.Context(), everything, 0) {
		require.NoError(t, err)
		require.Empty(t, e.ControlPlane)
		e.ControlPlane = "cp-1"
		require.NoError(t, named.Apply(e))
	}
	require.Equal(t, digestOf(t, unnamed), digestOf(t, named))
}
