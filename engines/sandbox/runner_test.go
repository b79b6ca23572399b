package sandbox_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines/process"
	"anneal/engines/sandbox"
	"anneal/internal/testutil"
)

// newRunner returns a runner, and skips the test if the machine does not support sandboxes.
func newRunner(t testing.TB) *sandbox.Runner {
	t.Helper()
	r := sandbox.NewRunner(sandbox.RunnerOptions{})
	if err := r.Check(t.Context()); err != nil {
		t.Skip(err)
	}
	return r
}

// output runs a program until it exits and returns what it wrote to descriptor 3.
func output(t testing.TB, r *sandbox.Runner, p sandbox.Program) (string, error) {
	t.Helper()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	p.Files, p.Env = append([]*os.File{write}, p.Files...), append(process.Environment(nil), p.Env...)
	started, err := r.Start(p)
	require.NoError(t, write.Close())
	require.NoError(t, err)
	defer started.Stop(context.Background(), 0)
	text := testutil.ReadAll(t, read)
	<-started.Done()
	return string(text), started.Err()
}

// profiles are programs with the limits and permissions of the engines' programs.
var profiles = map[string]sandbox.Program{
	"ffmpeg": {Limits: sandbox.Limits{Memory: 1 << 30, FileBytes: 1 << 20, Processes: 64, Files: 64,
		CPU: time.Minute}},
	"PocketSphinx": {Limits: sandbox.Limits{Memory: 1 << 30, FileBytes: 1 << 20, Processes: 16, Files: 64}},
	"a server":     {Serves: true, Devices: true, Limits: sandbox.Limits{Processes: 4096}},
	"a trainer":    {Devices: true, Limits: sandbox.Limits{Processes: 4096}},
}

// escapes is a Python program that attempts to escape from a sandbox and writes each success as a
// line to a file.
const escapes = `
import ctypes, os, signal, socket, sys
out = open(sys.argv[1], "w")
def attempt(what, act):
    try:
        answer = act()
        if answer is not None: print(what, repr(answer)[:200], file=out)
    except OSError as e: print(what, "refused:", e)
def unix(path):
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    return "connected"
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(*args):
    result = libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    return None if result == -1 else result
secret, blob, bound, port, path, pid, parent = sys.argv[2:9]
for file in (secret, blob, bound, "/etc/shadow", "/root/.bashrc", "/proc/1/environ", "/proc/1/root/etc/shadow",
        f"/proc/{pid}/environ", f"/proc/{parent}/environ"):
    attempt(file, lambda: open(file, "rb").read(100))
for folder in (os.path.dirname(secret), "/root", "/home", "/var", "/run/systemd", "/boot"):
    attempt(folder, lambda: os.listdir(folder) or None)
attempt("loopback", lambda: socket.create_connection(("127.0.0.1", int(port)), 1))
attempt("internet", lambda: socket.create_connection(("192.0.2.1", 80), 1))
attempt("metadata", lambda: socket.create_connection(("169.254.169.254", 80), 1))
attempt("unix", lambda: unix(path))
attempt("abstract", lambda: unix("\0anneal-escape-" + pid))
attempt("the machine's host", lambda: socket.socket(40, socket.SOCK_STREAM))
for other in (int(pid), int(parent)): attempt("signal", lambda: ("sent", os.kill(other, 0)))
attempt("processes", lambda: [p for p in os.listdir("/proc") if p.isdigit() and int(p) > 50] or None)
attempt("user", lambda: os.getuid() if os.getuid() == 0 else None)
attempt("root again", lambda: ("done", os.setuid(0)))
status = open("/proc/self/status").read()
attempt("capabilities", lambda: [l for l in status.splitlines() if l.startswith("Cap")
    and int(l.split()[1], 16)] or None)
attempt("privileges", lambda: None if "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status else status)
for file in ("/x", "/usr/x", "/etc/x", "/dev/x", "/proc/sys/kernel/core_pattern", "/run/anneal/x"):
    attempt(file, lambda: open(file, "w"))
attempt("first process", lambda: ("sent", os.kill(1, 9)))
if os.uname().machine == "x86_64":
    for name, args in (
        ("unshare", (272, 0x10000000)), ("mount", (165, b"x", b"/tmp", b"tmpfs", 0, 0)), ("bpf", (321, 0, 0, 0)),
        ("keyctl", (250, 0, -3, 0)), ("ptrace", (101, 16, 1, 0, 0)), ("io_uring", (425, 8, 0)),
        ("clone of a user namespace", (56, 0x10000011, 0, 0, 0, 0)),
    ): attempt(name, lambda: call(*args))
print("ended", file=out)
`

