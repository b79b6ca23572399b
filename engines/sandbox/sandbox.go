// Package sandbox confines what tenants' code and files reach: evaluators, which
// are Python code, and the programs that engines start (a Runner). Each runs in
// bubblewrap as a user that owns nothing, without network, files, processes or
// memory of anybody else.
package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
)

// Options bound what code may do. A zero field takes its default.
type Options struct {
	// Plain runs code as plain processes of this user, with nothing between
	// them and all that this user may do: for people who run nobody's code but
	// their own, on machines where there is no bubblewrap.
	Plain bool
	Dir   string // for copies of code, where every user can look; default the system's folder for temporary files

	RowTime   time.Duration // for one row; default 10 s
	OpenTime  time.Duration // to start and import the code; default 30 s
	CPUTime   time.Duration // of each process of a worker; default 5 min
	Memory    int64         // bytes that each process of a worker may map; default 512 MiB
	Processes int           // and threads, of a worker; default 16
	Files     int           // that each process may have open; default 256
	FileBytes int64         // of a file, and of all of them together; default 64 MiB
	Output    int           // bytes kept of what is printed to each of stdout and stderr for a row; default 16 KiB
	Rows      int           // that a worker scores before the next one takes its place; default 1000
	Workers   int           // at one time; default 32
}

func (o Options) filled() Options {
	o.Dir = cmp.Or(o.Dir, os.TempDir())
	o.RowTime, o.OpenTime, o.CPUTime = cmp.Or(o.RowTime, 10*time.Second), cmp.Or(o.OpenTime, 30*time.Second), cmp.Or(o.CPUTime, 5*time.Minute)
	o.Memory, o.FileBytes = cmp.Or(o.Memory, 512<<20), cmp.Or(o.FileBytes, 64<<20)
	o.Processes, o.Files, o.Output = cmp.Or(o.Processes, 16), cmp.Or(o.Files, 256), cmp.Or(o.Output, 16<<10)
	o.Rows, o.Workers = cmp.Or(o.Rows, 1000), cmp.Or(o.Workers, mostWorkers)
	o.Workers = min(o.Workers, mostWorkers)
	return o
}

// A Sandbox runs evaluators' code. It is safe for concurrent use.
type Sandbox struct {
	options Options
	users   users

	mu     sync.Mutex
	python string // found and tried; "" before
}

// New makes a sandbox; Check says whether it works on this machine.
func New(o Options) *Sandbox {
	o = o.filled()
	return &Sandbox{options: o, users: newUsers(o.Workers)}
}

// Install is what a machine needs for evaluators.
const Install = "apt-get install bubblewrap python3"

// Check tells what the machine lacks to run code, as Unavailable; nil when it
// lacks nothing. What was found once is not looked for again.
func (s *Sandbox) Check(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.python != "" {
		return nil
	}
	python, err := findPython(s.options.Plain)
	if err != nil {
		return err
	}
	sweep(s.options.Dir, time.Now())
	keepDescriptors()
	if !s.options.Plain {
		if err := s.try(ctx, python); err != nil {
			return err
		}
	}
	s.python = python
	return nil
}

// findPython looks where programs of the system are: in a sandbox there are no others.
func findPython(plain bool) (string, error) {
	for _, path := range []string{"/usr/bin/python3", "/usr/local/bin/python3"} {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	if path, err := exec.LookPath("python3"); err == nil && plain {
		return path, nil
	}
	return "", unavailable("there is no /usr/bin/python3: %s", Install)
}

func unavailable(format string, args ...any) error {
	f := domain.Errorf(domain.Unavailable, "evaluators cannot run on this machine: "+format, args...)
	f.Reason = "NO_SANDBOX"
	return f
}

// try runs a program that does nothing in the sandbox, so that what the machine
// does not allow is known before any code comes.
func (s *Sandbox) try(ctx context.Context, python string) error {
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		return unavailable("there is no bubblewrap: %s", Install)
	}
	user, err := s.users.take()
	if err != nil {
		return err
	}
	defer s.users.give(user)
	ctx, cancel := context.WithTimeout(ctx, s.options.OpenTime)
	defer cancel()
	args, filter, err := s.inside("")
	if err != nil {
		return err
	}
	defer filter.Close()
	cmd := exec.CommandContext(ctx, bwrap, append(args, python, "-I", "-c", "import ctypes, ssl")...)
	cmd.ExtraFiles = []*os.File{os.Stdin, filter} // the filter's place is the second
	cmd.SysProcAttr, cmd.Env = user.attributes(), []string{}
	said, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(said))
	switch {
	case err == nil:
		return nil
	case strings.Contains(text, "ModuleNotFoundError"), strings.Contains(text, "ImportError"):
		return unavailable("%s is not whole (%s): %s", python, clip(text), Install)
	}
	return unavailable("%s", refusal(text, err))
}

