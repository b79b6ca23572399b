package server

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDirectDomain(t *testing.T) {
	for _, line := range []struct{ domain, public, says string }{
		{"", "https://api.example.com", ""},
		{"direct.example.com", "https://api.example.com", ""},
		{"example.com", "https://example.com:8443", ""},
		{"localhost", "", ""},
		{"example.com", "https://API.example.com", "choose a domain without other hosts"},
		{"https://example.com", "", "must be a domain"},
		{"example.com:80", "", "must be a domain"},
		{"Example.com", "", "in lower case"},
		{".example.com", "", "must be a domain"},
	} {
		flags := DefaultFlags()
		flags.directDomain, flags.publicURL = line.domain, line.public
		err := flags.Check()
		if line.says == "" {
			require.NoError(t, err, line.domain)
			continue
		}
		require.ErrorContains(t, err, line.says)
	}
}

// TestAllInvalidFlagsAreReported checks that all invalid flags are reported together, in a fixed
// order.
func TestAllInvalidFlagsAreReported(t *testing.T) {
	flags := DefaultFlags()
	flags.lostAfter, flags.maxUpload, flags.natsReplicas, flags.currency, flags.Node.Pool = -1, 0, 2, "euros", "swimming"
	require.EqualError(t, flags.Check(), `5 flags are invalid:
  --lost-after -1ns must be positive
  --max-upload 0 must be positive
  --nats-replicas requires --nats-url, the cluster that stores the log
  --currency "euros" must be three capital letters, such as EUR
  --pool: must be training or inference`)
}
