package main_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"anneal/internal/cli"
	"anneal/internal/testutil"
)

// TestComposeCommands checks that the commands in compose.yaml exist, with their flags, and that its
// volumes and dependencies are defined.
func TestComposeCommands(t *testing.T) {
	content := testutil.ReadFile(t, filepath.Join("..", "..", "compose.yaml"))
	var file struct {
		Services map[string]struct {
			Command   []string
			Volumes   []string
			DependsOn []string `yaml:"depends_on"`
			Build     any
		}
		Volumes map[string]any
	}
	require.NoError(t, yaml.Unmarshal(content, &file))
	commands := map[string]int{}
	for name, service := range file.Services {
		for _, dependency := range service.DependsOn {
			require.Contains(t, file.Services, dependency, name)
		}
		for _, volume := range service.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if path, isFile := strings.CutPrefix(source, "./"); isFile {
				require.FileExists(t, filepath.Join("..", "..", path), name)
			} else {
				require.Contains(t, file.Volumes, source, name)
			}
		}
		if service.Build == nil {
			continue
		}
		command, rest, err := cli.NewRoot("test").Find(service.Command)
		require.NoError(t, err, name)
		require.NoError(t, command.ParseFlags(rest), name)
		require.Empty(t, command.Flags().Args(), name)
		commands[command.Name()]++
	}
	require.Equal(t, map[string]int{"serve": 2, "work": 2}, commands)
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "#"))
		for _, before := range []string{"go run ./cmd/anneal ", "docker compose exec control-1 anneal ",
			"docker compose run --rm control-2 "} {
			if found, ok := strings.CutPrefix(line, before); ok {
				args := strings.Fields(strings.TrimSuffix(found, " > .env"))
				command, rest, err := cli.NewRoot("test").Find(args)
				require.NoError(t, err, line)
				require.NoError(t, command.ParseFlags(rest), line)
				require.NoError(t, command.Args(command, command.Flags().Args()), line)
			}
		}
	}
}

// TestHAProxy checks that HAProxy with compose/haproxy.cfg sends requests only to control planes that
// are ready, and does not cut a stream of one that is not ready any more.
func TestHAProxy(t *testing.T) {
	program, err := exec.LookPath("haproxy")
	if err != nil {
		t.Skip("haproxy is not installed")
	}
	var ready [2]atomic.Bool
	var addresses [2]string
	release := make(chan struct{})
	for i := range ready {
		ready[i].Store(true)
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/readyz":
				if !ready[i].Load() {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			case "/stream":
				fmt.Fprint(w, i)
				w.(http.Flusher).Flush()
				<-release
				fmt.Fprint(w, " end")
			default:
				fmt.Fprint(w, i)
			}
		}))
		t.Cleanup(web.Close)
		addresses[i] = web.Listener.Addr().String()
	}
	listen := freePort(t)
	log := logFor(t, "haproxy")
	cmd := exec.Command(program, "-db", "-f", filepath.Join("..", "..", "compose", "haproxy.cfg"))
	cmd.Env = []string{"ANNEAL_LISTEN=" + listen, "ANNEAL_CONTROL_1=" + addresses[0], "ANNEAL_CONTROL_2=" + addresses[1]}
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	client := &http.Client{Timeout: patience, Transport: &http.Transport{}}
	get := func() string {
		res, err := client.Get("http://" + listen + "/")
		if err != nil {
			return ""
		}
		defer res.Body.Close()
		body := testutil.ReadAll(t, res.Body)
		require.Equal(t, http.StatusOK, res.StatusCode, "a request fails: %s", body)
		return string(body)
	}
	all := func(want string) func() bool {
		return func() bool {
			for range 10 {
				if got := get(); !strings.Contains(want, got) || got == "" {
					return false
				}
			}
			return true
		}
	}
	eventually(t, "HAProxy listens", func() bool { return get() != "" })
	stream, err := client.Get("http://" + listen + "/stream")
	require.NoError(t, err)
	defer stream.Body.Close()
	first := make([]byte, 1)
	_, err = io.ReadFull(stream.Body, first)
	require.NoError(t, err)
	gone := int(first[0] - '0')
	ready[gone].Store(false)
	eventually(t, "only the other control plane gets requests", all(fmt.Sprint(1-gone)))
	close(release)
	rest := testutil.ReadAll(t, stream.Body)
	require.Equal(t, " end", string(rest))
	ready[gone].Store(true)
	eventually(t, "both get requests", func() bool { return get() == fmt.Sprint(gone) })
}
