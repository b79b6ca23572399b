package main_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// status returns the status of a response, and its header anneal-stale.
func (c caller) status(method, path string, body any) (status int, stale string) {
	c.t.Helper()
	res, err := c.send(method, path, body)
	require.NoError(c.t, err)
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	require.NoError(c.t, err)
	return res.StatusCode, res.Header.Get("anneal-stale")
}

// TestReadsAndCompletionsContinueWithoutQuorum stops two of three NATS servers: the control plane
// stays ready to read and infer, and is ready to write again when the quorum is back.
func TestReadsAndCompletionsContinueWithoutQuorum(t *testing.T) {
	c := startNATS(t)
	s := c.serve(t.TempDir(), "--lame-duck", "0s")
	s.joined()
	user, anyone := s.user(), s.as("", "")
	user.must(http.MethodPost, "/deployments?deploymentId=d", object{"baseModel": baseModel, "minReplicaCount": 1})
	user.until("/deployments/d", "state", "READY")
	is := func(path string, want int) func() bool {
		return func() bool {
			status, _ := anyone.status(http.MethodGet, path, nil)
			return status == want
		}
	}
	require.True(t, is("//readyz", 200)())
	require.True(t, is("//readyz/write", 200)())

	c.stop(1)
	c.stop(2)
	var stop atomic.Bool
	var checks sync.WaitGroup
	defer func() { stop.Store(true); checks.Wait() }()
	checks.Go(func() {
		for !stop.Load() && !t.Failed() {
			assert.True(t, is("//readyz", 200)(), "the server stays ready")
			status, answer, err := user.complete("accounts/default/deployments/d", "hello")
			assert.NoError(t, err)
			assert.Equal(t, http.StatusOK, status, "%v", answer)
		}
	})
	eventually(t, "the server is not ready to write", is("//readyz/write", 503))
	eventually(t, "reads are marked as stale", func() bool {
		status, stale := user.status(http.MethodGet, "/deployments/d", nil)
		require.Equal(t, http.StatusOK, status)
		seconds, _ := strconv.Atoi(stale)
		return seconds > 0
	})
	status, _ := user.status(http.MethodPost, "/datasets", object{"datasetId": "late", "dataset": object{}})
	require.GreaterOrEqual(t, status, 500, "nothing can be recorded")

	c.start(1)
	eventually(t, "the server is ready to write", is("//readyz/write", 200))
	eventually(t, "reads are not stale", func() bool {
		_, stale := user.status(http.MethodGet, "/deployments/d", nil)
		return stale == ""
	})
	stop.Store(true)
	checks.Wait()
	user.must(http.MethodPost, "/datasets", object{"datasetId": "after", "dataset": object{}})
	require.Zero(t, s.end())
}

// TestServicesWaitForTheQuorum stops two of three NATS servers as soon as the control plane listens,
// while its services still subscribe. No service stops the control plane, and all of them work when
// the quorum is back.
func TestServicesWaitForTheQuorum(t *testing.T) {
	c := startNATS(t)
	s := c.serve(t.TempDir(), "--lame-duck", "0s")
	c.stop(1)
	c.stop(2)
	user, anyone := s.user(), s.as("", "")
	eventually(t, "every request to the NATS servers has timed out", func() bool {
		_, stale := user.status(http.MethodGet, "/datasets", nil)
		seconds, _ := strconv.Atoi(stale)
		return seconds > 15
	})
	c.start(1)
	c.start(2)
	eventually(t, "the server is ready to write", func() bool {
		status, _ := anyone.status(http.MethodGet, "//readyz/write", nil)
		return status == http.StatusOK
	})
	s.joined()
	user.must(http.MethodPost, "/datasets", object{"datasetId": "after", "dataset": object{}})
	uploaded, answer, err := user.upload("after", exampleRows(t, 3))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, uploaded, "%v", answer)
	user.until("/datasets/after", "state", "READY")
	require.Zero(t, s.end())
}

// A balancer is a load balancer that sends requests in turn to the servers whose /readyz responds
// with 200, and repeats none.
type balancer struct {
	t       testing.TB
	servers []*url.URL
	ready   []atomic.Bool
	next    atomic.Int64
	proxy   *httputil.ReverseProxy
	checks  http.Client
}

// balance starts a balancer and returns it with its address.
func balance(t *testing.T, addresses ...string) (*balancer, string) {
	b := &balancer{t: t, ready: make([]atomic.Bool, len(addresses))}
	for _, address := range addresses {
		b.servers = append(b.servers, &url.URL{Scheme: "http", Host: address})
	}
	// Other tests close the idle connections of http.DefaultTransport.
	requests := http.DefaultTransport.(*http.Transport).Clone()
	b.checks.Transport = http.DefaultTransport.(*http.Transport).Clone()
	b.proxy = &httputil.ReverseProxy{FlushInterval: -1, Transport: requests,
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(b.choose()) },
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			assert.NoError(t, err, "%s %s", r.Method, r.URL)
			w.WriteHeader(http.StatusBadGateway)
		}}
	for i := range b.servers {
		b.check(i)
	}
	stop, checks := make(chan struct{}), sync.WaitGroup{}
	for i := range b.servers {
		checks.Go(func() {
			ticker := time.NewTicker(50 * time.Millisecond)
			defer ticker.Stop()
			for {
				select {
				case <-ticker.C:
					b.check(i)
				case <-stop:
					return
				}
			}
		})
	}
	web := httptest.NewServer(b.proxy)
	t.Cleanup(func() {
		web.Close()
		close(stop)
		checks.Wait()
		requests.CloseIdleConnections()
		b.checks.CloseIdleConnections()
	})
	return b, web.URL
}

