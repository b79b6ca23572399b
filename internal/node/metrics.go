package node

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"

	"anneal/disk"
	"anneal/internal/metrics"
	"anneal/internal/usage"
	"anneal/workers/agent"
)

// MetricsFlags configure the metrics of an agent in its own process. The local worker of a server
// has none: its server exports metrics.
type MetricsFlags struct{ address, keyFile string }

// Add adds the flags to f.
func (m *MetricsFlags) Add(f *pflag.FlagSet) {
	f.StringVar(&m.address, "metrics", "", "`ADDRESS` at which GET /metrics returns the metrics of this agent for "+
		"Prometheus, such as :9464 for 127.0.0.1:9464 (default: no metrics)")
	f.StringVar(&m.keyFile, "metrics-key-file", "", "file with a key that GET /metrics requires as a bearer token; "+
		"required unless --metrics is a loopback address")
}

// Check returns an error if a flag is invalid.
func (m *MetricsFlags) Check() error {
	switch host, _, err := net.SplitHostPort(m.address); {
	case m.address == "" && m.keyFile != "":
		return usage.Errorf("--metrics-key-file requires --metrics")
	case m.address == "":
		return nil
	case err != nil:
		return usage.Errorf("--metrics %q must be HOST:PORT, or :PORT for 127.0.0.1", m.address)
	case m.keyFile == "" && !strings.HasPrefix(m.address, ":") && host != "localhost" && !net.ParseIP(host).IsLoopback():
		return usage.Errorf("--metrics %s is not a loopback address, and the metrics contain names of accounts and "+
			"deployments: give --metrics-key-file, or use 127.0.0.1", m.address)
	}
	return nil
}

// minKey is the minimum length of the key of --metrics-key-file.
const minKey = 16

// serve serves the metrics of an agent until ctx is done. It returns once it listens. dir is the
// directory of the agent.
func (m *MetricsFlags) serve(ctx context.Context, a *agent.Agent, dir string, logger *slog.Logger) error {
	if m == nil || m.address == "" {
		return nil
	}
	var key string
	if m.keyFile != "" {
		text, err := os.ReadFile(m.keyFile)
		if err != nil {
			return usage.Errorf("--metrics-key-file: %w", err)
		}
		if key = strings.TrimSpace(string(text)); len(key) < minKey {
			return usage.Errorf("--metrics-key-file %s must have a key of at least %d characters", m.keyFile, minKey)
		}
	}
	address := m.address
	if strings.HasPrefix(address, ":") {
		address = "127.0.0.1" + address
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("--metrics: cannot listen on %s: %w", address, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil { // disk.On needs the directory to find its file system
		return err
	}
	registry := prometheus.NewRegistry()
	metrics.Process(registry, disk.On(dir), a.Connected)
	a.Register(registry)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", requireKey(key, promhttp.HandlerFor(registry,
		promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4})))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		WriteTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug)}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			logger.Error("the metrics of the agent are no longer served", "error", err)
		}
	}()
	logger.Info("serving metrics", "url", "http://"+listener.Addr().String()+"/metrics")
	return nil
}

// requireKey returns a handler that serves only requests with a key as bearer token; all if the key
// is "".
func requireKey(key string, next http.Handler) http.Handler {
	if key == "" {
		return next
	}
	want := sha256.Sum256([]byte("Bearer " + key))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		if subtle.ConstantTimeCompare(got[:], want[:]) == 0 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "the metrics of this agent require the key of --metrics-key-file as a bearer token",
				http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
