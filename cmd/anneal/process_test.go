package main_test

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// patience is how long a test waits for an event that normally occurs soon: long enough for a busy
// machine.
const patience = 2 * time.Minute

// parallelTests is the number of tests that run at the same time on a small machine.
const parallelTests = 4

var binaryDir string

func TestMain(m *testing.M) {
	flag.Parse()
	if dir := os.Getenv(natsServerDir); dir != "" {
		runNATSServer(dir)
	}
	if !isSet("test.parallel") { // tests mostly wait for the processes that they start
		_ = flag.Set("test.parallel", strconv.Itoa(max(parallelTests, runtime.GOMAXPROCS(0))))
	}
	code := m.Run()
	if binaryDir != "" {
		_ = os.RemoveAll(binaryDir)
	}
	os.Exit(code)
}

// isSet reports whether the command line has the flag.
func isSet(name string) (set bool) {
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

// build builds the program once for all tests. The tests do not run the test binary as the
// program, because the race detector would slow down the training; it only needs to watch the
// tests.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "anneal-test-")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	path := filepath.Join(dir, "anneal")
	out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

func binary(t testing.TB) string {
	t.Helper()
	path, err := build()
	require.NoError(t, err)
	return path
}

// environment returns the environment of the tests without variables that would direct a child
// process to a real server of the user.
func environment(home string, more ...string) []string {
	var env []string
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); !strings.HasPrefix(name, "ANNEAL_") && !strings.HasPrefix(name, "XDG_") &&
			name != "HOME" {
			env = append(env, pair)
		}
	}
	return append(append(env, "HOME="+home), more...)
}

// A process is a child process that ends with its test at the latest.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	env    []string // added to the environment of the tests
	stdout transcript
	stderr *transcript
	exited chan struct{}
	code   int // exit status of the exited process; -1 when a signal ended it
}

// launch starts the program. Its stderr is written to log, which is printed when the test fails.
func launch(t testing.TB, log *transcript, args ...string) *process {
	t.Helper()
	return launchProgram(t, "", log, nil, args...)
}

// launchIn is like launch, with environment variables in addition to those of the tests.
func launchIn(t testing.TB, log *transcript, env []string, args ...string) *process {
	t.Helper()
	return launchProgram(t, "", log, env, args...)
}

// launchProgram is like launchIn with another program; "" is the tested one.
func launchProgram(t testing.TB, program string, log *transcript, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(cmp.Or(program, binary(t)), args...), env: env, stderr: log,
		exited: make(chan struct{})}
	p.run()
	return p
}

func (p *process) run() {
	p.t.Helper()
	p.cmd.Env = environment(p.t.TempDir(), p.env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(p.t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // its result is the exit code
		p.code = p.cmd.ProcessState.ExitCode()
		close(p.exited)
	}()
	p.t.Cleanup(p.kill)
}

// kill ends the process immediately, as a power failure would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error means that it has ended
	<-p.exited
}

// end sends SIGTERM to the process, and returns its exit code.
func (p *process) end() int {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	return p.await()
}

// await waits for the end of the process and returns its exit code.
func (p *process) await() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.stuck("ended")
	}
	return p.code
}

// stuck fails the test with the stacks of the process. never is what the process did not do.
func (p *process) stuck(never string) {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGQUIT) // an error means that it has ended
	<-p.exited
	require.FailNow(p.t, "the process never "+never, "%v\n%s", p.cmd.Args[1:], p.stderr)
}

// waitForLine waits for a line on stdout that begins with prefix, and returns the line.
func (p *process) waitForLine(prefix string) string {
	p.t.Helper()
	deadline := time.After(patience)
	for {
		line, found, grown := p.stdout.line(prefix)
		if found {
			return line
		}
		select {
		case <-grown:
		case <-p.exited:
			if line, found, _ := p.stdout.line(prefix); found {
				return line
			}
			require.FailNow(p.t, "the process ended before it printed "+prefix, "%v: exit %d\n%s", p.cmd.Args[1:], p.code,
				p.stderr)
		case <-deadline:
			p.stuck("printed " + prefix)
		}
	}
}

// A transcript collects the output of child processes. It is safe for concurrent use.
type transcript struct {
	mu    sync.Mutex
	text  bytes.Buffer
	grown chan struct{}
}

func (l *transcript) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.grown != nil {
		close(l.grown)
		l.grown = nil
	}
	return l.text.Write(data)
}

// line returns the first complete line that begins with prefix, and whether there is one. If there
// is none, grown is closed at the next output.
func (l *transcript) line(prefix string) (line string, found bool, grown <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for one := range strings.Lines(l.text.String()) {
		if strings.HasPrefix(one, prefix) && strings.HasSuffix(one, "\n") {
			return strings.TrimSuffix(one, "\n"), true, nil
		}
	}
	if l.grown == nil {
		l.grown = make(chan struct{})
	}
	return "", false, l.grown
}

// String returns the last 32 KiB of the output.
func (l *transcript) String() string {
	const maxShown = 32 << 10
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text.String()
	if len(text) > maxShown {
		return "…" + text[len(text)-maxShown:]
	}
	return text
}

// output returns all of the output.
func (l *transcript) output() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// logFor returns a transcript that is printed when the test fails.
func logFor(t testing.TB, who string) *transcript {
	log := &transcript{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("stderr of %s:\n%s", who, log)
		}
	})
	return log
}