func (b *balancer) check(i int) {
	res, err := b.checks.Get(b.servers[i].String() + "/readyz")
	if err == nil {
		_ = res.Body.Close()
	}
	b.ready[i].Store(err == nil && res.StatusCode == http.StatusOK)
}

func (b *balancer) choose() *url.URL {
	for range b.servers {
		if i := int(b.next.Add(1)) % len(b.servers); b.ready[i].Load() {
			return b.servers[i]
		}
	}
	assert.Fail(b.t, "no server is ready")
	return b.servers[0]
}

// TestRollingRestart restarts two control planes behind a load balancer, one after the other, under
// a load of reads, writes and completions: no request fails.
func TestRollingRestart(t *testing.T) {
	c := startNATS(t)
	shared := "file://" + filepath.ToSlash(t.TempDir())
	addresses := []string{freePort(t), freePort(t)}
	dirs, names := []string{t.TempDir(), t.TempDir()}, []string{"", "second"}
	balancer, public := balance(t, addresses...)
	args := func(i int) []string {
		return []string{"--listen", addresses[i], "--public-url", public, "--blobs", shared, "--lame-duck", "2s",
			"--worker=false", "--name", names[i]}
	}
	planes := []*plane{c.serve(dirs[0], args(0)...)}
	planes[0].join(dirs[1])
	planes = append(planes, c.serve(dirs[1], args(1)...))
	token := filepath.Join(t.TempDir(), "node.token")
	require.NoError(t, os.WriteFile(token, []byte(planes[0].run("node", "token", "--data", dirs[0]).ok(t)), 0o600))
	worker := launch(t, logFor(t, "anneal work"), "work", "--join", c.url(0), "--token-file", token, "--node-id", "w",
		"--data", t.TempDir())
	worker.says("node w joined ")
	planes[0].joined()
	user := planes[0].user()
	user.must(http.MethodPost, "/deployments?deploymentId=d", object{"baseModel": baseModel, "minReplicaCount": 1})
	for _, address := range addresses { // a control plane may be behind the other one
		direct := user
		direct.address = "http://" + address
		eventually(t, "the deployment is ready at "+address, func() bool {
			status, found, err := direct.ask(http.MethodGet, "/deployments/d", nil)
			return err == nil && status == http.StatusOK && found["state"] == "READY"
		})
	}

	load := loadCompletions(user, "d", 2)
	var stop atomic.Bool
	var others sync.WaitGroup
	var sent atomic.Int64
	defer func() { stop.Store(true); others.Wait(); load.end() }()
	for client := range 2 {
		others.Go(func() {
			for n := 0; !stop.Load() && !t.Failed(); n++ {
				status, _ := user.status(http.MethodPost, "/datasets", object{"datasetId": fmt.Sprintf("d-%d-%d", client, n),
					"dataset": object{}})
				assert.Equal(t, http.StatusOK, status)
				status, _ = user.status(http.MethodGet, "/deployments/d", nil)
				assert.Equal(t, http.StatusOK, status)
				sent.Add(2)
			}
		})
	}
	more := func() {
		want := sent.Load() + 20
		eventually(t, "more requests are served", func() bool { return sent.Load() >= want || t.Failed() })
		load.more(5)
	}
	more()
	for _, i := range []int{1, 0, 1} {
		require.Zero(t, planes[i].end())
		more()
		planes[i].start()
		eventually(t, "the balancer sends requests to the control plane", balancer.ready[i].Load)
		more()
	}
	stop.Store(true)
	others.Wait()
	load.end()
	require.Zero(t, load.cut.Load(), "streams in progress end before the server does")
	namesItsControlPlanes(t, planes[0])
	require.Zero(t, worker.end())
	for _, s := range planes {
		require.Zero(t, s.end())
	}
}

// namesItsControlPlanes checks that events name the control planes that decided them: the one with
// --name second, and s by the ID in its data directory.
func namesItsControlPlanes(t *testing.T, s *plane) {
	id, err := os.ReadFile(filepath.Join(s.dir, "control-plane"))
	require.NoError(t, err)
	deciders := map[any]int{}
	for _, e := range s.user().list("/events", "events") {
		deciders[e["controlplane"]]++
	}
	require.Len(t, deciders, 2, "%v", deciders)
	require.Positive(t, deciders["second"])
	require.Positive(t, deciders[strings.TrimSpace(string(id))])
	table := s.run("events", "--filter", `controlplane = "second"`).ok(t)
	require.Contains(t, table, "CONTROL PLANE")
	require.GreaterOrEqual(t, strings.Count(table, " second"), deciders["second"])
}
