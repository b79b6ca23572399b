package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"anneal/domain"
	"anneal/engines/process"
)

// RunnerOptions configure a Runner.
type RunnerOptions struct {
	Plain bool     // start programs as the user of this process, without a sandbox
	Files []string // further files and directories that every program may read
}

// A Runner starts the programs of engines, each in its own sandbox. A nil Runner has the default
// options. It is safe for concurrent use.
type Runner struct {
	options RunnerOptions
	next    atomic.Uint32 // number of the next program, which determines the program's user

	mu       sync.Mutex
	launcher *launcher // starts the programs; nil until one was found that works
}

// A launcher starts programs in sandboxes, in the way that works on this machine.
type launcher struct {
	bwrap, prlimit, setpriv string // paths of these programs
	privileged              bool   // bubblewrap runs as root, see confinement
	// first is the user ID of the first program, and the group of all programs; 0 runs them as the
	// user of this process.
	first int
}

// NewRunner returns a Runner. Its method Check reports whether sandboxes work on this machine.
func NewRunner(o RunnerOptions) *Runner { return &Runner{options: o} }

var standard = NewRunner(RunnerOptions{})

// InstallRunner is the command that installs the packages which a Runner needs.
const InstallRunner = "apt-get install bubblewrap util-linux"

// Limits are the resource limits of a program. A field that is zero sets no limit.
type Limits struct {
	Memory int64 // maximum address space of each process, in bytes
	// FileBytes is the maximum size of each written file, and of /tmp, in bytes. If it is 0, the size
	// of files is not limited, and /tmp has 64 MiB.
	FileBytes int64
	// Processes is the maximum number of processes and threads; ignored if the program runs as the
	// user of this process.
	Processes int
	Files     int           // maximum number of open files of each process
	CPU       time.Duration // maximum CPU time of each process
}

// A Program is a program to start, with all that it may access besides the system's programs and
// libraries. Files have the same paths in the sandbox as outside.
type Program struct {
	Args  []string
	Dir   string   // working directory; "" stands for /tmp
	Env   []string // complete environment of the program
	Files []*os.File

	// Programs are further files and directories with software that the program may read, besides
	// that of Args[0].
	Programs []string
	// Read are the files and directories that the program may read; Start makes them readable by
	// the program's group.
	Read []string
	// Write is the directory that the program may write, which is also $HOME; Start changes its
	// owner. "" for none.
	Write  string
	Socket string // Unix socket to which the program may connect; it is below a path of Read
	// The program listens on the loopback interface of its own network namespace, to which only
	// Dial connects.
	Serves  bool
	Network bool // the program uses the network of the machine, and not one of its own; excludes Serves
	Devices bool // the program uses accelerators
	Limits  Limits
	Output  io.Writer // receives all output of the program; may be nil
	// Trusted reports that the program reads no files of accounts, which could exploit it. On a
	// machine on which sandboxes do not work, a trusted program is started without one.
	Trusted bool
}

// A Process is a program that a Runner has started.
type Process struct {
	*process.Process
	relay *relay // nil unless the program is in a sandbox and Serves is true
}

// Confined reports whether the runner starts programs in sandboxes.
func (r *Runner) Confined() bool { return r == nil || !r.options.Plain }

// Check returns a FailedPrecondition error if sandboxes do not work on this machine. A success is
// cached.
func (r *Runner) Check(ctx context.Context) error {
	if !r.Confined() {
		return nil
	}
	_, err := r.getLauncher(ctx)
	return err
}

// getLauncher returns the cached launcher, or creates one.
func (r *Runner) getLauncher(ctx context.Context) (*launcher, error) {
	if r == nil {
		r = standard
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.launcher != nil {
		return r.launcher, nil
	}
	m, err := newLauncher(ctx)
	if err != nil {
		noSandbox := domain.Errorf(domain.FailedPrecondition,
			"this machine cannot run the programs of engines in a sandbox: %v; --engines-without-sandbox "+
				"allows the programs to run without one, with all permissions of the node's user", err)
		noSandbox.Reason = "NO_SANDBOX"
		return nil, noSandbox
	}
	r.launcher = m
	return m, nil
}

// newLauncher returns a launcher that works on this machine. As root, it prefers one without user
// namespaces: in a user namespace, bubblewrap cannot open files that only root can open.
func newLauncher(ctx context.Context) (m *launcher, err error) {
	m = &launcher{}
	for name, path := range map[string]*string{"bwrap": &m.bwrap, "prlimit": &m.prlimit, "setpriv": &m.setpriv} {
		if *path, err = exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("%s is not installed: %s", name, InstallRunner)
		}
	}
	closeOnExec()
	if os.Getuid() != 0 {
		return m, m.probe(ctx)
	}
	if m.first, err = programUsers.of(os.Getpid()); err != nil {
		return nil, err
	}
	m.privileged = true
	if m.probe(ctx) == nil {
		return m, nil
	}
	m.privileged = false
	return m, m.probe(ctx)
}

