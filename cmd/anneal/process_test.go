package main_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for what should happen soon, on a machine
// that does other things too.
const patience = 2 * time.Minute

var binaryFolder string

func TestMain(m *testing.M) {
	code := m.Run()
	if binaryFolder != "" {
		_ = os.RemoveAll(binaryFolder)
	}
	os.Exit(code)
}

// build makes the program once for all tests. It is not the test binary: the
// race detector watches the tests, and would only slow the training down.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "anneal-test-")
	if err != nil {
		return "", err
	}
	binaryFolder = dir
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

// environment is that of the tests without what would lead a child to a real
// server of whoever runs them.
func environment(home string, more ...string) []string {
	var env []string
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); !strings.HasPrefix(name, "ANNEAL_") && !strings.HasPrefix(name, "XDG_") && name != "HOME" {
			env = append(env, pair)
		}
	}
	return append(append(env, "HOME="+home), more...)
}

// A process is a child that ends with its test at the latest.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	stdout transcript
	stderr *transcript
	exited chan struct{}
	code   int // exit status once exited; -1 when a signal ended it
}

// launch starts the program. What it writes to stderr goes to log, which is
// shown when the test fails.
func launch(t testing.TB, log *transcript, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(binary(t), args...), stderr: log, exited: make(chan struct{})}
	p.run()
	return p
}

func (p *process) run() {
	p.t.Helper()
	p.cmd.Env = environment(p.t.TempDir())
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

// kill ends the process as a power failure would: at once.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error says that it has ended
	<-p.exited
}

// end asks the process to end, and answers its exit code.
func (p *process) end() int {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	return p.await()
}

// await waits for the end of the process and answers its exit code.
func (p *process) await() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.stuck("ended")
	}
	return p.code
}

// stuck fails the test, with what the process hangs on.
func (p *process) stuck(never string) {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGQUIT) // an error says that it has ended
	<-p.exited
	require.FailNow(p.t, "the process never "+never, "%v\n%s", p.cmd.Args[1:], p.stderr)
}

// says waits for a line on stdout that begins with prefix, and answers it.
func (p *process) says(prefix string) string {
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
			require.FailNow(p.t, "the process ended before it said "+prefix, "%v: exit %d\n%s", p.cmd.Args[1:], p.code, p.stderr)
		case <-deadline:
			p.stuck("said " + prefix)
		}
	}
}

// A transcript keeps what children write. It is safe for concurrent use.
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

// line finds a whole line; grown is closed when there is more to look at.
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

// String is the transcript's end: what a person wants to see of it.
func (l *transcript) String() string {
	const most = 32 << 10
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text.String()
	if len(text) > most {
		return "…" + text[len(text)-most:]
	}
	return text
}

// whole is all of the transcript.
func (l *transcript) whole() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// logFor is a transcript that is shown when the test fails.
func logFor(t testing.TB, who string) *transcript {
	log := &transcript{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("stderr of %s:\n%s", who, log)
		}
	})
	return log
}

// A contextFile is what `anneal serve` promises to write for its users.
type contextFile struct {
	Address      string `json:"address"`
	Account      string `json:"account"`
	APIKey       string `json:"apiKey"`
	NATSURL      string `json:"natsUrl"`
	NATSUser     string `json:"natsUser"`
	NATSPassword string `json:"natsPassword"`
}

// A plane is a control plane: one data folder, and the process that serves it
// now.
type plane struct {
	*process
	t       testing.TB
	dir     string
	args    []string
	files   int // that the process may open; 0 is as many as the tests may
	data    int // KB of memory that the process may have to write to, if files is set; 0 is as much as the tests may
	log     *transcript
	context contextFile
}

// serve starts a control plane in a folder and waits until it is ready.
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
		s.process = launch(s.t, s.log, args...)
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

// ready waits for the promised line and reads the promised file.
func (s *plane) ready() {
	s.t.Helper()
	s.says("anneal is ready at ")
	data, err := os.ReadFile(filepath.Join(s.dir, "context.json"))
	require.NoError(s.t, err)
	require.NoError(s.t, json.Unmarshal(data, &s.context))
}

// operator reads the operator's context file.
func (s *plane) operator() (operator contextFile) {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(s.dir, "operator.json"))
	require.NoError(s.t, err)
	require.NoError(s.t, json.Unmarshal(data, &operator))
	return operator
}

// joined waits for the local worker, which begins when the server is ready.
func (s *plane) joined() {
	s.t.Helper()
	operator := s.operator()
	user := s.as(operator.Account, operator.APIKey)
	eventually(s.t, "the local worker has joined", func() bool {
		nodes := user.list("/nodes", "nodes")
		return len(nodes) == 1 && nodes[0]["state"] == "READY"
	})
}

// run carries out a command line of the user's and answers its outcome.
func (s *plane) run(args ...string) outcome {
	s.t.Helper()
	return command(s.t, s.dir, args...)
}

// An outcome is how a command line ended.
type outcome struct {
	args           []string
	code           int
	stdout, stderr string
}

// command runs the program to its end, with the context file of a data folder.
func command(t testing.TB, dir string, args ...string) outcome {
	t.Helper()
	cmd := exec.Command(binary(t), args...)
	cmd.Env = environment(t.TempDir(), "ANNEAL_CONTEXT="+filepath.Join(dir, "context.json"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return outcome{args, cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// ok demands that the command succeeded, and answers what it printed.
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

// eventually asks again and again until look answers true.
func eventually(t testing.TB, what string, look func() bool) {
	t.Helper()
	deadline := time.After(patience)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !look() {
		select {
		case <-again.C:
		case <-deadline:
			require.FailNow(t, "it never came to this: "+what)
		}
	}
}

// nextPort is where freePort looks next: what it gave is not given again.
var nextPort = func() *atomic.Int64 {
	var n atomic.Int64
	n.Store(20_000 + int64(os.Getpid()%6_000))
	return &n
}()

// freePort is an address that nobody else will be given by accident: its port
// lies below those that the kernel gives to outgoing connections.
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
