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
)

// runner is one that confines; the test is skipped where the machine cannot.
func runner(t testing.TB) *sandbox.Runner {
	t.Helper()
	r := sandbox.NewRunner(sandbox.RunnerOptions{})
	if err := r.Check(t.Context()); err != nil {
		t.Skip(err)
	}
	return r
}

// output runs a program to its end and answers what it wrote to descriptor 3.
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
	text, err := io.ReadAll(read)
	require.NoError(t, err)
	<-started.Done()
	return string(text), started.Err()
}

// profiles are the ways in which engines have programs run.
var profiles = map[string]sandbox.Program{
	"ffmpeg":       {Limits: sandbox.Limits{Memory: 1 << 30, FileBytes: 1 << 20, Processes: 64, Files: 64, CPU: time.Minute}},
	"PocketSphinx": {Limits: sandbox.Limits{Memory: 1 << 30, FileBytes: 1 << 20, Processes: 16, Files: 64}},
	"a server":     {Serves: true, Devices: true, Limits: sandbox.Limits{Processes: 4096}},
	"a trainer":    {Devices: true, Limits: sandbox.Limits{Processes: 4096}},
}

// escapes look for a way out and print what they found, one thing a line, into a file.
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
for file in (secret, blob, bound, "/etc/shadow", "/root/.bashrc", "/proc/1/environ", "/proc/1/root/etc/shadow", f"/proc/{pid}/environ", f"/proc/{parent}/environ"):
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
attempt("capabilities", lambda: [l for l in status.splitlines() if l.startswith("Cap") and int(l.split()[1], 16)] or None)
attempt("privileges", lambda: None if "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status else status)
for file in ("/x", "/usr/x", "/etc/x", "/dev/x", "/proc/sys/kernel/core_pattern", "/run/anneal/x"): attempt(file, lambda: open(file, "w"))
attempt("first process", lambda: ("sent", os.kill(1, 9)))
if os.uname().machine == "x86_64":
    for name, args in (("unshare", (272, 0x10000000)), ("mount", (165, b"x", b"/tmp", b"tmpfs", 0, 0)), ("bpf", (321, 0, 0, 0)), ("keyctl", (250, 0, -3, 0)), ("ptrace", (101, 16, 1, 0, 0)),
        ("io_uring", (425, 8, 0)), ("clone of a user namespace", (56, 0x10000011, 0, 0, 0, 0))): attempt(name, lambda: call(*args))
print("ended", file=out)
`

// TestProgramsDoNotEscape lets a hostile program run in each profile: it reads no key, blob or file
// of another tenant, reaches no network, and signals no other process.
func TestProgramsDoNotEscape(t *testing.T) {
	r := runner(t)
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
			found := filepath.Join(scratch, "found") // no descriptor gets past the relay of a server
			p.Write = scratch
			attempts := escapes
			if os.Getuid() != 0 { // the first process of its sandbox is its own user's, and has its own environment
				attempts = strings.NewReplacer(`"/proc/1/environ", `, "", `attempt("first process", lambda: ("sent", os.kill(1, 9)))`, "").Replace(escapes)
			}
			p.Args = []string{"/usr/bin/python3", "-I", "-c", attempts, found, secret, blob, bound, strconv.Itoa(tcp.Addr().(*net.TCPAddr).Port), unix.Addr().String(),
				strconv.Itoa(os.Getpid()), strconv.Itoa(os.Getppid())}
			p.Read = []string{model}
			if os.Getuid() == 0 { // bound without a right to read it: it belongs to root alone
				p.Programs = []string{bound}
			}
			_, err := output(t, r, p)
			require.NoError(t, err)
			text, err := os.ReadFile(found)
			require.NoError(t, err)
			require.Equal(t, "ended\n", string(text))
		})
	}
	info, err := os.Stat(bound)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

// TestProgramsAreNotRoot looks at a running program from the machine.
func TestProgramsAreNotRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("the server does not run as root")
	}
	r := runner(t)
	mark := fmt.Sprint(1_000_000 + os.Getpid())
	p := profiles["PocketSphinx"]
	p.Args, p.Env = []string{"/bin/sleep", mark}, process.Environment(nil)
	started, err := r.Start(p)
	require.NoError(t, err)
	defer started.Stop(context.Background(), 0)
	status := func() string {
		files, err := filepath.Glob("/proc/[0-9]*/cmdline")
		require.NoError(t, err)
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

// TestFilesOfAProgram gives a program files that only we may open.
func TestFilesOfAProgram(t *testing.T) {
	r := runner(t)
	model, scratch := t.TempDir(), t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(model, "below"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(model, "below", "weights"), []byte("weights "), 0o600))
	text, err := output(t, r, sandbox.Program{Args: []string{"/bin/sh", "-c", `cat "$0"/below/* >&3; echo x >"$0"/y || printf "read-only " >&3; echo note >"$1"/note; cd; pwd >&3; cat /dev/fd/4 >&3`, model, scratch},
		Read: []string{model}, Write: scratch, Files: []*os.File{pipeOf(t, "piped")}})
	require.NoError(t, err)
	require.Equal(t, "weights read-only "+scratch+"\npiped", text)
	note, err := os.ReadFile(filepath.Join(scratch, "note"))
	require.NoError(t, err)
	require.Equal(t, "note\n", string(note))
	require.NoFileExists(t, filepath.Join(model, "y"))
}

// pipeOf is a pipe with some content that ends.
func pipeOf(t *testing.T, content string) *os.File {
	read, write, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _ = read.Close() })
	_, err = write.WriteString(content)
	require.NoError(t, err)
	require.NoError(t, write.Close())
	return read
}

func TestLimitsOfPrograms(t *testing.T) {
	r := runner(t)
	for name, c := range map[string]struct {
		limits sandbox.Limits
		code   string
		says   string
	}{
		"memory":      {sandbox.Limits{Memory: 256 << 20}, "bytearray(1 << 30)", "MemoryError"},
		"a file":      {sandbox.Limits{FileBytes: 1 << 20}, "open('/tmp/x', 'wb').write(bytes(2 << 20))", "File too large"},
		"all files":   {sandbox.Limits{FileBytes: 1 << 20}, "[open(f'/tmp/{i}', 'wb').write(bytes(1 << 19)) for i in range(3)]", "No space left"},
		"time":        {sandbox.Limits{CPU: time.Second}, "while True: pass", "signal: killed"},
		"descriptors": {sandbox.Limits{Files: 20}, "[open('/dev/null') for i in range(30)].append(0)", "Too many open files"},
		"processes":   {sandbox.Limits{Processes: 8}, "import os\nfor i in range(20):\n  if os.fork() == 0: import time; time.sleep(60)", "temporarily unavailable"},
		"a crash":     {sandbox.Limits{}, "import os; os.kill(os.getpid(), 11)", "signal: segmentation fault"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "processes" && os.Getuid() != 0 {
				t.Skip("a user's processes are counted together: those of a program need a user of its own")
			}
			_, err := output(t, r, sandbox.Program{Args: []string{"/usr/bin/python3", "-I", "-c", c.code}, Limits: c.limits})
			require.ErrorContains(t, err, c.says)
		})
	}
}

// TestAProgramIsAskedToEnd: the program itself gets the signal, and has its time.
func TestAProgramIsAskedToEnd(t *testing.T) {
	r := runner(t)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	started, err := r.Start(sandbox.Program{Args: []string{"/bin/sh", "-c", `trap 'echo saved >&3; exit 0' TERM; echo ready >&3; while :; do sleep 0.01; done`},
		Env: process.Environment(nil), Files: []*os.File{write}})
	require.NoError(t, err)
	require.NoError(t, write.Close())
	ready := make([]byte, 6)
	_, err = io.ReadFull(read, ready)
	require.NoError(t, err)
	started.Stop(t.Context(), time.Minute)
	rest, err := io.ReadAll(read)
	require.NoError(t, err)
	require.Equal(t, "saved\n", string(rest))
	require.NoError(t, started.Err())
}

// TestAServerIsReached talks to a server that listens on its own loopback, where nobody else is,
// and which reaches none of the machine's.
func TestAServerIsReached(t *testing.T) {
	r := runner(t)
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
        case "end": os._exit(7)
        case other:
            try: socket.create_connection(("127.0.0.1", int(other)), 1); file.write("connected")
            except OSError as e: file.write("refused")
    file.close(); conn.close()`, port}
	started, err := r.Start(p)
	require.NoError(t, err)
	defer started.Stop(context.Background(), 0)
	ask := func(what string) string {
		var conn net.Conn
		require.Eventually(t, func() bool {
			conn, err = started.Dial(t.Context(), "tcp", "127.0.0.1:"+port)
			return err == nil
		}, 20*time.Second, 10*time.Millisecond, "%v", err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
		_, err = fmt.Fprintln(conn, what)
		require.NoError(t, err)
		answer, err := io.ReadAll(conn)
		require.NoError(t, err)
		return string(answer)
	}
	require.NotEqual(t, "0", ask("user"))
	require.Equal(t, "0 1 2 3 4 5", ask("descriptors"), "its own alone: three, its listener, the connection, the folder that it lists")
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer other.Close()
	require.Equal(t, "refused", ask(strconv.Itoa(other.Addr().(*net.TCPAddr).Port)))
	ask("end")
	<-started.Done()
	require.ErrorContains(t, started.Err(), "exit status 7")
	_, err = started.Dial(t.Context(), "tcp", "127.0.0.1:"+port)
	require.Error(t, err)
}

// TestProgramsWithoutASandbox: what is trusted is started, and nothing else.
func TestProgramsWithoutASandbox(t *testing.T) {
	t.Setenv("PATH", "/nowhere")
	r := sandbox.NewRunner(sandbox.RunnerOptions{})
	err := r.Check(t.Context())
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "--engines-without-sandbox")
	require.ErrorContains(t, err, sandbox.InstallRunner)
	_, err = r.Start(sandbox.Program{Args: []string{"/bin/true"}})
	require.ErrorContains(t, err, "cannot confine")
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

// TestSoftwareOfPrograms lets a script in a Python environment outside of the system's folders run.
func TestSoftwareOfPrograms(t *testing.T) {
	r := runner(t)
	environment := filepath.Join(t.TempDir(), "venv")
	for _, folder := range []string{"bin", "lib"} {
		require.NoError(t, os.MkdirAll(filepath.Join(environment, folder), 0o755))
	}
	require.NoError(t, os.Symlink("/usr/bin/python3", filepath.Join(environment, "bin", "python3")))
	require.NoError(t, os.WriteFile(filepath.Join(environment, "pyvenv.cfg"), []byte("home = /usr/bin\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(environment, "lib", "data"), []byte("data"), 0o644))
	script := filepath.Join(environment, "bin", "serve")
	require.NoError(t, os.WriteFile(script, []byte("#!"+environment+"/bin/python3\nimport os, sys\nos.write(3, (sys.prefix + ' ' + open(sys.prefix + '/lib/data').read()).encode())\n"), 0o755))
	text, err := output(t, r, sandbox.Program{Args: []string{script}})
	require.NoError(t, err)
	require.Equal(t, environment+" data", text)
}

// BenchmarkStart compares what it takes to start a program with and without a sandbox.
func BenchmarkStart(b *testing.B) {
	confined, plain := runner(b), sandbox.NewRunner(sandbox.RunnerOptions{Plain: true})
	p := sandbox.Program{Args: []string{"/bin/true"}, Env: process.Environment(nil), Limits: sandbox.Limits{Memory: 1 << 30}}
	var took [2]time.Duration
	for b.Loop() {
		for i, r := range []*sandbox.Runner{plain, confined} {
			began := time.Now()
			started, err := r.Start(p)
			require.NoError(b, err)
			<-started.Done()
			took[i] += time.Since(began)
		}
	}
	b.ReportMetric(float64(took[0].Microseconds())/1e3/float64(b.N), "plain-ms")
	b.ReportMetric(float64(took[1].Microseconds())/1e3/float64(b.N), "confined-ms")
	runtime.KeepAlive(took)
}