// probe returns an error if a program cannot run in a sandbox.
func (m *launcher) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	p := Program{Args: []string{"/bin/true"}}
	c, done, err := m.command(&p, m.first)
	if err != nil {
		return err
	}
	defer done()
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Env, cmd.ExtraFiles, cmd.Dir = []string{}, c.Files, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.User}
	// Maximum wait for a process that keeps the output open after the program has exited.
	cmd.WaitDelay = time.Second
	if output, err := cmd.CombinedOutput(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return errors.New(bwrapError(strings.TrimSpace(string(output)), err))
	}
	return nil
}

// Start starts a program in a sandbox, or without one if the options or Program.Trusted allow that.
func (r *Runner) Start(p Program) (*Process, error) {
	if r == nil {
		r = standard
	}
	plain := r.options.Plain
	m, err := (*launcher)(nil), error(nil)
	if !plain {
		m, err = r.getLauncher(context.Background())
		plain = err != nil && p.Trusted
	}
	switch {
	case plain:
		started, err := process.Start(process.Command{Args: p.Args, Dir: p.Dir, Env: p.Env, Files: p.Files,
			Output: p.Output})
		if err != nil {
			return nil, err
		}
		return &Process{Process: started}, nil
	case err != nil:
		return nil, err
	}
	return r.startConfined(m, p)
}

func (r *Runner) startConfined(m *launcher, p Program) (_ *Process, err error) {
	user := m.first
	if user != 0 {
		user += int(r.next.Add(1)-1) % maxPrograms
	}
	p.Programs = append(append(softwareDirs(p.Args[0]), p.Programs...), r.options.Files...)
	if err := m.grant(&p, user); err != nil {
		return nil, err
	}
	var relay *relay
	if p.Serves {
		if relay, err = newRelay(&p); err != nil {
			return nil, err
		}
		defer relay.closeTheirs()
	}
	info, infoWriter, err := os.Pipe()
	if err != nil {
		relay.close()
		return nil, err
	}
	defer infoWriter.Close()
	// The method command passes the last file to bubblewrap as --info-fd.
	p.Files = append(p.Files[:len(p.Files):len(p.Files)], infoWriter)
	c, done, err := m.command(&p, user)
	if err == nil {
		defer done()
		child := make(chan int, 1)
		c.Output, c.Interrupt = p.Output, func() bool { return interrupt(child) }
		var started *process.Process
		if started, err = process.Start(c); err == nil {
			go func() { child <- childPID(info) }()
			go func() {
				<-started.Done()
				relay.close()
			}()
			return &Process{started, relay}, nil
		}
	}
	_ = info.Close() // the earlier error is returned instead
	relay.close()
	return nil, err
}

// childPID reads the ID of the first process in the sandbox from the output of bubblewrap; 0 if
// that fails.
func childPID(info *os.File) int {
	defer info.Close()
	var output struct {
		PID int `json:"child-pid"`
	}
	if json.NewDecoder(info).Decode(&output) != nil {
		return 0
	}
	return output.PID
}

// interrupt sends SIGTERM to the program, and reports whether that succeeded. The program is a
// child of the first process in the sandbox, whose ID is in first. If bubblewrap itself received
// the signal, it would exit immediately and kill the program.
func interrupt(first chan int) bool {
	pid := <-first
	first <- pid
	if pid == 0 {
		return false
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return false
	}
	sent := false
	for _, field := range strings.Fields(string(children)) {
		if child, err := strconv.Atoi(field); err == nil {
			sent = syscall.Kill(child, syscall.SIGTERM) == nil || sent
		}
	}
	return sent
}

// texts returns the contents of generated system files, from which programs read the names of their
// user and host.
func (m *launcher) texts(user int) map[string]string {
	id, group := nobodyID, nobodyID
	if m.privileged {
		id, group = user, m.first
	}
	return map[string]string{
		"/etc/passwd":        fmt.Sprintf("root:x:0:0:root:/:/bin/false\nanneal:x:%d:%d::/tmp:/bin/false\n", id, group),
		"/etc/group":         fmt.Sprintf("root:x:0:\nanneal:x:%d:\n", group),
		"/etc/hosts":         "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
		"/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
	}
}

const nobodyID = 65534

