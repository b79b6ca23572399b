package natsserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/internal/testutil"
)

const configFile = "../../compose/nats.conf"

// startCluster starts a cluster of three NATS servers with compose/nats.conf. It returns the
// options to connect to the cluster, and the servers.
func startCluster(t *testing.T) (ConnectOptions, []*server.Server) {
	t.Helper()
	seed, public, err := NewIssuer()
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
	var urls []string
	for i, port := range ports {
		t.Setenv("ANNEAL_NATS_NAME", fmt.Sprintf("nats-%d", i+1))
		config, err := server.ProcessConfigFile(configFile)
		require.NoError(t, err)
		require.Len(t, config.Routes, 3)
		require.True(t, config.SyncAlways)
		require.EqualValues(t, eventlog.MaxEvent+64<<10, config.MaxPayload)
		config.Host, config.Port, config.HTTPPort = "127.0.0.1", server.RANDOM_PORT, 0
		config.Cluster.Host, config.Cluster.Port = "127.0.0.1", port
		config.StoreDir, config.SyncAlways = t.TempDir(), false // the test simulates no power failure
		config.NoSigs, config.NoLog = true, true
		s, err := server.NewServer(config)
		require.NoError(t, err)
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		servers = append(servers, s)
	}
	for _, s := range servers {
		require.True(t, s.ReadyForConnections(startTimeout))
		urls = append(urls, s.ClientURL())
	}
	return ConnectOptions{
		URL: strings.Join(urls, ","), Password: password, IssuerSeed: seed,
		VerifyNode: verifyTokenOf,
	}, servers
}

// freePorts returns n free ports. They are below the ports that the kernel assigns to outgoing
// connections, so that they stay free until the server starts.
func freePorts(t *testing.T, n int) (ports []int) {
	for port := 27_000 + os.Getpid()%4_000; len(ports) < n; port++ {
		require.Less(t, port, 32_000, "no free ports")
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			require.NoError(t, l.Close())
			ports = append(ports, port)
		}
	}
	return ports
}

func TestConfigurationsAgree(t *testing.T) {
	file := testutil.ReadFile(t, configFile)
	assert.Contains(t, string(file), Accounts, "the embedded server and the cluster have the same accounts")
}

func TestCluster(t *testing.T) {
	opts, servers := startCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*startTimeout)
	defer cancel()
	c, err := Connect(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	assert.Equal(t, 3, c.replicas, "as in a cluster for operators")
	unsynced, err := unsyncedServers(ctx, c.warden, serversSubject)
	require.NoError(t, err)
	assert.Equal(t, []string{"nats-1", "nats-2", "nats-3"}, unsynced, "which sync later, to make this test fast")

	t.Run("nodes and readers", func(t *testing.T) {
		agent := connect(t, opts.URL, agentOptions(t, "n1")...)
		require.NoError(t, agent.Flush())
		sessions, err := c.NodeSessions(t.Context())
		require.NoError(t, err)
		require.Len(t, sessions, 1, "on any server")
		require.Equal(t, "n1", sessions[0].Node)
		position := logtest.Append(t, c.Log(), logtest.Write("a", 0))
		reader := &Server{Connection: c, nats: servers[2], reader: "reader-" + opts.Password}
		nc := readerOf(t, reader, make(chan error, 16))
		mirror, err := eventlog.NewJetStream(nc)
		require.NoError(t, err)
		for e, err := range mirror.Follow(ctx, "", 0) {
			require.NoError(t, err)
			assert.Equal(t, position, e.Position)
			break
		}
	})
	js := jetstreamOf(t, c.Control())
	for _, promise := range logtest.Promises {
		t.Run(promise.Name, func(t *testing.T) {
			require.NoError(t, js.DeleteStream(ctx, eventlog.Stream))
			log, err := eventlog.OpenJetStream(ctx, c.Control(), eventlog.JetStreamOptions{Replicas: 3})
			require.NoError(t, err)
			promise.Test(t, log)
		})
	}
	t.Run("a leader that stops loses nothing", func(t *testing.T) { testLeaderStops(t, c, servers) })
}

func testLeaderStops(t *testing.T, c *Connection, servers []*server.Server) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*startTimeout)
	defer cancel()
	stream, err := jetstreamOf(t, c.Control()).Stream(ctx, eventlog.Stream)
	require.NoError(t, err)
	leader := stream.CachedInfo().Cluster.Leader
	log, err := eventlog.OpenJetStream(ctx, c.Control(), eventlog.JetStreamOptions{AckWait: time.Second})
	require.NoError(t, err)
	rows := logtest.Follow(t, log)
	const commands = 60
	stopped := make(chan struct{})
	for i := range commands {
		if i == commands/4 {
			for _, s := range servers {
				if s.Name() == leader {
					go func() { defer close(stopped); s.Shutdown(); s.WaitForShutdown() }()
				}
			}
		}
		request := eventlog.Request{Time: time.Now(), Command: fmt.Sprint("c", i)}
		for recorded := false; !recorded; {
			_, err := eventlog.Do(ctx, log, rows, request,
				domain.Intend(logtest.Counters, logtest.Name("survivor"), logtest.Add{N: 1}))
			recorded = err == nil
			if code := domain.CodeOf(err); code == domain.Unavailable || code == domain.Aborted {
				t.Logf("command %d: %v", i, err)
				continue
			}
			for errors.Is(err, eventlog.ErrUncertain) { // repeat the command: Do could not read whether its event was recorded
				t.Logf("command %d: %v", i, err)
				require.NoError(t, ctx.Err())
				var found eventlog.Change
				if found, err = eventlog.Recorded(ctx, log, rows, request.Command, logtest.Name("survivor")); err != nil {
					err = fmt.Errorf("%w: %v", eventlog.ErrUncertain, err)
				}
				recorded = found.Position() > 0
			}
			require.NoError(t, err)
		}
	}
	<-stopped
	seen := map[string]int{}
	for _, e := range logtest.Collect(t, log.Read(ctx, logtest.Name("survivor").Subject(), 0)) {
		seen[e.Command]++
	}
	assert.Len(t, seen, commands)
	for command, times := range seen {
		assert.Equal(t, 1, times, "%s is recorded once", command)
	}
}

func TestConnectReportsMissingOptions(t *testing.T) {
	seed, _, err := NewIssuer()
	require.NoError(t, err)
	s := start(t)
	tests := map[string]struct {
		opts ConnectOptions
		want string
	}{
		"no options": {ConnectOptions{}, "give its URL (--nats-url)"},
		"no server": {ConnectOptions{URL: "nats://127.0.0.1:1", Password: "p", IssuerSeed: seed},
			"cannot connect to NATS"},
		"an invalid password": {ConnectOptions{URL: s.URL(), Password: "canary", IssuerSeed: seed},
			"Authorization Violation"},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			_, err := Connect(t.Context(), test.opts)
			require.ErrorContains(t, err, test.want)
			assert.NotContains(t, err.Error(), "canary")
			assert.NotEqual(t, domain.Unknown, domain.CodeOf(err))
		})
	}
}
