package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
)

// A network connects network namespaces and the test by a bridge.
type network struct {
	t      *testing.T
	prefix string // of the names of its namespaces and links
	subnet string // the first three numbers of its addresses
	hosts  int
}

// newNetwork creates a network. It skips the test if this is not permitted.
func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{t: t, prefix: fmt.Sprintf("an%d", os.Getpid()), subnet: fmt.Sprintf("10.213.%d", os.Getpid()%250)}
	if out, err := exec.Command("ip", "link", "add", n.prefix, "type", "bridge").CombinedOutput(); err != nil {
		t.Skipf("network namespaces need root and iproute2: ip link add: %v %s", err, out)
	}
	t.Cleanup(func() { n.ip("link", "del", n.prefix) })
	n.ip("link", "add", n.otherSide(), "type", "bridge")
	t.Cleanup(func() { n.ip("link", "del", n.otherSide()) })
	n.ip("link", "set", n.otherSide(), "up")
	n.ip("addr", "add", n.address(1)+"/24", "dev", n.prefix)
	n.ip("link", "set", n.prefix, "up")
	return n
}

// ip runs a command of iproute2.
func (n *network) ip(args ...string) {
	n.t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	require.NoError(n.t, err, "ip %s: %s", strings.Join(args, " "), out)
}

// otherSide is the bridge of the hosts that are separated from the others and from the test.
func (n *network) otherSide() string { return n.prefix + "x" }

func (n *network) address(host int) string { return n.subnet + "." + strconv.Itoa(host) }

// A host is a process in its own network namespace.
type host struct {
	network   *network
	name      string
	address   string
	namespace string
	link      string // the end of its cable at the bridge
	prefix    []string
	launch    func()          // starts the process (again) without waiting for it
	running   func() *process // the current process
	await     func()          // waits until the process that was launched works
}

// host adds a host to the network.
func (n *network) host(name string) *host {
	n.t.Helper()
	n.hosts++
	h := &host{network: n, name: name, address: n.address(10 + n.hosts), link: fmt.Sprintf("%sv%d", n.prefix, n.hosts),
		namespace: fmt.Sprintf("%s-%d", n.prefix, n.hosts), await: func() {}}
	h.prefix = []string{"ip", "netns", "exec", h.namespace}
	n.ip("netns", "add", h.namespace)
	n.t.Cleanup(func() { n.ip("netns", "del", h.namespace) })
	n.ip("link", "add", h.link, "type", "veth", "peer", "name", "eth0", "netns", h.namespace)
	n.ip("link", "set", h.link, "master", n.prefix, "up")
	n.ip("-n", h.namespace, "addr", "add", h.address+"/24", "dev", "eth0")
	n.ip("-n", h.namespace, "link", "set", "eth0", "up")
	n.ip("-n", h.namespace, "link", "set", "lo", "up")
	return h
}

// inject begins a fault of the host: its cable is cut, it is separated from the test and from the
// hosts that are not separated, or its process is paused or killed.
func (h *host) inject(kind string) {
	h.network.t.Helper()
	switch kind {
	case "cut":
		h.network.ip("link", "set", h.link, "down")
	case "separate":
		h.network.ip("link", "set", h.link, "master", h.network.otherSide())
	case "pause":
		require.NoError(h.network.t, h.running().cmd.Process.Signal(syscall.SIGSTOP))
	case "kill":
		h.running().kill()
	}
}

// heal ends a fault.
func (h *host) heal(kind string) {
	h.network.t.Helper()
	switch kind {
	case "cut":
		h.network.ip("link", "set", h.link, "up")
	case "separate":
		h.network.ip("link", "set", h.link, "master", h.network.prefix)
	case "pause":
		require.NoError(h.network.t, h.running().cmd.Process.Signal(syscall.SIGCONT))
	case "kill":
		h.launch()
	}
}

// natsServerDir is the environment variable with the directory of a NATS server: a test binary that
// has it runs the server instead of tests.
const natsServerDir = "ANNEAL_TEST_NATS_DIR"

// runNATSServer runs a NATS server with compose/nats.conf until the process is killed.
func runNATSServer(dir string) {
	o, err := server.ProcessConfigFile(filepath.Join("..", "..", "compose", "nats.conf"))
	if err == nil {
		o.StoreDir, o.HTTPPort, o.SyncAlways = dir, 0, false // the test simulates no power failure
		o.NoSigs = true
		var s *server.Server
		if s, err = server.NewServer(o); err == nil {
			s.Start()
			fmt.Println("NATS server started")
			end := make(chan os.Signal, 1)
			signal.Notify(end, syscall.SIGTERM)
			<-end
			s.Shutdown()
			os.Exit(0)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
