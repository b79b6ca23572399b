package main_test

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// A balancer is a load balancer that sends requests in turn to the servers whose /readyz responds
// with 200, and repeats none. An error of a request fails the test, unless faults are expected.
type balancer struct {
	t       testing.TB
	faults  bool
	servers []*url.URL
	ready   []atomic.Bool
	next    atomic.Int64
	proxy   *httputil.ReverseProxy
	checks  http.Client
}

// balance starts a balancer and returns it with its address.
func balance(t *testing.T, addresses ...string) (*balancer, string) {
	return balanceAt(t, "127.0.0.1:0", false, addresses...)
}

// balanceAt is balance with the address of the balancer, and whether faults are expected.
func balanceAt(t *testing.T, listen string, faults bool, addresses ...string) (*balancer, string) {
	b := &balancer{t: t, faults: faults, ready: make([]atomic.Bool, len(addresses))}
	for _, address := range addresses {
		b.servers = append(b.servers, &url.URL{Scheme: "http", Host: address})
	}
	// Other tests close the idle connections of http.DefaultTransport.
	requests := http.DefaultTransport.(*http.Transport).Clone()
	b.checks.Transport = http.DefaultTransport.(*http.Transport).Clone()
	if faults {
		b.checks.Timeout = time.Second // a server that hangs or is unreachable is not ready
	}
	b.proxy = &httputil.ReverseProxy{FlushInterval: -1, Transport: requests,
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(b.choose()) },
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil && !faults { // the client waits for the response
				assert.NoError(t, err, "%s %s", r.Method, r.URL)
			}
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
	listener, err := net.Listen("tcp", listen)
	require.NoError(t, err)
	web := &httptest.Server{Listener: listener, Config: &http.Server{Handler: b.proxy}}
	web.Start()
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
	first := int(b.next.Add(1))
	for n := range b.servers {
		if i := (first + n) % len(b.servers); b.ready[i].Load() {
			return b.servers[i]
		}
	}
	if !b.faults {
		assert.Fail(b.t, "no server is ready")
	}
	return b.servers[first%len(b.servers)]
}

// A pair is two control planes behind a load balancer, with shared files, and a worker that serves
// deployment d.
type pair struct {
	t        *testing.T
	cluster  *natsCluster
	planes   []*plane
	balancer *balancer
	user     caller // sends its requests to the balancer
	token    string // join token for more workers
	files    string // directory of the shared files

	addresses []string
}

// direct returns a user that sends its requests to one control plane.
func (p *pair) direct(i int) caller {
	user := p.user
	user.address = "http://" + p.addresses[i]
	return user
}

// startPair starts a pair whose control planes and worker run a program, "" for the tested one.
func startPair(t *testing.T, program string) (*pair, *process) {
	t.Helper()
	p := &pair{t: t, cluster: startNATS(t), files: t.TempDir()}
	shared := "file://" + filepath.ToSlash(p.files)
	addresses, names := []string{freePort(t), freePort(t)}, []string{"", "second"}
	balancer, public := balance(t, addresses...)
	p.balancer = balancer
	for i, address := range addresses {
		one := p.cluster.plane(t.TempDir(), "--listen", address, "--public-url", public, "--blobs", shared, "--lame-duck",
			"2s", "--worker=false", "--name", names[i])
		one.program = program
		if i > 0 {
			p.planes[0].join(one.dir)
		}
		one.start()
		p.planes = append(p.planes, one)
	}
	p.token = p.planes[0].run("node", "token", "--data", p.planes[0].dir).ok(t)
	worker := p.work(program, "w")
	p.planes[0].joined() // the first deployment asks for the devices of the nodes that have registered
	p.addresses, p.user = addresses, p.planes[0].user()
	p.user.must(http.MethodPost, "/deployments?deploymentId=d", object{"baseModel": baseModel, "minReplicaCount": 1})
	for i, address := range addresses { // a control plane may be behind the other one
		eventually(t, "the deployment is ready at "+address, func() bool {
			status, found, err := p.direct(i).do(http.MethodGet, "/deployments/d", nil)
			return err == nil && status == http.StatusOK && found["state"] == "READY"
		})
	}
	return p, worker
}

// work starts a worker that runs a program, and waits until it has joined.
func (p *pair) work(program, id string) *process {
	p.t.Helper()
	token := filepath.Join(p.t.TempDir(), "node.token")
	require.NoError(p.t, os.WriteFile(token, []byte(p.token), 0o600))
	worker := launchProgram(p.t, program, logFor(p.t, "anneal work "+id), nil, "work", "--join", p.cluster.url(0),
		"--token-file", token, "--node-id", id, "--data", p.t.TempDir())
	worker.waitForLine("node " + id + " joined ")
	return worker
}

// pairLoad is a load of reads, writes and completions, of which no request may fail.
type pairLoad struct {
	*completionLoad
	t      *testing.T
	stop   atomic.Bool
	others sync.WaitGroup
	sent   atomic.Int64
}