// refusal is why bubblewrap could not make a sandbox, with what to do.
func refusal(text string, err error) string {
	if strings.Contains(text, "Unknown option") {
		return fmt.Sprintf("bubblewrap is older than 0.8 (%s): install a newer one", clip(text))
	}
	return fmt.Sprintf("bubblewrap cannot make a sandbox (%s): allow user namespaces to users (sysctl kernel.unprivileged_userns_clone=1 or "+
		"kernel.apparmor_restrict_unprivileged_userns=0; for a container, a seccomp profile that lets it make them and a mask that spares /proc)",
		clip(text+" "+err.Error()))
}

func clip(text string) string {
	if len(text) > 500 {
		text = strings.ToValidUTF8(text[:500], "") + "…"
	}
	return strings.TrimSpace(text)
}

// Open implements engines.Scorer.
func (s *Sandbox) Open(ctx context.Context, code engines.EvaluatorCode) (engines.Evaluation, error) {
	if err := s.Check(ctx); err != nil {
		return nil, err
	}
	e, err := s.ready(code)
	if err != nil {
		return nil, err
	}
	first := e.idle[len(e.idle)-1]
	if first.worker, err = e.start(ctx, first.user); err != nil {
		e.discard()
		return nil, err
	}
	return e, nil
}

// ready has a copy of code for as many workers as it is to have.
func (s *Sandbox) ready(code engines.EvaluatorCode) (e *evaluation, err error) {
	first, err := s.users.take()
	if err != nil {
		return nil, err
	}
	e = &evaluation{sandbox: s, code: code}
	for _, more := range s.users.more(min(code.Parallelism, runtime.GOMAXPROCS(0))-1, first.group) {
		e.idle = append(e.idle, &seat{user: more})
	}
	e.idle = append(e.idle, &seat{user: first})
	e.turns = make(chan struct{}, len(e.idle))
	if e.dir, err = s.stage(code.Dir, first); err != nil {
		e.discard()
		return nil, err
	}
	e.held, _ = hold(e.dir) // where there are no locks nobody sweeps
	return e, nil
}

// Build implements engines.Builder.
func (s *Sandbox) Build(ctx context.Context, code engines.EvaluatorCode, requirements string) (log string, err error) {
	if err := s.Check(ctx); err != nil {
		return "", err
	}
	e, err := s.ready(code)
	if err != nil {
		return "", err
	}
	defer e.discard()
	return e.build(ctx, requirements)
}

// Bounds of the code of one evaluator.
const (
	maxCodeFiles = 1000
	maxCodeBytes = 64 << 20
)

// stage copies code to where a worker's user can read it and others cannot. No
// link leads out of the copy.
func (s *Sandbox) stage(from string, user user) (dir string, err error) {
	if dir, err = os.MkdirTemp(s.options.Dir, copyPrefix); err != nil {
		return "", err
	}
	files, bytes := 0, int64(0)
	err = filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil || relative == "." {
			return err
		}
		if files++; files > maxCodeFiles {
			return domain.Errorf(domain.InvalidArgument, "the code has more than %d files and folders", maxCodeFiles)
		}
		target := filepath.Join(dir, relative)
		switch {
		case entry.IsDir():
			return os.Mkdir(target, 0o755)
		case !entry.Type().IsRegular():
			return domain.Errorf(domain.InvalidArgument, "%s: is a link or device: code is plain files", relative)
		}
		n, err := copyFile(target, path, maxCodeBytes-bytes)
		bytes += n
		return err
	})
	if err == nil {
		err = user.mayRead(dir)
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", err
	}
	return dir, nil
}

func copyFile(to, from string, room int64) (int64, error) {
	in, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(out, io.LimitReader(in, room+1))
	if err == nil && n > room {
		err = domain.Errorf(domain.InvalidArgument, "the code has more than %d bytes", maxCodeBytes)
	}
	if closed := out.Close(); err == nil {
		err = closed
	}
	if err != nil {
		err = fmt.Errorf("copying code: %w", err)
	}
	return n, err
}
