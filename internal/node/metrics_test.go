package node

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"anneal/workers/agent"
)

func metricsFlags(t *testing.T, args ...string) *MetricsFlags {
	t.Helper()
	var flags MetricsFlags
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.Add(f)
	require.NoError(t, f.Parse(args))
	return &flags
}

// TestMetricsFlags checks that metrics with names are not served to other machines without a key.
func TestMetricsFlags(t *testing.T) {
	for _, valid := range [][]string{nil, {"--metrics=:9464"}, {"--metrics=127.0.0.1:9464"}, {"--metrics=[::1]:9464"},
		{"--metrics=localhost:0"}, {"--metrics=0.0.0.0:9464", "--metrics-key-file=key"}} {
		require.NoError(t, metricsFlags(t, valid...).Check(), valid)
	}
	for _, invalid := range [][]string{{"--metrics=0.0.0.0:9464"}, {"--metrics=gpu-1:9464"}, {"--metrics=9464"},
		{"--metrics=[]:9464"},
		{"--metrics-key-file=key"}} {
		require.Error(t, metricsFlags(t, invalid...).Check(), invalid)
	}
}

// TestMetricsOfAgentNeedTheirKey checks the access to the metrics of an agent.
func TestMetricsOfAgentNeedTheirKey(t *testing.T) {
	a, err := agent.New(agent.Options{Node: "n1", URL: "nats://127.0.0.1:1", Dir: t.TempDir(),
		Capacity: map[string]int{}})
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	file := filepath.Join(t.TempDir(), "key")
	serve := func(text string) error {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return metricsFlags(t, "--metrics", address, "--metrics-key-file", file).serve(t.Context(), a,
			filepath.Join(t.TempDir(), "new"),
			slog.New(slog.DiscardHandler))
	}
	require.ErrorContains(t, serve("short\n"), "at least 16 characters")
	require.NoError(t, serve("a-key-of-prometheus\n"))
	get := func(path, key string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
		require.NoError(t, err)
		if key != "" {
			r.Header.Set("Authorization", "Bearer "+key)
		}
		res, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res.StatusCode, string(body)
	}
	for _, key := range []string{"", "another-key-of-prometheus"} {
		status, body := get("/metrics", key)
		require.Equal(t, http.StatusUnauthorized, status)
		require.NotContains(t, body, "anneal_agent_info")
	}
	status, body := get("/metrics", "a-key-of-prometheus")
	require.Equal(t, http.StatusOK, status)
	for _, name := range []string{"anneal_agent_info", "anneal_nats_connected 0", "anneal_disk_free_bytes ",
		"go_goroutines",
		"process_cpu_seconds_total"} {
		require.Contains(t, body, name)
	}
	status, _ = get("/debug/pprof/", "a-key-of-prometheus")
	require.Equal(t, http.StatusNotFound, status)
}
