package sandbox_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/engines/sandbox"
)

// attempts is the start of an evaluator's code. Each test appends a function hostile, which calls
// attempt for each escape. The reason of the evaluator's invalid score lists the escapes that
// succeeded.
const attempts = `
import ctypes, os, signal, socket, subprocess, sys
found = []
def attempt(what, act):
    try:
        answer = act()
        if answer is not False and answer is not None: found.append(f"{what}: {answer!r}"[:200])
    except (OSError, subprocess.SubprocessError, MemoryError) as e: print(what, "refused:", e)
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    """Returns the result of a system call, False if it fails."""
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    if result == -1:
        print(number, "refused:", os.strerror(ctypes.get_errno()))
        return False
    return ("done", result)
def read(path): return open(path, "rb").read(100)
def write(path):
    with open(path, "r+") as f: f.write("1")
    return "written"
def evaluate(messages, **row):
    hostile(**row)
    return {"score": 0, "is_score_valid": False, "reason": "found: " + "; ".join(found)}
`

// TestEvaluatorsDoNotEscape checks that all escapes that a hostile evaluator attempts fail.
func TestEvaluatorsDoNotEscape(t *testing.T) {
	s := newSandbox(t, sandbox.Options{RowTime: time.Minute})
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = tcp.Close() })
	dir, err := os.MkdirTemp("", "anneal-escape-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	unix, err := net.Listen("unix", filepath.Join(dir, "socket"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close() })
	abstract, err := net.Listen("unix", "@anneal-escape-"+filepath.Base(dir))
	require.NoError(t, err)
	t.Cleanup(func() { _ = abstract.Close() })
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("canary"), 0o644))
	t.Setenv("ANNEAL_CANARY", "canary")
	targets := row{
		"messages": rowOf("x")["messages"], "port": tcp.Addr().(*net.TCPAddr).Port,
		"socket": unix.Addr().String(), "name": "\x00" + abstract.Addr().String()[1:],
		"secret": filepath.Join(dir, "secret"), "pid": os.Getpid(), "parent": os.Getppid(),
	}
	for name, hostile := range map[string]string{
		"network": `
    attempt("loopback", lambda: socket.create_connection(("127.0.0.1", row["port"]), 1))
    attempt("internet", lambda: socket.create_connection(("192.0.2.1", 80), 1))
    attempt("names", lambda: socket.getaddrinfo("example.com", 80))
    for family in (16, 17, 38, 40, 21, 29):
        kind = socket.SOCK_DGRAM if family != 40 else socket.SOCK_STREAM
        attempt(f"family {family}", lambda: socket.socket(family, kind))
    def unix(path):
        s = socket.socket(socket.AF_UNIX)
        s.connect(path)
        return "connected"
    attempt("unix", lambda: unix(row["socket"]))
    attempt("abstract", lambda: unix(row["name"]))
    attempt("interfaces", lambda: [n for _, n in socket.if_nameindex() if n != "lo"] or None)`,
		"files": `
    for path in (row["secret"], "/etc/passwd", "/etc/shadow", "/etc/hostname", "/root", "/home", "/var", "/run",
            "/proc/1/root/etc/passwd", "/proc/self/root/etc/passwd", "/sys", "/boot"):
        attempt(path, lambda: os.listdir(path) if os.path.isdir(path) else read(path))
    for path in ("/code/main.py", "/usr/bin/env", "/dev/sda", "/dev/mem", "/dev/kmsg",
            "/proc/sysrq-trigger", "/proc/kcore", "/proc/kmsg"):
        attempt(path, lambda: write(path))
    for path in ("/x", "/code/x", "/usr/x", "/dev/x", "/proc/x"): attempt(path, lambda: open(path, "w"))
    attempt("hard link", lambda: os.link("/usr/bin/env", "/tmp/env"))`,
		"environment": `
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            for file in ("environ", "cmdline", "maps", "mem"):
                attempt(f"{file} of {pid}",
                    lambda: b"canary" in open(f"/proc/{pid}/{file}", "rb").read(100000) or None)
    attempt("variables", lambda: [k for k in os.environ if "ANNEAL" in k or "KEY" in k or "SECRET" in k] or None)`,
		"processes": `
    attempt("others", lambda: [p for p in os.listdir("/proc") if p.isdigit() and int(p) > 50] or None)
    for pid in (row["pid"], row["parent"]):
        attempt("signal", lambda: ("killed", os.kill(pid, 0)))
        attempt("trace", lambda: os.readlink(f"/proc/{pid}/exe"))
    child = os.fork()
    if child == 0:
        signal.pause()
    attempt("memory of a child", lambda: open(f"/proc/{child}/mem", "r+b"))
    attempt("ptrace", lambda: call(101 if os.uname().machine == "x86_64" else 117, 16, child, 0, 0))
    os.kill(child, 9)`,
		"parent": `
    program = ("import os\nfor file in ('mem', 'environ', 'maps', 'fd/3'):\n"
        "  try: print(file, open(f'/proc/{os.getppid()}/{file}', 'rb').name)\n  except OSError: pass")
    attempt("access by a child",
        lambda: subprocess.run([sys.executable, "-I", "-c", program], capture_output=True).stdout or None)`,
		"kernel": `
    x = os.uname().machine == "x86_64"
    buffer = ctypes.create_string_buffer(4096)
    for name, number, arm, args in (
        ("keyctl", 250, 219, (0, -3, 0)), ("add_key", 248, 217, (buffer, buffer, buffer, 1, -3)),
        ("bpf", 321, 280, (0, buffer, 72)), ("perf_event_open", 298, 241, (buffer, 0, -1, -1, 0)),
        ("io_uring_setup", 425, 425, (8, buffer)), ("userfaultfd", 323, 282, (1,)),
        ("process_vm_readv", 310, 270, (1, buffer, 1, buffer, 1, 0)), ("pidfd_getfd", 438, 438, (3, 0, 0)),
        ("unshare", 272, 97, (0x10000000,)), ("mount", 165, 40, (buffer, buffer, buffer, 0, 0)),
        ("setns", 308, 268, (3, 0)), ("chroot", 161, 51, (b"/tmp",)),
        ("clone of a user namespace", 56, 220, (0x10000011, 0, 0, 0, 0)), ("clone3", 435, 435, (buffer, 88)),
        ("setuid", 105, 146, (0,)), ("syslog", 103, 116, (3, buffer, 100)),
        ("open_by_handle_at", 304, 265, (3, buffer, 0)), ("personality", 135, 92, (0x0040000,)),
        ("memfd_secret", 447, 447, (0,)), ("sethostname", 170, 161, (buffer, 1)),
    ):
        attempt(name, lambda: call(number if x else arm, *args))
    if x: attempt("32 bits", lambda: subprocess.run(["/usr/bin/linux32", "/bin/true"]).returncode == 0 or None)`,
		"system settings": `
    for at, _, files in os.walk("/proc/sys"):
        for file in files: attempt(file, lambda: write(os.path.join(at, file)))
    for path in ("/proc/self/uid_map", "/proc/self/gid_map", "/proc/self/loginuid"):
        attempt(path, lambda: write(path))`,
		"setuid programs": `
    for program in ("su", "mount", "passwd", "newgrp", "sudo"):
        for at in ("/usr/bin/", "/bin/"):
            if os.path.exists(at + program):
                run = lambda: subprocess.run([at + program, "-c", "id"], capture_output=True,
                    stdin=subprocess.DEVNULL, timeout=2)
                attempt(program, lambda: b"uid=0" in run().stdout or None)
    status = open("/proc/thread-self/status").read() if os.access("/proc/thread-self/status", os.R_OK) else ""
    attempt("capabilities", lambda: [line for line in status.splitlines()
        if line.startswith(("CapEff", "CapBnd")) and int(line.split()[1], 16)] or None)
    attempt("user", lambda: None if os.getuid() == 65534 else os.getuid())`,
		"the terminal": `
    import fcntl
    attempt("TIOCSTI", lambda: fcntl.ioctl(0, 0x5412, b"x"))
    attempt("tty", lambda: open("/dev/tty"))`,
	} {
		t.Run(name, func(t *testing.T) {
			e := open(t, s, codeOf(t, "main.py", attempts+"def hostile(**row):"+hostile+"\n"))
			got := score(t, e, targets)[0]
			require.Equal(t, "found: ", got.Reason, "%s%s", got.Stdout, got.Stderr)
		})
	}
}

