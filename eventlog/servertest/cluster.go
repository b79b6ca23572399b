package servertest

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"anneal/eventlog/natsserver"
)

const clusterStart = 30 * time.Second

// StartCluster runs three NATS servers with the configuration in the file at path,
// compose/nats.conf, until the test ends. The servers do not sync to disk, and do not tell clients
// about one another. The returned options connect to the first one.
func StartCluster(t *testing.T, path string) natsserver.ConnectOptions {
	t.Helper()
	seed, public, err := natsserver.NewIssuer()
	require.NoError(t, err)
	const password = "0123456789abcdef"
	ports := freePorts(t, 3)
	var routes []string
	for _, port := range ports {
		routes = append(routes, fmt.Sprintf("nats://route:%s@127.0.0.1:%d", password, port))
	}
	t.Setenv("ANNEAL_NATS_ROUTES", "["+strings.Join(routes, ", ")+"]")
	t.Setenv("ANNEAL_NATS_PASSWORD", password)
	t.Setenv("ANNEAL_NATS_READER_PASSWORD", "reader-"+password)
	t.Setenv("ANNEAL_NATS_ISSUER", public)
	var servers []*server.Server
	for i, port := range ports {
		t.Setenv("ANNEAL_NATS_NAME", fmt.Sprintf("nats-%d", i+1))
		o, err := server.ProcessConfigFile(path)
		require.NoError(t, err)
		o.Host, o.Port, o.HTTPPort = "127.0.0.1", server.RANDOM_PORT, 0
		o.Cluster.Host, o.Cluster.Port, o.Cluster.NoAdvertise = "127.0.0.1", port, true
		o.StoreDir, o.SyncAlways, o.NoSigs, o.NoLog = t.TempDir(), false, true, true
		s, err := server.NewServer(o)
		require.NoError(t, err)
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		servers = append(servers, s)
	}
	for _, s := range servers {
		require.True(t, s.ReadyForConnections(clusterStart))
	}
	return natsserver.ConnectOptions{URL: servers[0].ClientURL(), Password: password, IssuerSeed: seed, Replicas: 3}
}

// freePorts returns n free ports. They are below the ports that the kernel assigns to outgoing
// connections, so that they stay free until a server listens there.
func freePorts(t testing.TB, n int) (ports []int) {
	t.Helper()
	for port := 22_000 + os.Getpid()%4_000; len(ports) < n; port++ {
		require.Less(t, port, 27_000, "no free ports")
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			require.NoError(t, l.Close())
			ports = append(ports, port)
		}
	}
	return ports
}
