package request

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDerivedIDsArePersistent checks that NewUUID derives the same ID from a seed as earlier
// versions, because a client may repeat a request after an upgrade of the server.
func TestDerivedIDsArePersistent(t *testing.T) {
	c := &Call{Core: &Core{Pepper: []byte("pepper")}, seed: []byte("seed")}
	require.Equal(t, "526a0817-25ae-4f92-8b60-5ad3bb1fe76f", c.NewUUID("ID"))
}