// A contextFile is the file that `anneal serve` writes for its users.
type contextFile struct {
	Address      string `json:"address"`
	Account      string `json:"account"`
	APIKey       string `json:"apiKey"`
	NATSURL      string `json:"natsUrl"`
	NATSUser     string `json:"natsUser"`
	NATSPassword string `json:"natsPassword"`
}

// A plane is a control plane: one data directory, and the process that currently serves it.
type plane struct {
	*process
	t       testing.TB
	dir     string
	args    []string
	program string   // "" is the tested one
	prefix  []string // command that runs the process; nil runs it directly
	env     []string // added to the environment of the tests
	files   int      // limit of open files of the process; 0 is the limit of the tests
	data    int      // limit of the process's data segment in KB, if files is set; 0 is the limit of the tests
	log     *transcript
	context contextFile

	prism        string // address of prism in front of the server, once proxies has started it
	withoutPrism bool   // proxies does not use prism
}

// serve starts a control plane in a directory and waits until it is ready.
func serve(t testing.TB, dir string, args ...string) *plane {
	t.Helper()
	s := &plane{t: t, dir: dir, args: args, log: logFor(t, "anneal serve")}
	s.start()
	return s
}

// start starts the process (again) and waits until it is ready.
func (s *plane) start() {
	s.t.Helper()
	s.launch()
	s.ready()
}

func (s *plane) launch() {
	s.t.Helper()
	args := append([]string{"serve", "--data", s.dir, "--listen", "127.0.0.1:0"}, s.args...)
	if s.files == 0 {
		command := append(slices.Clone(s.prefix), append([]string{cmp.Or(s.program, binary(s.t))}, args...)...)
		s.process = launchProgram(s.t, command[0], s.log, s.env, command[1:]...)
		return
	}
	limit := fmt.Sprintf("ulimit -n %d", s.files)
	if s.data > 0 {
		limit += fmt.Sprintf(" && ulimit -d %d", s.data)
	}
	shell := exec.Command("sh", append([]string{"-c", limit + ` && exec "$0" "$@"`, binary(s.t)}, args...)...)
	s.process = &process{t: s.t, cmd: shell, stderr: s.log, exited: make(chan struct{})}
	s.process.run()
}

// ready waits for the ready line and reads the context file.
func (s *plane) ready() {
	s.t.Helper()
	s.waitForLine("anneal is ready at ")
	data := testutil.ReadFile(s.t, filepath.Join(s.dir, "context.json"))
	require.NoError(s.t, json.Unmarshal(data, &s.context))
}

// operator reads the operator's context file.
func (s *plane) operator() (operator contextFile) {
	s.t.Helper()
	data := testutil.ReadFile(s.t, filepath.Join(s.dir, "operator.json"))
	require.NoError(s.t, json.Unmarshal(data, &operator))
	return operator
}

// joined waits for the local worker, which starts when the server is ready.
func (s *plane) joined() {
	s.t.Helper()
	operator := s.operator()
	user := s.as(operator.Account, operator.APIKey)
	eventually(s.t, "the local worker has joined", func() bool {
		nodes := user.list("/nodes", "nodes")
		return len(nodes) == 1 && nodes[0]["state"] == "READY"
	})
}

// run executes a command of the user and returns its outcome.
func (s *plane) run(args ...string) outcome {
	s.t.Helper()
	return command(s.t, s.dir, args...)
}

// An outcome is the result of a command.
type outcome struct {
	args           []string
	code           int
	stdout, stderr string
}

// command runs the program to its end, with the context file of a data directory.
func command(t testing.TB, dir string, args ...string) outcome {
	t.Helper()
	return commandIn(t, nil, dir, args...)
}

// commandIn is command with additions to the environment.
func commandIn(t testing.TB, env []string, dir string, args ...string) outcome {
	t.Helper()
	return programIn(t, "", env, dir, args...)
}

// programIn is commandIn for another program; "" is this one.
func programIn(t testing.TB, program string, env []string, dir string, args ...string) outcome {
	t.Helper()
	cmd := exec.Command(cmp.Or(program, binary(t)), args...)
	cmd.Env = append(environment(t.TempDir(), "ANNEAL_CONTEXT="+filepath.Join(dir, "context.json")), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return outcome{args, cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// ok requires that the command succeeded, and returns its output.
func (o outcome) ok(t testing.TB) string {
	t.Helper()
	require.Zero(t, o.code, "anneal %s\n%s%s", strings.Join(o.args, " "), o.stdout, o.stderr)
	return o.stdout
}

func lastLine(text string) string {
	last := ""
	for scanner := bufio.NewScanner(strings.NewReader(text)); scanner.Scan(); {
		last = scanner.Text()
	}
	return last
}

// eventually calls look repeatedly until it returns true. what describes the condition in the
// failure of the test.
func eventually(t testing.TB, what string, look func() bool) {
	t.Helper()
	deadline := time.After(patience)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !look() {
		select {
		case <-again.C:
		case <-deadline:
			require.FailNow(t, "condition never met: "+what)
		}
	}
}

// nextPort is the port at which freePort continues, because each port is used only once.
var nextPort = func() *atomic.Int64 {
	var n atomic.Int64
	n.Store(20_000 + int64(os.Getpid()%6_000))
	return &n
}()

// freePort returns an address that no other program is likely to use: its port is below those that
// the kernel assigns to outgoing connections.
func freePort(t testing.TB) string {
	t.Helper()
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", nextPort.Add(1))
		if listener, err := net.Listen("tcp", address); err == nil {
			require.NoError(t, listener.Close())
			return address
		}
	}
	require.FailNow(t, "no free port")
	return ""
}
