package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProveShortNameWithoutAccount checks that a short name of a resource, on the server's machine and
// without a context, is rejected with what to do.
func TestProveShortNameWithoutAccount(t *testing.T) {
	p := prover{client: &client{}, subject: "deployments/codes"}
	_, err := p.creation(t.Context())
	require.ErrorContains(t, err, `"deployments/codes" needs an account: give the full name, `+
		`accounts/ACCOUNT/deployments/codes, or log in with 'anneal login'`)
}
