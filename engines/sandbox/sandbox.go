// Package sandbox confines the Python code of evaluators (a Sandbox), and the programs that engines
// run on files of accounts (a Runner). Each runs in bubblewrap as a separate user, without access
// to the network or to files, processes and memory of others.
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

// Options are the limits of evaluators. A field that is zero has its default.
type Options struct {
	// Plain runs code as the user of this process, without a sandbox. It is for operators who run
	// only their own code, on machines without bubblewrap.
	Plain bool
	// Directory for copies of code. All users must be able to read it. The default is the system's
	// temporary directory.
	Dir string

	RowTime   time.Duration // maximum time to score a row; default 10 s
	OpenTime  time.Duration // maximum time to start a worker and import the code; default 30 s
	CPUTime   time.Duration // maximum CPU time of each process of a worker; default 5 min
	Memory    int64         // maximum address space of each process of a worker, in bytes; default 512 MiB
	Processes int           // maximum number of processes and threads of a worker; default 16
	Files     int           // maximum number of open files of each process; default 256
	FileBytes int64         // maximum size of each file, and of all files together, in bytes; default 64 MiB
	Output    int           // maximum recorded size of stdout, and of stderr, for a row in bytes; default 16 KiB
	Rows      int           // number of rows that a worker scores before it is replaced; default 1000
	Workers   int           // maximum number of concurrent workers; default 32
}

func (o Options) withDefaults() Options {
	o.Dir = cmp.Or(o.Dir, os.TempDir())
	o.RowTime, o.OpenTime, o.CPUTime = cmp.Or(o.RowTime, 10*time.Second), cmp.Or(o.OpenTime, 30*time.Second),
		cmp.Or(o.CPUTime, 5*time.Minute)
	o.Memory, o.FileBytes = cmp.Or(o.Memory, 512<<20), cmp.Or(o.FileBytes, 64<<20)
	o.Processes, o.Files, o.Output = cmp.Or(o.Processes, 16), cmp.Or(o.Files, 256), cmp.Or(o.Output, 16<<10)
	o.Rows, o.Workers = cmp.Or(o.Rows, 1000), cmp.Or(o.Workers, maxWorkers)
	o.Workers = min(o.Workers, maxWorkers)
	return o
}

// A Sandbox runs the code of evaluators. It is safe for concurrent use.
type Sandbox struct {
	options Options
	users   users

	mu     sync.Mutex
	python string // path of the interpreter; "" until Check has succeeded
}

// New returns a Sandbox. Its method Check reports whether evaluators can run on this machine.
func New(o Options) *Sandbox {
	o = o.withDefaults()
	return &Sandbox{options: o, users: newUsers(o.Workers)}
}

// Install is the command that installs the packages which evaluators need.
const Install = "apt-get install bubblewrap python3"

// Check returns an Unavailable error if evaluators cannot run on this machine. A success is cached.
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
	removeLeftovers(s.options.Dir, time.Now())
	closeOnExec()
	if !s.options.Plain {
		if err := s.probe(ctx, python); err != nil {
			return err
		}
	}
	s.python = python
	return nil
}

// findPython returns the path of the system's Python interpreter, because sandboxes do not contain
// the directories of other interpreters. If plain is true and the system has none, it returns one
// in PATH.
func findPython(plain bool) (string, error) {
	for _, path := range []string{"/usr/bin/python3", "/usr/local/bin/python3"} {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	if path, err := exec.LookPath("python3"); err == nil && plain {
		return path, nil
	}
	return "", unavailable("/usr/bin/python3 is not installed: %s", Install)
}

func unavailable(format string, args ...any) error {
	err := domain.Errorf(domain.Unavailable, "evaluators cannot run on this machine: "+format, args...)
	err.Reason = "NO_SANDBOX"
	return err
}

// probe returns an error if Python cannot run in a sandbox.
func (s *Sandbox) probe(ctx context.Context, python string) error {
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		return unavailable("bubblewrap is not installed: %s", Install)
	}
	user, err := s.users.acquire()
	if err != nil {
		return err
	}
	defer s.users.release(user)
	ctx, cancel := context.WithTimeout(ctx, s.options.OpenTime)
	defer cancel()
	args, filter, err := s.bwrapArgs("")
	if err != nil {
		return err
	}
	defer filter.Close()
	cmd := exec.CommandContext(ctx, bwrap, append(args, python, "-I", "-c", "import ctypes, ssl")...)
	cmd.ExtraFiles = []*os.File{os.Stdin, filter} // these become the descriptors socketFile and filterFile
	cmd.SysProcAttr, cmd.Env = user.attributes(), []string{}
	output, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(output))
	switch {
	case err == nil:
		return nil
	case strings.Contains(text, "ModuleNotFoundError"), strings.Contains(text, "ImportError"):
		return unavailable("%s lacks modules of the standard library (%s): %s", python, clip(text), Install)
	}
	return unavailable("%s", bwrapError(text, err))
}