func (p *pair) load() *pairLoad {
	l := &pairLoad{completionLoad: loadCompletions(p.user, "d", 2), t: p.t}
	for client := range 2 {
		l.others.Go(func() {
			for n := 0; !l.stop.Load() && !p.t.Failed(); n++ {
				status, _ := p.user.status(http.MethodPost, "/datasets", object{"datasetId": fmt.Sprintf("d-%d-%d", client, n),
					"dataset": object{}})
				assert.Equal(p.t, http.StatusOK, status)
				status, _ = p.user.status(http.MethodGet, "/deployments/d", nil)
				assert.Equal(p.t, http.StatusOK, status)
				l.sent.Add(2)
			}
		})
	}
	p.t.Cleanup(l.end)
	return l
}

// some waits until more requests of each kind have been served.
func (l *pairLoad) some() {
	l.t.Helper()
	want := l.sent.Load() + 20
	eventually(l.t, "more requests are served", func() bool { return l.sent.Load() >= want || l.t.Failed() })
	l.more(5)
}

func (l *pairLoad) end() {
	l.stop.Store(true)
	l.others.Wait()
	l.completionLoad.end()
}

// learnFromOneAnother waits until one control plane predicts that a replica has cached a prompt that
// only the other one has sent to it. Each attempt has a prompt of its own. A block of a prompt exceeds
// the context length of the base model, so the replica refuses the requests after they are routed.
func (p *pair) learnFromOneAnother() {
	p.t.Helper()
	eventually(p.t, "a control plane knows a prompt that the other one sent", func() bool {
		route, prompt := "", rand.Text()+strings.Repeat(" the", 600)
		for i := range p.planes {
			res, err := p.direct(i).send(http.MethodPost, "//inference/v1/completions",
				object{"model": "accounts/default/deployments/d", "prompt": prompt, "max_tokens": 1})
			require.NoError(p.t, err)
			require.NoError(p.t, res.Body.Close())
			route = res.Header.Get("anneal-route")
			<-time.After(100 * time.Millisecond) // two intervals of notes
		}
		return strings.Contains(route, "cached-tokens=") && !strings.Contains(route, "; cached-tokens=0;")
	})
}

// TestRollingRestart restarts two control planes behind a load balancer, one after the other, under
// a load of reads, writes and completions: no request fails.
func TestRollingRestart(t *testing.T) {
	p, worker := startPair(t, "")
	p.learnFromOneAnother()
	load := p.load()
	load.some()
	for _, i := range []int{1, 0, 1} {
		require.Zero(t, p.planes[i].end())
		load.some()
		p.planes[i].start()
		eventually(t, "the balancer sends requests to the control plane", p.balancer.ready[i].Load)
		load.some()
	}
	load.end()
	require.Zero(t, load.cut.Load(), "streams in progress end before the server does")
	namesItsControlPlanes(t, p.planes[0])
	require.Zero(t, worker.end())
	for _, s := range p.planes {
		require.Zero(t, s.end())
	}
}

// TestRollingUpgrade upgrades two control planes and then the worker from an earlier release, the
// program ANNEAL_UPGRADE_FROM, under the load of TestRollingRestart and while a job trains: no request
// fails, and the job ends once.
func TestRollingUpgrade(t *testing.T) {
	earlier := os.Getenv("ANNEAL_UPGRADE_FROM")
	if earlier == "" {
		t.Skip("ANNEAL_UPGRADE_FROM names no program of an earlier release: run `make upgrade`")
	}
	p, worker := startPair(t, earlier)
	p.user.dataset("codes", 60)
	p.user.job("codes", "codes", 4)
	load := p.load()
	load.some()
	for _, i := range []int{1, 0} {
		require.Zero(t, p.planes[i].end())
		load.some()
		p.planes[i].program = ""
		p.planes[i].start()
		eventually(t, "the balancer sends requests to the control plane", p.balancer.ready[i].Load)
		load.some()
	}
	next := p.work("", "next")
	p.planes[0].run("node", "drain", "w", "--data", p.planes[0].dir).ok(t)
	eventually(t, "the node is drained", func() bool {
		return strings.Contains(p.planes[0].run("node", "get", "w", "--data", p.planes[0].dir, "-o", "json").ok(t), "DRAINED")
	})
	require.Zero(t, worker.end())
	load.some()
	load.end()
	require.Zero(t, load.cut.Load(), "streams in progress end before the server does")
	p.user.http.Transport = p.planes[0].watched() // of the new program
	job := p.user.until("/supervisedFineTuningJobs/codes", "state", "JOB_STATE_COMPLETED")
	require.Equal(t, "OK", at(job, "status.code"))
	ends := 0
	for _, e := range p.user.list("/events", "events") {
		if e["type"] == "supervisedFineTuningJob.completed.v1" {
			ends++
		}
	}
	require.Equal(t, 1, ends)
	require.Zero(t, next.end())
	for _, s := range p.planes {
		require.Zero(t, s.end())
	}
}

// namesItsControlPlanes checks that events name the control planes that decided them: the one with
// --name second, and s by the ID in its data directory.
func namesItsControlPlanes(t *testing.T, s *plane) {
	id := testutil.ReadFile(t, filepath.Join(s.dir, "control-plane"))
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