// TestProgramsDoNotEscape checks that a hostile program in each profile cannot read keys, blobs and
// other accounts' files, use the network or signal other processes.
func TestProgramsDoNotEscape(t *testing.T) {
	r := newRunner(t)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = tcp.Close() })
	dir, model := t.TempDir(), t.TempDir()
	short, err := os.MkdirTemp("", "anneal-escape-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	require.NoError(t, os.Chmod(short, 0o755))
	unix, err := net.Listen("unix", filepath.Join(short, "socket"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close() })
	abstract, err := net.Listen("unix", "@anneal-escape-"+strconv.Itoa(os.Getpid()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = abstract.Close() })
	secret, blob, bound := filepath.Join(dir, "keys"), filepath.Join(dir, "blob"), filepath.Join(t.TempDir(), "key")
	for _, path := range []string{secret, blob, bound, filepath.Join(model, "model")} {
		require.NoError(t, os.WriteFile(path, []byte("canary"), 0o600))
	}
	for name, p := range profiles {
		t.Run(name, func(t *testing.T) {
			scratch := t.TempDir()
			found := filepath.Join(scratch, "found") // a file, since a relay passes no descriptors on
			p.Write = scratch
			attempts := escapes
			if os.Getuid() != 0 { // without root, the sandbox's first process runs as the program's user
				attempts = strings.NewReplacer(`"/proc/1/environ", `, "",
					`attempt("first process", lambda: ("sent", os.kill(1, 9)))`, "").Replace(escapes)
			}
			p.Args = []string{"/usr/bin/python3", "-I", "-c", attempts, found, secret, blob, bound,
				strconv.Itoa(tcp.Addr().(*net.TCPAddr).Port), unix.Addr().String(),
				strconv.Itoa(os.Getpid()), strconv.Itoa(os.Getppid())}
			p.Read = []string{model}
			if os.Getuid() == 0 { // the file is visible in the sandbox, but only root can read it
				p.Programs = []string{bound}
			}
			_, err := output(t, r, p)
			require.NoError(t, err)
			text := testutil.ReadFile(t, found)
			require.Equal(t, "ended\n", string(text))
		})
	}
	info := testutil.Stat(t, bound)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

// TestProgramsAreNotRoot checks in /proc that a running program has the user, groups and
// capabilities of an unprivileged user.
func TestProgramsAreNotRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("requires root")
	}
	r := newRunner(t)
	mark := fmt.Sprint(1_000_000 + os.Getpid())
	p := profiles["PocketSphinx"]
	p.Args, p.Env = []string{"/bin/sleep", mark}, process.Environment(nil)
	started, err := r.Start(p)
	require.NoError(t, err)
	defer started.Stop(context.Background(), 0)
	status := func() string {
		files := testutil.Glob(t, "/proc/[0-9]*/cmdline")
		for _, file := range files {
			if line, _ := os.ReadFile(file); string(line) == "/bin/sleep\x00"+mark+"\x00" {
				text, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "status"))
				return string(text)
			}
		}
		return ""
	}
	require.Eventually(t, func() bool { return status() != "" }, 10*time.Second, 5*time.Millisecond)
	for line := range strings.Lines(status()) {
		name, values, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "Uid", "Gid":
			for _, id := range strings.Fields(values) {
				number, err := strconv.Atoi(id)
				require.NoError(t, err)
				require.Greater(t, number, 10_000, line)
			}
		case "Groups":
			require.Empty(t, strings.TrimSpace(values))
		case "CapEff", "CapPrm", "CapBnd", "CapAmb", "CapInh":
			require.Equal(t, "0000000000000000", strings.TrimSpace(values), name)
		case "NoNewPrivs":
			require.Equal(t, "1", strings.TrimSpace(values))
		}
	}
}