// TestResourceLimits checks that a row whose code exhausts a resource ends within its timeout, and
// that the next row is scored.
func TestResourceLimits(t *testing.T) {
	limits := sandbox.Options{RowTime: 3 * time.Second, Memory: 128 << 20, FileBytes: 8 << 20, Processes: 12}
	shortTimeout := newSandbox(t, limits)
	limits.RowTime = time.Minute
	longTimeout := newSandbox(t, limits)
	for name, c := range map[string]struct {
		hostile string
		reason  string // expected reason of the invalid score
		valid   bool
	}{
		"processes": {"while True:\n      try: os.fork()\n      except OSError: pass", "the code took longer than 3s",
			false},
		"count": {"n = 0\n    try:\n      while n < 200:\n        if os.fork() == 0:\n          import time; " +
			"time.sleep(60)\n        n += 1\n    except OSError: pass\n    return {'score': 0, 'is_score_valid': False, " +
			"'reason': f'{n < 12}'}", "True", false},
		"memory":         {"x = []\n    while True: x.append(bytearray(1 << 20))", "MemoryError", false},
		"one large text": {"return {'score': 1, 'reason': 'x' * (50 << 20)}", "", true},
		"output":         {"for _ in range(2000): print('x' * 10000)\n    return 1", "", true},
		"raw output":     {"for _ in range(200): os.write(1, b'y' * 10000)\n    return 1", "", true},
		"disk":           {"f = open('/tmp/x', 'wb')\n    while True: f.write(bytes(1 << 20))", "OSError", false},
		"shared memory": {"i = 0\n    while True:\n      i += 1\n      open(f'/dev/shm/{i}', 'wb').write(bytes(1 << 20))",
			"OSError", false},
		"descriptors": {"x = []\n    while True: x.append(open('/dev/null'))", "Too many open files", false},
		"threads": {"import threading, time\n    while True: threading.Thread(target=time.sleep, args=(60,), " +
			"daemon=True).start()", "RuntimeError", false},
		"time": {"import time\n    time.sleep(1000)", "the code took longer than 3s", false},
		"a signal": {"import signal\n    for n in range(1, 65):\n      try: signal.signal(n, signal.SIG_IGN)\n      " +
			"except (OSError, ValueError): pass\n    while True: pass", "the code took longer than 3s", false},
		"depth": {"import sys\n    sys.setrecursionlimit(1 << 30)\n    f = lambda: f()\n    f()", "", false},
		"a forged response": {"os.write(1, b'{\"id\": 1, \"score\": 1, \"valid\": true}\\n')\n    for n in range(3, " +
			"10):\n      try: os.write(n, b'{\"id\": 1, \"score\": 1, \"valid\": true}\\n')\n      except OSError: pass\n    " +
			"return 0",
			"the code wrote to file descriptor 3, which is reserved for responses: use print for output", false},
		"an endless response": {"for n in range(3, 10):\n      try:\n        while True: os.write(n, b'x' * 100000)\n      " +
			"except OSError: pass\n    return 0", "the response exceeds", false},
		"a closed socket": {"os.closerange(3, 50)\n    return 1", "the sandbox process exited", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := longTimeout
			if strings.Contains(c.reason, "longer than") {
				s = shortTimeout
			}
			e := open(t, s, codeOf(t, "main.py",
				"import os\ndef evaluate(messages):\n    if messages[-1]['content'] == 'next': return 0.5\n    "+c.hostile))
			scores := score(t, e, rowOf("now"), rowOf("next"))
			require.Equal(t, c.valid, scores[0].Valid, "%v", scores[0])
			require.Contains(t, scores[0].Reason, c.reason)
			require.LessOrEqual(t, len(scores[0].Reason), 3000)
			require.LessOrEqual(t, len(scores[0].Stdout)+len(scores[0].Stderr), 40<<10)
			require.Equal(t, 0.5, scores[1].Value, "%v", scores[1])
		})
	}
}

