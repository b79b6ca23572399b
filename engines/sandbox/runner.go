package sandbox

import (
	"bytes"
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

// RunnerOptions say how programs are confined. A zero field takes its default.
type RunnerOptions struct {
	// Plain starts programs as plain processes of this user, with nothing between them and all that
	// this user may do.
	Plain bool
	Files []string // further files and folders that every program may read, beside its own
}

// A Runner starts the programs that engines need, each confined. A nil Runner has the default
// options. It is safe for concurrent use.
type Runner struct {
	options RunnerOptions
	next    atomic.Uint32 // user of the next program

	mu   sync.Mutex
	made *made // what Check found; nil before
}

// made is how this machine makes sandboxes.
type made struct {
	bwrap, prlimit, setpriv string
	privileged              bool // by root, who changes the user; otherwise in a user namespace
	first                   int  // user ID for the first program; 0 is our own. It is the group of all.
}

// NewRunner makes a runner; Check says whether it works on this machine.
func NewRunner(o RunnerOptions) *Runner { return &Runner{options: o} }

var standard = NewRunner(RunnerOptions{})

// InstallRunner is what a machine needs to confine programs.
const InstallRunner = "apt-get install bubblewrap util-linux"

// Limits bound a program. A zero field is no limit.
type Limits struct {
	Memory    int64         // bytes that each of its processes may map
	FileBytes int64         // of a file that it writes; also of its /tmp, by default 64 MiB
	Processes int           // and threads; only where the program has a user of its own
	Files     int           // that each process may have open
	CPU       time.Duration // of each process
}

// A Program is what a Runner starts, and all that it may reach beside the system's programs and
// libraries. It sees files at the paths that they have on the machine.
type Program struct {
	Args  []string
	Dir   string   // working directory; default /tmp
	Env   []string // the whole of its environment
	Files []*os.File

	Programs []string // files and folders of software that it may read, beside that of Args[0]
	Read     []string // files and folders of ours that it may read: its group is given the right to
	Write    string   // folder that it may write, which becomes its own; "" is none. It is its home
	Socket   string   // Unix socket of ours that it connects to, below one of Read
	Serves   bool     // it listens on its own loopback, where only Dial reaches it
	Devices  bool     // it may use the machine's accelerators
	Limits   Limits

	// Trusted programs read no file of a tenant that could take them over. They are started as plain
	// processes where there is no sandbox.
	Trusted bool
}

// A Process is a program that a Runner started.
type Process struct {
	*process.Process
	relay *relay // of one that serves; nil where it listens on the machine's own loopback
}

// Confined tells whether the runner puts a sandbox around programs, where it can.
func (r *Runner) Confined() bool { return r == nil || !r.options.Plain }

// Check tells what the machine lacks to confine programs, as FailedPrecondition; nil when it lacks
// nothing or programs are started plain. What was found once is not looked for again.
func (r *Runner) Check(ctx context.Context) error {
	if !r.Confined() {
		return nil
	}
	_, err := r.make(ctx)
	return err
}

func (r *Runner) make(ctx context.Context) (*made, error) {
	if r == nil {
		r = standard
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made != nil {
		return r.made, nil
	}
	m, err := r.look(ctx)
	if err != nil {
		fault := domain.Errorf(domain.FailedPrecondition, "this machine cannot confine the programs of engines: %v; or start the node with "+
			"--engines-without-sandbox, which lets them read, change and send whatever its user may", err)
		fault.Reason = "NO_SANDBOX"
		return nil, fault
	}
	r.made = m
	return m, nil
}

// look finds a way to make sandboxes that works: as root without a user namespace, since files of
// ours lie where no other user gets to, and otherwise with one.
func (r *Runner) look(ctx context.Context) (m *made, err error) {
	m = &made{}
	for name, path := range map[string]*string{"bwrap": &m.bwrap, "prlimit": &m.prlimit, "setpriv": &m.setpriv} {
		if *path, err = exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("%s is not installed: %s", name, InstallRunner)
		}
	}
	keepDescriptors()
	if os.Getuid() != 0 {
		return m, m.try(ctx)
	}
	if m.first, err = helperUsers.of(os.Getpid()); err != nil {
		return nil, err
	}
	m.privileged = true
	if m.try(ctx) == nil {
		return m, nil
	}
	m.privileged = false
	return m, m.try(ctx)
}

// try runs a program that does nothing.
func (m *made) try(ctx context.Context) error {
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
	if said, err := cmd.CombinedOutput(); err != nil {
		return errors.New(refusal(strings.TrimSpace(string(said)), err))
	}
	return nil
}

// Start starts a program.
func (r *Runner) Start(p Program) (*Process, error) {
	if r == nil {
		r = standard
	}
	plain := r.options.Plain
	m, err := (*made)(nil), error(nil)
	if !plain {
		m, err = r.make(context.Background())
		plain = err != nil && p.Trusted
	}
	switch {
	case plain:
		started, err := process.Start(process.Command{Args: p.Args, Dir: p.Dir, Env: p.Env, Files: p.Files})
		if err != nil {
			return nil, err
		}
		return &Process{Process: started}, nil
	case err != nil:
		return nil, err
	}
	return r.confined(m, p)
}

func (r *Runner) confined(m *made, p Program) (_ *Process, err error) {
	user := m.first
	if user != 0 {
		user += int(r.next.Add(1)-1) % mostHelpers
	}
	p.Programs = append(append(programFiles(p.Args[0]), p.Programs...), r.options.Files...)
	if err := m.grant(&p, user); err != nil {
		return nil, err
	}
	var through *relay
	if p.Serves {
		if through, err = newRelay(&p); err != nil {
			return nil, err
		}
		defer through.started()
	}
	info, told, err := os.Pipe()
	if err != nil {
		through.close()
		return nil, err
	}
	defer told.Close()
	p.Files = append(p.Files[:len(p.Files):len(p.Files)], told) // the last but the filter
	c, done, err := m.command(&p, user)
	if err == nil {
		defer done()
		inside := make(chan int, 1)
		c.Interrupt = func() bool { return interrupt(inside) }
		var started *process.Process
		if started, err = process.Start(c); err == nil {
			go func() { inside <- childPID(info) }()
			go func() {
				<-started.Done()
				through.close()
			}()
			return &Process{started, through}, nil
		}
	}
	_ = info.Close() // the first error is told
	through.close()
	return nil, err
}

// childPID reads the ID of the process that is the first of the sandbox; 0 where there is none.
func childPID(info *os.File) int {
	defer info.Close()
	var told struct {
		PID int `json:"child-pid"`
	}
	if json.NewDecoder(info).Decode(&told) != nil {
		return 0
	}
	return told.PID
}

// interrupt asks the program to end that the first process of a sandbox started: bubblewrap itself
// would end at once, and the program with it.
func interrupt(inside chan int) bool {
	pid := <-inside
	inside <- pid
	if pid == 0 {
		return false
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return false
	}
	asked := false
	for _, field := range strings.Fields(string(children)) {
		if child, err := strconv.Atoi(field); err == nil {
			asked = syscall.Kill(child, syscall.SIGTERM) == nil || asked
		}
	}
	return asked
}

// texts are files of the system that programs look into to learn who and where they are.
func (m *made) texts(user int) map[string]string {
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

// command is a program with its sandbox, whose last descriptor is where bubblewrap tells its process
// ID. done closes what only bubblewrap reads.
func (m *made) command(p *Program, user int) (c process.Command, done func(), err error) {
	c = process.Command{Files: p.Files, Dir: "/", Sandboxed: true}
	var opened []*os.File
	done = func() {
		for _, f := range opened {
			_ = f.Close() // it was read
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
	v := view{privileged: m.privileged, tmp: 64 << 20, dir: "/tmp", texts: map[string]int{}}
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
	filter, err := filterOf(calls{netlink: p.Serves || p.Devices, memory: p.Devices})
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
		as, group := strconv.Itoa(user), strconv.Itoa(m.first)
		c.Args = append(c.Args, m.setpriv, "--reuid", as, "--regid", group, "--inh-caps", "-all", "--bounding-set", "-all", "--no-new-privs")
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

// limits are the words that bound a program. What this process may not have itself, it cannot give.
func (m *made) limits(l Limits) []string {
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
	if m.first != 0 { // another user's count is what that one runs elsewhere
		const processes = 6 // RLIMIT_NPROC
		add("nproc", processes, int64(l.Processes))
	}
	return append(args, "--")
}

// environment is the program's, with the folders that it may write.
func (p *Program) environment() []string {
	home := "/tmp"
	if p.Write != "" {
		home = p.Write
	}
	env := p.Env[:len(p.Env):len(p.Env)]
	if was, err := os.UserHomeDir(); err == nil {
		env = append(env, "PYTHONUSERBASE="+filepath.Join(was, ".local"))
	}
	return append(env, "HOME="+home, "TMPDIR="+home, "USER=anneal", "LOGNAME=anneal")
}

// binds are the files that the program sees, with those that lie in others after them.
func (p *Program) binds() (binds []bind, err error) {
	for _, path := range append(p.Programs[:len(p.Programs):len(p.Programs)], p.Read...) {
		if path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		shown := func(b bind) bool { return path == b.at || strings.HasPrefix(path, b.at+"/") }
		if !ofSystem(path) && !slices.ContainsFunc(binds, shown) {
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

// ofSystem tells whether a path lies where every sandbox shows it.
func ofSystem(path string) bool {
	for _, folder := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"} {
		if path == folder || strings.HasPrefix(path, folder+"/") {
			return true
		}
	}
	return false
}

// programFiles are the folders outside of the system's that a program is in, with those of the
// interpreter that its first line names and of the files that it links to. Of a Python environment
// it is the whole environment.
func programFiles(program string) (folders []string) {
	path, err := exec.LookPath(program)
	seen := map[string]bool{}
	for queue := []string{path}; err == nil && len(queue) > 0; queue = queue[1:] {
		path := queue[0]
		if path, err = filepath.Abs(path); err != nil || seen[path] || ofSystem(path) {
			continue
		}
		seen[path] = true
		folders = append(folders, softwareOf(path))
		if config, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(path)), "pyvenv.cfg")); err == nil {
			for line := range strings.Lines(string(config)) {
				if key, home, _ := strings.Cut(line, "="); strings.TrimSpace(key) == "home" {
					queue = append(queue, filepath.Join(strings.TrimSpace(home), "python3"))
				}
			}
		}
		if target, err := os.Readlink(path); err == nil {
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(path), target)
			}
			queue = append(queue, target)
		} else if interpreter := interpreterOf(path); interpreter != "" {
			queue = append(queue, interpreter)
		}
	}
	return folders
}

// softwareOf is what a program needs: the folder of its environment, or its own; the program alone
// where other things lie beside it.
func softwareOf(path string) string {
	folder := filepath.Dir(path)
	if above := filepath.Dir(folder); filepath.Base(folder) == "bin" {
		libraries, _ := filepath.Glob(filepath.Join(above, "lib", "python3*")) // the pattern is a constant
		if _, err := os.Stat(filepath.Join(above, "pyvenv.cfg")); err == nil || len(libraries) > 0 && filepath.Base(above) != ".local" {
			return above
		}
	}
	if home, err := os.UserHomeDir(); err != nil || folder == "/" || folder == os.TempDir() ||
		strings.HasPrefix(home+"/", folder+"/") {
		return path
	}
	return folder
}

// interpreterOf is the program that a script's first line names; "" of what is none.
func interpreterOf(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	head := make([]byte, 256)
	n, _ := io.ReadFull(file, head)
	line, _, _ := bytes.Cut(head[:n], []byte("\n"))
	words := strings.Fields(strings.TrimPrefix(string(line), "#!"))
	if !bytes.HasPrefix(line, []byte("#!")) || len(words) == 0 {
		return ""
	}
	if filepath.Base(words[0]) == "env" && len(words) > 1 {
		if found, err := exec.LookPath(words[len(words)-1]); err == nil {
			return found
		}
	}
	return words[0]
}
