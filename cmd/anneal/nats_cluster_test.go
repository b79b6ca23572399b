package main_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"anneal/eventlog/natsserver"
)

// A natsCluster is three NATS servers with compose/nats.conf, in the process of the test.
type natsCluster struct {
	t       testing.TB
	options []*server.Options
	servers []*server.Server // nil for a server that is stopped
	env     []string         // environment of control planes
}

func startNATS(t *testing.T) *natsCluster {
	t.Helper()
	var peers []string
	for range 3 {
		peers = append(peers, freePort(t))
	}
	servers, planes := natsEnvironment(t, peers)
	c := &natsCluster{t: t, servers: make([]*server.Server, len(peers)), env: planes}
	for _, pair := range servers {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
	for i := range c.servers {
		t.Setenv("ANNEAL_NATS_NAME", fmt.Sprintf("nats-%d", i+1))
		o, err := server.ProcessConfigFile(filepath.Join("..", "..", "compose", "nats.conf"))
		require.NoError(t, err)
		o.Host, o.Port = splitAddress(t, freePort(t))
		o.Cluster.Host, o.Cluster.Port = splitAddress(t, peers[i])
		o.HTTPPort, o.StoreDir, o.SyncAlways = 0, t.TempDir(), false // the test simulates no power failure
		o.NoSigs, o.NoLog = true, true
		c.options = append(c.options, o)
		c.start(i)
	}
	for _, s := range c.servers {
		require.True(t, s.ReadyForConnections(patience))
	}
	t.Cleanup(func() {
		for i := range c.servers {
			c.stop(i)
		}
	})
	return c
}

// natsEnvironment returns the variables that compose/nats.conf needs, except the server's name, and
// those of control planes. peers are the addresses at which the servers accept one another.
func natsEnvironment(t testing.TB, peers []string) (servers, planes []string) {
	t.Helper()
	seed, public, err := natsserver.NewIssuer()
	require.NoError(t, err)
	const password = "0123456789abcdef"
	var routes []string
	for _, peer := range peers {
		routes = append(routes, fmt.Sprintf("nats://route:%s@%s", password, peer))
	}
	passwords := []string{"ANNEAL_NATS_PASSWORD=" + password, "ANNEAL_NATS_READER_PASSWORD=reader-" + password}
	return append([]string{"ANNEAL_NATS_ROUTES=[" + strings.Join(routes, ", ") + "]", "ANNEAL_NATS_ISSUER=" + public},
		passwords...), append([]string{"ANNEAL_NATS_ISSUER_SEED=" + seed}, passwords...)
}

// start starts a server (again) with its directory.
func (c *natsCluster) start(i int) {
	c.t.Helper()
	s, err := server.NewServer(c.options[i].Clone())
	require.NoError(c.t, err)
	s.Start()
	c.servers[i] = s
}

func (c *natsCluster) stop(i int) {
	if c.servers[i] != nil {
		c.servers[i].Shutdown()
		c.servers[i].WaitForShutdown()
		c.servers[i] = nil
	}
}

// url returns the URL of one server, from which clients learn those of the others.
func (c *natsCluster) url(i int) string {
	return fmt.Sprintf("nats://127.0.0.1:%d", c.options[i].Port)
}

// serve starts a control plane whose log is stored in the cluster.
func (c *natsCluster) serve(dir string, args ...string) *plane {
	c.t.Helper()
	s := c.plane(dir, args...)
	s.start()
	return s
}

// plane returns a control plane whose log is stored in the cluster, without starting it.
func (c *natsCluster) plane(dir string, args ...string) *plane {
	return &plane{t: c.t, dir: dir, args: append([]string{"--nats-url", c.url(0)}, args...), env: c.env,
		log: logFor(c.t, "anneal serve")}
}

func splitAddress(t testing.TB, address string) (host string, port int) {
	_, err := fmt.Sscanf(strings.ReplaceAll(address, ":", " "), "%s %d", &host, &port)
	require.NoError(t, err)
	return host, port
}
