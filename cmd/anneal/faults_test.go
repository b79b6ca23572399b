package main_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"anneal/internal/testutil"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A faultyCluster is three NATS servers, two control planes and four workers, each a process with
// its own network namespace. Its clients are in the test's namespace.
type faultyCluster struct {
	t        *testing.T
	network  *network
	env      []string // of control planes
	hosts    map[string]*host
	planes   []*plane
	balancer *balancer
	operator caller
	user     caller
	routed   *routed
}

const faultDevice = "VENDOR_A_L4_24GB"

func startFaultyCluster(t *testing.T) *faultyCluster {
	t.Helper()
	c := &faultyCluster{t: t, network: newNetwork(t), hosts: map[string]*host{}}
	for _, name := range []string{"nats-1", "nats-2", "nats-3", "plane-1", "plane-2", "w1", "w2", "w3", "w4"} {
		c.hosts[name] = c.network.host(name)
	}
	c.startNATS()
	c.startPlanes()
	token := filepath.Join(t.TempDir(), "node.token")
	text := c.planes[0].run("node", "token", "--data", c.planes[0].dir).ok(t)
	require.NoError(t, os.WriteFile(token, []byte(text), 0o600))
	for _, id := range []string{"w1", "w2", "w3", "w4"} {
		c.startWorker(id, token)
	}
	c.routed = &routed{to: c.balancer, base: newTransport()}
	client := &http.Client{Transport: c.routed, Timeout: 10 * time.Second}
	c.user, c.operator = c.planes[0].user(), c.planes[0].as("system", c.planes[0].operator().APIKey)
	c.user.http, c.operator.http = client, client
	eventually(t, "the workers have joined", func() bool { return c.ready(c.operator, 4) })
	return c
}

func newTransport() *http.Transport {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 32
	return transport
}

func (c *faultyCluster) natsURL() string {
	var urls []string
	for _, name := range []string{"nats-1", "nats-2", "nats-3"} {
		urls = append(urls, "nats://"+c.hosts[name].address+":4222")
	}
	return strings.Join(urls, ",")
}

func (c *faultyCluster) startNATS() {
	var peers []string
	for _, name := range []string{"nats-1", "nats-2", "nats-3"} {
		peers = append(peers, c.hosts[name].address+":6222")
	}
	servers, planes := natsEnvironment(c.t, peers)
	c.env = planes
	for _, name := range []string{"nats-1", "nats-2", "nats-3"} {
		h, log := c.hosts[name], logFor(c.t, name)
		env := append(slices.Clone(servers), "ANNEAL_NATS_NAME="+name, natsServerDir+"="+c.t.TempDir())
		var p *process
		h.running = func() *process { return p }
		h.launch = func() {
			p = launchProgram(c.t, "ip", log, env, append(slices.Clone(h.prefix[1:]), os.Args[0])...)
		}
		h.await = func() { p.waitForLine("NATS server started") }
		h.launch()
	}
	for _, name := range []string{"nats-1", "nats-2", "nats-3"} {
		c.hosts[name].await()
	}
}

func (c *faultyCluster) startPlanes() {
	blobs := "file://" + filepath.ToSlash(c.t.TempDir())
	var addresses []string
	for _, name := range []string{"plane-1", "plane-2"} {
		addresses = append(addresses, c.hosts[name].address+":8080")
	}
	balancer, public := balanceAt(c.t, c.network.address(1)+":0", true, addresses...)
	c.balancer = balancer
	for i, name := range []string{"plane-1", "plane-2"} {
		h := c.hosts[name]
		p := &plane{t: c.t, dir: c.t.TempDir(), prefix: h.prefix, env: c.env, log: logFor(c.t, name),
			args: []string{"--nats-url", c.natsURL(), "--listen", addresses[i], "--public-url", public, "--blobs", blobs,
				"--worker=false", "--name", name, "--lost-after", faultLostAfter.String(), "--speech", "none",
				"--max-connections-per-address", "1000"}}
		if i > 0 {
			c.planes[0].join(p.dir)
		}
		p.start()
		c.planes = append(c.planes, p)
		h.launch, h.await, h.running = p.launch, p.ready, func() *process { return p.process }
	}
}

func (c *faultyCluster) startWorker(id, token string) {
	h, log, dir := c.hosts[id], logFor(c.t, id), c.t.TempDir()
	var p *process
	h.running = func() *process { return p }
	h.launch = func() {
		p = launchProgram(c.t, "ip", log, nil, append(slices.Clone(h.prefix[1:]), binary(c.t), "work", "--join", c.natsURL(),
			"--token-file", token, "--node-id", id, "--data", dir, "--accelerators", faultDevice+"=2", "--speech", "none")...)
	}
	h.await = func() { p.waitForLine("node " + id + " joined ") }
	h.launch()
	h.await()
}

// ready reports whether a number of nodes are READY.
func (c *faultyCluster) ready(operator caller, n int) bool {
	nodes, err := operator.pages("/nodes", "nodes")
	if err != nil {
		return false
	}
	for _, node := range nodes {
		if node["state"] == "READY" {
			n--
		}
	}
	return n == 0
}