// TestCloseKillsDescendants checks that Close kills all processes that the code started.
func TestCloseKillsDescendants(t *testing.T) {
	s := newSandbox(t, sandbox.Options{})
	mark := fmt.Sprintf("%d", 1_000_000+os.Getpid())
	e := open(t, s, codeOf(t, "main.py", "import subprocess\ndef evaluate(messages):\n  subprocess.Popen(['/bin/sh', "+
		"'-c', 'setsid sleep "+mark+" & sleep "+mark+"'], start_new_session=True)\n  return 1"))
	require.True(t, score(t, e, rowOf("x"))[0].Valid)
	require.NoError(t, e.Close())
	out, err := exec.Command("ps", "-eo", "args").Output()
	require.NoError(t, err)
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		require.NotContains(t, lines.Text(), "sleep "+mark)
	}
}

// TestEvaluationsAreIsolated checks that concurrent evaluations share neither files nor
// processes.
func TestEvaluationsAreIsolated(t *testing.T) {
	s := newSandbox(t, sandbox.Options{})
	code := codeOf(t, "main.py", `
import os
def evaluate(messages):
    if messages[-1]["content"] == "write":
        open("/tmp/note", "w").write("x")
        return 1
    seen = [p for p in os.listdir("/proc") if p.isdigit()]
    return {"score": 0, "is_score_valid": False, "reason": f"{os.path.exists('/tmp/note')} {len(seen) <= 3}"}`)
	one, two := open(t, s, code), open(t, s, code)
	require.True(t, score(t, one, rowOf("write"))[0].Valid)
	require.Equal(t, "False True", score(t, two, rowOf("look"))[0].Reason)
	if os.Getuid() == 0 {
		out, err := exec.Command("ps", "-eo", "uid,args").Output()
		require.NoError(t, err)
		for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
			if uid, args, _ := strings.Cut(strings.TrimSpace(lines.Text()), " "); strings.Contains(args, "bwrap ") &&
				strings.Contains(args, " /code ") {
				require.NotEqual(t, "0", uid, "bubblewrap runs as root")
			}
		}
	}
}
