package server

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheDomainOfDirectRoutes(t *testing.T) {
	for _, line := range []struct{ domain, public, says string }{
		{"", "https://api.example.com", ""},
		{"direct.example.com", "https://api.example.com", ""},
		{"example.com", "https://example.com:8443", ""},
		{"localhost", "", ""},
		{"example.com", "https://API.example.com", "choose a domain of which no other host is part"},
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

// Whatever is wrong with a server's flags is told at once, in one order.
func TestAllWrongFlagsAreTold(t *testing.T) {
	flags := DefaultFlags()
	flags.lostAfter, flags.maxUpload, flags.natsReplicas, flags.currency, flags.Node.Pool = -1, 0, 2, "euros", "swimming"
	require.EqualError(t, flags.Check(), `5 flags are wrong:
  --lost-after must be positive
  --max-upload must be positive
  --nats-replicas counts the servers of a cluster: name it by --nats-url, or leave it out
  --currency "euros" must be three capital letters, such as EUR
  --pool: must be training or inference`)
}