// faultLostAfter is --lost-after of the control planes: shorter than some faults of workers, and longer
// than a worker needs to leave a NATS server that hangs and to be authorized by another one.
const faultLostAfter = 15 * time.Second

// duration returns how long a fault lasts. Some faults of workers last until the worker is lost.
func (f fault) duration(random *rand.Rand) time.Duration {
	if strings.HasPrefix(f.hosts[len(f.hosts)-1], "w") && random.IntN(3) == 0 {
		return faultLostAfter + 3*time.Second
	}
	return time.Duration(4+random.IntN(7)) * time.Second
}

// A fault affects one or more hosts at the same time. Requests that overlap it may fail.
type fault struct {
	kind       string
	hosts      []string
	begin, end time.Time // end is when the cluster works again
}

// stops reports whether a fault disconnects a worker from the control planes that can use the log.
// After a partition, the side with two of the three NATS servers has the quorum.
func (f fault) stops(worker string) bool {
	servers := 0
	for _, name := range f.hosts {
		if strings.HasPrefix(name, "nats-") {
			servers++
		}
	}
	return slices.Contains(f.hosts, worker) != (f.kind == "separate" && servers == 2)
}

func (f fault) String() string { return f.kind + " " + strings.Join(f.hosts, " and ") }

// allFaults returns each kind of fault of each host and of a pair of hosts of each two roles, and
// separations of hosts that still reach one another, in random order.
func allFaults(random *rand.Rand) (all []fault) {
	roles := [][]string{{"nats-1", "nats-2", "nats-3"}, {"plane-1", "plane-2"}, {"w1", "w2", "w3", "w4"}}
	for _, kind := range []string{"cut", "pause", "kill"} {
		for i, role := range roles {
			for _, name := range role {
				all = append(all, fault{kind: kind, hosts: []string{name}})
			}
			for _, other := range roles[i:] {
				first := role[random.IntN(len(role))]
				second := other[random.IntN(len(other))]
				for second == first {
					second = other[random.IntN(len(other))]
				}
				all = append(all, fault{kind: kind, hosts: []string{first, second}})
			}
		}
	}
	for _, counts := range [][]int{{1, 1, 0}, {1, 0, 1}, {1, 1, 1}, {2, 1, 0}, {2, 1, 2}} {
		f := fault{kind: "separate"}
		for i, n := range counts {
			for _, one := range random.Perm(len(roles[i]))[:n] {
				f.hosts = append(f.hosts, roles[i][one])
			}
		}
		all = append(all, f)
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// strike injects a fault for some seconds, heals it, and waits until the cluster works.
func (c *faultyCluster) strike(f *fault, hold time.Duration) {
	c.t.Helper()
	f.begin = time.Now()
	for _, name := range f.hosts {
		c.hosts[name].inject(f.kind)
	}
	<-time.After(hold) // the fault itself
	for _, name := range f.hosts {
		c.hosts[name].heal(f.kind)
	}
	healed := time.Now()
	if f.kind == "kill" {
		for _, name := range f.hosts {
			c.hosts[name].await()
		}
	}
	deadline := time.Now().Add(patience)
	for what := c.missing(); what != ""; what = c.missing() {
		require.True(c.t, time.Now().Before(deadline), "after %s the cluster never recovers: %s", f, what)
		<-time.After(50 * time.Millisecond) // between two requests of the test
	}
	f.end = time.Now()
	c.t.Logf("%s: %-28s for %4.1f s, recovered after %4.1f s", f.begin.Format(time.TimeOnly), f, hold.Seconds(),
		f.end.Sub(healed).Seconds())
}

// missing says what does not work yet; "" if all works.
func (c *faultyCluster) missing() string {
	for i, p := range c.planes {
		direct, operator := c.user, c.operator
		direct.address, operator.address = c.balancer.servers[i].String(), c.balancer.servers[i].String()
		direct.http = &http.Client{Transport: c.routed.base, Timeout: 2 * time.Second}
		operator.http = direct.http
		res, err := direct.send(http.MethodGet, "//readyz/write", nil)
		if err != nil {
			return err.Error()
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK || !c.balancer.ready[i].Load() {
			return fmt.Sprintf("%s is not ready: %d", p.args[slices.Index(p.args, "--name")+1], res.StatusCode)
		}
		if !c.ready(operator, 4) {
			return "nodes are not READY"
		}
		_, d, err := direct.do(http.MethodGet, "/deployments/d", nil)
		if ready := at(d, "replicaStats.readyReplicaCount"); err != nil || ready != 2.0 {
			return fmt.Sprintf("deployment d: %v ready replicas, %v", ready, err)
		}
		if status, answer, err := direct.complete("accounts/default/deployments/d", "hello"); status != http.StatusOK {
			return fmt.Sprintf("a completion: %d %v %v", status, answer, err)
		}
	}
	return ""
}

// TestFaults cuts the network of, pauses and kills NATS servers, control planes and workers, alone
// and in pairs, under a load of operations, jobs and completions. Operations are linearizable, no
// acknowledged event is lost, no node is overcommitted, no healthy node is lost, every job
// completes, and requests outside of the faults succeed. ANNEAL_FAULTS is the number of faults, of
// those whose name contains ANNEAL_FAULTS_ONLY; `make faults` injects all of them, which takes ten
// minutes.
func TestFaults(t *testing.T) {
	if os.Getenv("ANNEAL_FAULTS") == "" {
		t.Skip("ANNEAL_FAULTS is not set: run `make faults`")
	}
	n := testutil.Variable(t, "ANNEAL_FAULTS", 0)
	random := testutil.Random(t)
	c := startFaultyCluster(t)
	c.user.dataset("codes", crashRows)
	c.user.must(http.MethodPost, "/deployments?deploymentId=d", object{"baseModel": baseModel, "minReplicaCount": 2,
		"maxReplicaCount": 2, "acceleratorType": faultDevice, "acceleratorCount": 1})
	eventually(t, "the cluster works", func() bool { return c.missing() == "" })

	l := c.load()
	faults := slices.DeleteFunc(allFaults(random), func(f fault) bool {
		return !strings.Contains(f.String(), os.Getenv("ANNEAL_FAULTS_ONLY"))
	})
	faults = faults[:min(n, len(faults))]
	began := time.Now()
	for i := range faults {
		l.quiet(3 * time.Second)
		l.registers.epoch.Add(1)
		c.strike(&faults[i], faults[i].duration(random))
	}
	l.quiet(3 * time.Second)
	l.end()
	t.Logf("%d faults in %v", len(faults), time.Since(began).Round(time.Second))
	l.report(faults)
	c.settled(l, faults)
	require.Empty(t, l.registers.faults)
}

// settled checks what the cluster has recorded when the faults are over.
func (c *faultyCluster) settled(l *faultLoad, faults []fault) {
	t := c.t
	for _, id := range l.jobs {
		c.user.until("/supervisedFineTuningJobs/"+id, "state", "JOB_STATE_COMPLETED")
	}
	eventually(t, "allocations of finished work are released", func() bool {
		held := 0
		nodes, err := c.operator.pages("/nodes", "nodes")
		for _, node := range nodes {
			allocations, _ := node["allocations"].([]any)
			held += len(allocations)
		}
		return err == nil && held == 2
	})
	l.readAll()
	result := porcupine.CheckOperationsTimeout(registers, l.registers.history, 5*time.Minute)
	require.Equal(t, porcupine.Ok, result, "the history of %d operations is not linearizable", len(l.registers.history))

	history := c.user.history()
	events := c.planes[0].tail().upTo(t, positionOf(t, history[len(history)-1]))
	checkInvariants(t, events)
	checkAllocations(t, events)
	checkLosses(t, c.operator.history(), faults)
	l.checkAcknowledged(events)
	for _, p := range c.planes {
		require.Contains(t, p.run("log", "verify").ok(t), "running server")
	}
	t.Logf("%d events, %d operations and %d jobs: linearizable, nothing lost", len(events), len(l.registers.history),
		len(l.jobs))
}

// checkAllocations checks after each event that no node has allocated more devices than it has, and
// that no job and no replica runs in two places.
func checkAllocations(t *testing.T, events []receivedEvent) {
	t.Helper()
	capacity, held := map[string]float64{}, map[string]map[string]float64{}
	placed := 0
	for _, e := range events {
		switch e.kind {
		case "node.registered.v1":
			capacity[e.subject], _ = at(e.data, "capacity.accelerators."+faultDevice).(float64)
			if held[e.subject] == nil {
				held[e.subject] = map[string]float64{}
			}
		case "node.lost.v1":
			held[e.subject] = map[string]float64{}
		case "allocation.placed.v1":
			placed++
			devices, _ := at(e.data, "takes.accelerators."+faultDevice).(float64)
			require.Positive(t, devices, "%v", e.data)
			held[e.subject][e.data["id"].(string)] = devices
			sum := 0.0
			for _, n := range held[e.subject] {
				sum += n
			}
			require.LessOrEqual(t, sum, capacity[e.subject], "position %d: %s is overcommitted", e.position, e.subject)
		case "allocation.released.v1":
			delete(held[e.subject], e.data["id"].(string))
		}
	}
	require.Greater(t, placed, 2)
}

// checkLosses checks that only nodes were declared lost that a fault had stopped.
func checkLosses(t *testing.T, events []object, faults []fault) {
	t.Helper()
	lost := 0
	for _, e := range events {
		if e["type"] != "node.lost.v1" {
			continue
		}
		lost++
		node := strings.TrimPrefix(fmt.Sprint(e["subject"]), "accounts/system/nodes/")
		when, err := time.Parse(time.RFC3339Nano, fmt.Sprint(e["time"]))
		require.NoError(t, err)
		stopped := slices.ContainsFunc(faults, func(f fault) bool {
			return f.stops(node) && when.After(f.begin) && when.Before(f.end)
		})
		data, _ := json.Marshal(e["data"])
		assert.True(t, stopped, "the healthy node %s was declared lost at %s: %s", node, when.Format(time.TimeOnly), data)
	}
	t.Logf("%d nodes were declared lost", lost)
}