// command returns the command that starts a program in a sandbox. If p.Files is not
// empty, bubblewrap writes its child's process ID to the last file. done closes the files that only
// bubblewrap reads.
func (m *launcher) command(p *Program, user int) (c process.Command, done func(), err error) {
	c = process.Command{Files: p.Files, Dir: "/", Sandboxed: true}
	var opened []*os.File
	done = func() {
		for _, f := range opened {
			_ = f.Close()
		}
	}
	defer func() {
		if err != nil {
			done()
		}
	}()
	next := func(f *os.File) int {
		opened, c.Files = append(opened, f), append(c.Files, f)
		return 2 + len(c.Files)
	}
	v := confinement{privileged: m.privileged, network: p.Network, tmp: 64 << 20, dir: "/tmp", texts: map[string]int{}}
	if p.Limits.FileBytes > 0 {
		v.tmp = p.Limits.FileBytes
	}
	if p.Dir != "" {
		v.dir = p.Dir
	}
	for name, text := range m.texts(user) {
		f, err := memoryFile([]byte(text))
		if err != nil {
			return c, nil, err
		}
		v.texts[name] = next(f)
	}
	if v.binds, err = p.binds(); err != nil {
		return c, nil, err
	}
	var groups []string
	if p.Devices {
		v.devices, groups = accelerators()
	}
	filter, err := filterFileOf(extraCalls{netlink: p.Serves || p.Devices, memory: p.Devices})
	if err != nil {
		return c, nil, err
	}
	args, err := v.args(next(filter))
	if err != nil {
		return c, nil, err
	}
	c.Args = append([]string{m.bwrap}, args...)
	if len(p.Files) > 0 {
		c.Args = append(c.Args, "--info-fd", strconv.Itoa(2+len(p.Files)))
	}
	c.Args = append(append(c.Args, "--"), m.limits(p.Limits)...)
	if m.privileged {
		id, group := strconv.Itoa(user), strconv.Itoa(m.first)
		c.Args = append(c.Args, m.setpriv, "--reuid", id, "--regid", group, "--inh-caps", "-all",
			"--bounding-set", "-all", "--no-new-privs")
		if len(groups) > 0 {
			c.Args = append(c.Args, "--groups", strings.Join(groups, ","))
		} else {
			c.Args = append(c.Args, "--clear-groups")
		}
		c.Args = append(c.Args, "--")
	} else if user != 0 {
		c.User = &syscall.Credential{Uid: uint32(user), Gid: uint32(m.first)}
	}
	c.Args, c.Env = append(c.Args, p.Args...), p.environment()
	return c, done, nil
}

// limits returns the beginning of a command line that sets the limits, which cannot exceed those of
// this process.
func (m *launcher) limits(l Limits) []string {
	args := []string{m.prlimit, "--core=0"}
	add := func(name string, resource int, value int64) {
		var own syscall.Rlimit
		if syscall.Getrlimit(resource, &own) == nil && uint64(value) > own.Max {
			value = int64(own.Max)
		}
		if value > 0 {
			args = append(args, fmt.Sprintf("--%s=%d", name, value))
		}
	}
	add("as", syscall.RLIMIT_AS, l.Memory)
	add("fsize", syscall.RLIMIT_FSIZE, l.FileBytes)
	add("nofile", syscall.RLIMIT_NOFILE, int64(l.Files))
	add("cpu", syscall.RLIMIT_CPU, int64(l.CPU/time.Second))
	if m.first != 0 { // without users of its own, the limit would count all processes of this user
		const processes = 6 // RLIMIT_NPROC
		add("nproc", processes, int64(l.Processes))
	}
	return append(args, "--")
}

// environment returns the environment of the program, with $HOME set to the directory that it may
// write.
func (p *Program) environment() []string {
	home := "/tmp"
	if p.Write != "" {
		home = p.Write
	}
	env := p.Env[:len(p.Env):len(p.Env)]
	if userHome, err := os.UserHomeDir(); err == nil {
		env = append(env, "PYTHONUSERBASE="+filepath.Join(userHome, ".local"))
	}
	return append(env, "HOME="+home, "TMPDIR="+home, "USER=anneal", "LOGNAME=anneal")
}

// binds returns the bind mounts of the program's files. A path inside of another path comes after
// that one.
func (p *Program) binds() (binds []bind, err error) {
	for _, path := range append(p.Programs[:len(p.Programs):len(p.Programs)], p.Read...) {
		if path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		contains := func(b bind) bool { return path == b.at || strings.HasPrefix(path, b.at+"/") }
		if !inSystemDir(path) && !slices.ContainsFunc(binds, contains) {
			binds = append(binds, bind{from: path, at: path})
		}
	}
	if p.Serves {
		program, err := os.Executable()
		if err != nil {
			return nil, err
		}
		binds = append(binds, bind{from: program, at: relayProgram})
	}
	if p.Write != "" {
		binds = append(binds, bind{from: p.Write, at: p.Write, write: true})
	}
	return binds, nil
}