// TestProgramFiles checks that a program can read and write the files that Program lists, although
// only this user can open them.
func TestProgramFiles(t *testing.T) {
	r := newRunner(t)
	model, scratch := t.TempDir(), t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(model, "below"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(model, "below", "weights"), []byte("weights "), 0o600))
	text, err := output(t, r, sandbox.Program{Args: []string{"/bin/sh", "-c",
		`cat "$0"/below/* >&3; echo x >"$0"/y || printf "read-only " >&3; echo note >"$1"/note; cd; pwd >&3; ` +
			`cat /dev/fd/4 >&3`, model, scratch},
		Read: []string{model}, Write: scratch, Files: []*os.File{pipeOf(t, "piped")}})
	require.NoError(t, err)
	require.Equal(t, "weights read-only "+scratch+"\npiped", text)
	note := testutil.ReadFile(t, filepath.Join(scratch, "note"))
	require.Equal(t, "note\n", string(note))
	require.NoFileExists(t, filepath.Join(model, "y"))
}

// pipeOf returns the read end of a pipe with some content.
func pipeOf(t *testing.T, content string) *os.File {
	read, write, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _ = read.Close() })
	_, err = write.WriteString(content)
	require.NoError(t, err)
	require.NoError(t, write.Close())
	return read
}

func TestLimits(t *testing.T) {
	r := newRunner(t)
	for name, c := range map[string]struct {
		limits  sandbox.Limits
		code    string
		message string
	}{
		"memory": {sandbox.Limits{Memory: 256 << 20}, "bytearray(1 << 30)", "MemoryError"},
		"a file": {sandbox.Limits{FileBytes: 1 << 20}, "open('/tmp/x', 'wb').write(bytes(2 << 20))", "File too large"},
		"all files": {sandbox.Limits{FileBytes: 1 << 20},
			"[open(f'/tmp/{i}', 'wb').write(bytes(1 << 19)) for i in range(3)]", "No space left"},
		"time":        {sandbox.Limits{CPU: time.Second}, "while True: pass", "signal: killed"},
		"descriptors": {sandbox.Limits{Files: 20}, "[open('/dev/null') for i in range(30)].append(0)", "Too many open files"},
		"processes": {sandbox.Limits{Processes: 8},
			"import os\nfor i in range(20):\n  if os.fork() == 0: import time; time.sleep(60)", "temporarily unavailable"},
		"a crash": {sandbox.Limits{}, "import os; os.kill(os.getpid(), 11)", "signal: segmentation fault"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "processes" && os.Getuid() != 0 {
				t.Skip("requires root: the limit applies only to programs that run as another user")
			}
			_, err := output(t, r, sandbox.Program{Args: []string{"/usr/bin/python3", "-I", "-c", c.code}, Limits: c.limits})
			require.ErrorContains(t, err, c.message)
		})
	}
}

// TestStopSignalsTheProgram checks that Stop sends SIGTERM to the program itself and waits for the
// grace period until the program exits.
func TestStopSignalsTheProgram(t *testing.T) {
	r := newRunner(t)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	started, err := r.Start(sandbox.Program{Args: []string{"/bin/sh", "-c",
		`trap 'echo saved >&3; exit 0' TERM; echo ready >&3; while :; do sleep 0.01; done`},
		Env: process.Environment(nil), Files: []*os.File{write}})
	require.NoError(t, err)
	require.NoError(t, write.Close())
	ready := make([]byte, 6)
	_, err = io.ReadFull(read, ready)
	require.NoError(t, err)
	started.Stop(t.Context(), time.Minute)
	rest := testutil.ReadAll(t, read)
	require.Equal(t, "saved\n", string(rest))
	require.NoError(t, started.Err())
}