// bwrapError returns the reason why bubblewrap could not create a sandbox, and what to do.
func bwrapError(output string, err error) string {
	if strings.Contains(output, "Unknown option") {
		return fmt.Sprintf("bubblewrap is older than 0.8 (%s): install version 0.8 or newer", clip(output))
	}
	return fmt.Sprintf("bubblewrap cannot create a sandbox (%s): enable unprivileged user namespaces (sysctl "+
		"kernel.unprivileged_userns_clone=1 or kernel.apparmor_restrict_unprivileged_userns=0; in a container, use a "+
		"seccomp profile that allows user namespaces and leave /proc unmasked)", clip(output+" "+err.Error()))
}

// clip shortens a text for an error message.
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
	e, err := s.prepare(code)
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

// prepare copies the code, reserves users for its workers, and returns an evaluation without
// workers.
func (s *Sandbox) prepare(code engines.EvaluatorCode) (e *evaluation, err error) {
	first, err := s.users.acquire()
	if err != nil {
		return nil, err
	}
	e = &evaluation{sandbox: s, code: code}
	for _, more := range s.users.acquireMore(min(code.Parallelism, runtime.GOMAXPROCS(0))-1, first.group) {
		e.idle = append(e.idle, &slot{user: more})
	}
	e.idle = append(e.idle, &slot{user: first})
	e.busy = make(chan struct{}, len(e.idle))
	if e.dir, err = s.copyCode(code.Dir, first); err != nil {
		e.discard()
		return nil, err
	}
	e.lock, _ = lockDir(e.dir) // fails only on systems without file locks, on which removeLeftovers removes nothing
	return e, nil
}

// Build implements engines.Builder.
func (s *Sandbox) Build(ctx context.Context, code engines.EvaluatorCode, requirements string) (engines.BuildReport,
	error) {
	if err := s.Check(ctx); err != nil {
		return engines.BuildReport{}, err
	}
	e, err := s.prepare(code)
	if err != nil {
		return engines.BuildReport{}, err
	}
	defer e.discard()
	return e.build(ctx, requirements)
}

// Limits of the code of an evaluator.
const (
	maxCodeFiles = 1000
	maxCodeBytes = 64 << 20
)

// copyCode copies code to a new directory that only the user of a worker can read, and returns the
// directory. It returns an error for links.
func (s *Sandbox) copyCode(from string, user user) (dir string, err error) {
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
			return domain.Errorf(domain.InvalidArgument, "the code has more than %d files and directories: remove "+
				"those that scoring does not need", maxCodeFiles)
		}
		target := filepath.Join(dir, relative)
		switch {
		case entry.IsDir():
			return os.Mkdir(target, 0o755)
		case !entry.Type().IsRegular():
			return domain.Errorf(domain.InvalidArgument,
				"%s: is a link or device: replace it with a regular file", relative)
		}
		n, err := copyFile(target, path, maxCodeBytes-bytes)
		bytes += n
		return err
	})
	if err == nil {
		err = user.grantRead(dir)
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", err
	}
	return dir, nil
}

func copyFile(to, from string, limit int64) (int64, error) {
	in, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(out, io.LimitReader(in, limit+1))
	if err == nil && n > limit {
		err = domain.Errorf(domain.InvalidArgument, "the code has more than %d bytes: remove files that scoring "+
			"does not need", maxCodeBytes)
	}
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		err = fmt.Errorf("copy code: %w", err)
	}
	return n, err
}