// TestDialConfinedServer checks that Dial connects to a server on the loopback of the server's
// network namespace. The server cannot connect to the loopback of the machine.
func TestDialConfinedServer(t *testing.T) {
	r := newRunner(t)
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer busy.Close()
	port := strconv.Itoa(busy.Addr().(*net.TCPAddr).Port)
	p := profiles["a server"]
	p.Env = process.Environment(nil)
	p.Args = []string{"/usr/bin/python3", "-I", "-c", `
import os, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    conn, _ = listener.accept()
    file = conn.makefile("rw")
    match file.readline().strip():
        case "user": file.write(str(os.getuid()))
        case "descriptors": file.write(" ".join(sorted(os.listdir("/proc/self/fd"))))
        case "exit": os._exit(7)
        case other:
            try: socket.create_connection(("127.0.0.1", int(other)), 1); file.write("connected")
            except OSError as e: file.write("refused")
    file.close(); conn.close()`, port}
	started, err := r.Start(p)
	require.NoError(t, err)
	defer started.Stop(context.Background(), 0)
	request := func(line string) string {
		var conn net.Conn
		require.Eventually(t, func() bool {
			conn, err = started.Dial(t.Context(), "tcp", "127.0.0.1:"+port)
			return err == nil
		}, 20*time.Second, 10*time.Millisecond, "%v", err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
		_, err = fmt.Fprintln(conn, line)
		require.NoError(t, err)
		response := testutil.ReadAll(t, conn)
		return string(response)
	}
	require.NotEqual(t, "0", request("user"))
	require.Equal(t, "0 1 2 3 4 5", request("descriptors"),
		"standard streams, the listener, the connection and the listed directory")
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer other.Close()
	require.Equal(t, "refused", request(strconv.Itoa(other.Addr().(*net.TCPAddr).Port)))
	request("exit")
	<-started.Done()
	require.ErrorContains(t, started.Err(), "exit status 7")
	_, err = started.Dial(t.Context(), "tcp", "127.0.0.1:"+port)
	require.Error(t, err)
}

// TestStartWithoutBubblewrap checks that only trusted programs are started if bubblewrap is not
// installed.
func TestStartWithoutBubblewrap(t *testing.T) {
	t.Setenv("PATH", "/nowhere")
	r := sandbox.NewRunner(sandbox.RunnerOptions{})
	err := r.Check(t.Context())
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "--engines-without-sandbox")
	require.ErrorContains(t, err, sandbox.InstallRunner)
	_, err = r.Start(sandbox.Program{Args: []string{"/bin/true"}})
	require.ErrorContains(t, err, "cannot run the programs of engines in a sandbox")
	started, err := r.Start(sandbox.Program{Args: []string{"/bin/true"}, Trusted: true})
	require.NoError(t, err)
	<-started.Done()
	require.NoError(t, started.Err())
	plain := sandbox.NewRunner(sandbox.RunnerOptions{Plain: true})
	require.NoError(t, plain.Check(t.Context()))
	started, err = plain.Start(sandbox.Program{Args: []string{"/bin/true"}})
	require.NoError(t, err)
	<-started.Done()
	require.NoError(t, started.Err())
}

// TestPythonEnvironment checks that a script of a Python environment runs outside of the system's
// directories.
func TestPythonEnvironment(t *testing.T) {
	r := newRunner(t)
	environment := filepath.Join(t.TempDir(), "venv")
	for _, dir := range []string{"bin", "lib"} {
		require.NoError(t, os.MkdirAll(filepath.Join(environment, dir), 0o755))
	}
	require.NoError(t, os.Symlink("/usr/bin/python3", filepath.Join(environment, "bin", "python3")))
	require.NoError(t, os.WriteFile(filepath.Join(environment, "pyvenv.cfg"), []byte("home = /usr/bin\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(environment, "lib", "data"), []byte("data"), 0o644))
	script := filepath.Join(environment, "bin", "serve")
	require.NoError(t, os.WriteFile(script, []byte("#!"+environment+"/bin/python3\nimport os, sys\nos.write(3, "+
		"(sys.prefix + ' ' + open(sys.prefix + '/lib/data').read()).encode())\n"), 0o755))
	text, err := output(t, r, sandbox.Program{Args: []string{script}})
	require.NoError(t, err)
	require.Equal(t, environment+" data", text)
}

// BenchmarkStart measures the start of a program with and without a sandbox.
func BenchmarkStart(b *testing.B) {
	confined, plain := newRunner(b), sandbox.NewRunner(sandbox.RunnerOptions{Plain: true})
	p := sandbox.Program{Args: []string{"/bin/true"}, Env: process.Environment(nil),
		Limits: sandbox.Limits{Memory: 1 << 30}}
	var total [2]time.Duration
	for b.Loop() {
		for i, r := range []*sandbox.Runner{plain, confined} {
			began := time.Now()
			started, err := r.Start(p)
			require.NoError(b, err)
			<-started.Done()
			total[i] += time.Since(began)
		}
	}
	b.ReportMetric(float64(total[0].Microseconds())/1e3/float64(b.N), "plain-ms")
	b.ReportMetric(float64(total[1].Microseconds())/1e3/float64(b.N), "confined-ms")
	runtime.KeepAlive(total)
}
