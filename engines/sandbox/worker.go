package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"anneal/domain"
)

// harness is the program that runs in a worker and calls the code.
//
//go:embed harness.py
var harness string

// maxAnswer bounds one answer of a worker, in bytes.
const maxAnswer = 1 << 20

// A worker is a process that has the code loaded.
type worker struct {
	cmd            *exec.Cmd
	line           *os.File // our end of the socket
	answers        *bufio.Reader
	token          string // that every answer must have
	stdout, stderr *kept  // what did not go through Python, as of its children
	ended          chan struct{}
	left           int // rows until the next worker takes its place
	release        func()
}

// An order is the first that a worker reads.
type order struct {
	Token        string            `json:"token"`
	Code         string            `json:"code"`
	Entry        string            `json:"entry"`
	Function     string            `json:"function"`
	Env          map[string]string `json:"env"`
	Limits       map[string]int64  `json:"limits"` // names of RLIMIT_…
	Output       int               `json:"output"`
	Build        bool              `json:"build"`
	Requirements string            `json:"requirements"`
}

// An answer of a worker: to the order without an ID, to rows with theirs.
type answer struct {
	Token   string             `json:"token"`
	ID      int                `json:"id"`
	CPU     float64            `json:"cpu"` // seconds, since its start
	Score   float64            `json:"score"`
	Valid   bool               `json:"valid"`
	Reason  string             `json:"reason"`
	Metrics map[string]float64 `json:"metrics"`
	Stdout  string             `json:"stdout"`
	Stderr  string             `json:"stderr"`
	Refused string             `json:"refused"`
	Log     []string           `json:"log"`
}

// environment is what every worker's process has, in pairs.
func environment() [][2]string {
	return [][2]string{{"PATH", "/usr/local/bin:/usr/bin:/bin"}, {"HOME", "/tmp"}, {"TMPDIR", "/tmp"}, {"LANG", "C.UTF-8"}, {"PYTHONHASHSEED", "0"},
		{"OPENBLAS_NUM_THREADS", "1"}, {"OMP_NUM_THREADS", "1"}, {"MKL_NUM_THREADS", "1"}}
}

// launch starts a worker on the code in dir and gives it its order.
func (s *Sandbox) launch(dir string, user user, o order) (_ *worker, err error) {
	ours, theirs, err := sockets()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	w := &worker{line: ours, answers: bufio.NewReaderSize(ours, 64<<10), token: rand.Text(), ended: make(chan struct{}), left: s.options.Rows, release: func() {},
		stdout: &kept{limit: s.options.Output}, stderr: &kept{limit: s.options.Output}}
	if err := s.command(w, dir, user, theirs); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	o.Token, o.Code, o.Output, o.Limits = w.token, codeDir, s.options.Output, s.limits()
	if s.options.Plain {
		o.Code = dir
		delete(o.Limits, "NPROC") // counts all that this user runs
	}
	if err := w.cmd.Start(); err != nil {
		w.release()
		return nil, errors.Join(err, ours.Close())
	}
	go func() {
		_ = w.cmd.Wait() // how it ended is in its state
		w.release()
		close(w.ended)
	}()
	data, err := json.Marshal(o)
	if err == nil {
		_ = ours.SetWriteDeadline(time.Now().Add(s.options.OpenTime))
		_, err = ours.Write(append(data, '\n'))
	}
	if err != nil {
		w.kill()
		return nil, fmt.Errorf("a worker did not take its order: %w", err)
	}
	return w, nil
}

func (s *Sandbox) command(w *worker, dir string, user user, theirs *os.File) error {
	python, files := []string{s.python, "-I", "-c", harness}, []*os.File{theirs}
	if !s.options.Plain {
		bwrap, err := exec.LookPath("bwrap")
		if err != nil {
			return unavailable("there is no bubblewrap: %s", Install)
		}
		args, filter, err := s.inside(dir)
		if err != nil {
			return err
		}
		w.release = func() { _ = filter.Close() }
		python, files = append(append([]string{bwrap}, args...), python...), append(files, filter)
	}
	w.cmd = exec.Command(python[0], python[1:]...)
	w.cmd.ExtraFiles, w.cmd.Dir, w.cmd.Env = files, "/", []string{}
	for _, pair := range environment() {
		w.cmd.Env = append(w.cmd.Env, pair[0]+"="+pair[1])
	}
	w.cmd.Stdout, w.cmd.Stderr, w.cmd.WaitDelay = w.stdout, w.stderr, time.Second
	w.cmd.SysProcAttr = user.attributes()
	return nil
}

func (s *Sandbox) limits() map[string]int64 {
	o := s.options
	return map[string]int64{"AS": o.Memory, "CPU": int64(o.CPUTime / time.Second), "NPROC": int64(o.Processes), "NOFILE": int64(o.Files), "FSIZE": o.FileBytes, "MEMLOCK": 64 << 10, "MSGQUEUE": 64 << 10}
}

// sockets is a pair of them. A child could not open one again through /proc, as
// it could a pipe.
func sockets() (ours, theirs *os.File, err error) {
	syscall.ForkLock.RLock()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(pair[0])
		syscall.CloseOnExec(pair[1])
	}
	syscall.ForkLock.RUnlock()
	if err == nil {
		err = syscall.SetNonblock(pair[0], true)
	}
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(pair[0]), "worker"), os.NewFile(uintptr(pair[1]), "orders"), nil
}

// errSilent is a worker that did not answer in time.
var errSilent = errors.New("no answer in time")

// hear reads the answer with an ID. Anything else that comes is not from the
// harness, and nothing more of that worker is believed.
func (w *worker) hear(id int, within time.Duration) (a answer, err error) {
	_ = w.line.SetReadDeadline(time.Now().Add(within))
	var text []byte
	for {
		part, err := w.answers.ReadSlice('\n')
		text = append(text, part...)
		if len(text) > maxAnswer {
			return a, fmt.Errorf("it answered more than %d bytes", maxAnswer)
		}
		switch {
		case err == nil:
			if json.Unmarshal(text, &a) != nil || a.Token != w.token || a.ID != id {
				return a, errors.New("something else than an answer came from its descriptor for answers")
			}
			return a, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, os.ErrDeadlineExceeded):
			return a, errSilent
		default:
			return a, io.EOF
		}
	}
}

// kill ends the worker and all that it started.
func (w *worker) kill() {
	_ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL)
	_ = w.line.Close()
	<-w.ended
}

// autopsy is how a worker ended that stopped answering, in words.
func (w *worker) autopsy() string {
	timer := time.NewTimer(time.Second) // its last descriptor closes a moment before it ends
	defer timer.Stop()
	select {
	case <-w.ended:
	case <-timer.C:
		return "it closed its descriptor for answers"
	}
	state, code := w.cmd.ProcessState, w.cmd.ProcessState.ExitCode()
	how := fmt.Sprintf("it ended with exit status %d", code)
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = 128 + int(status.Signal())
	}
	if code > 128 && code < 128+65 { // bubblewrap tells a signal so
		how = fmt.Sprintf("it was ended by signal %d (%s)", code-128, syscall.Signal(code-128))
	}
	if lines := strings.Split(strings.TrimSpace(w.stderr.text()), "\n"); lines[len(lines)-1] != "" {
		how += ": " + clip(lines[len(lines)-1])
	}
	return how
}

// until kills the worker when ctx is done before stop is called.
func (w *worker) until(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL) })
}

// wanted turns how a worker failed before it was ready into a fault.
func (w *worker) wanted(err error, within time.Duration) error {
	switch {
	case errors.Is(err, errSilent):
		return domain.Errorf(domain.InvalidArgument, "the code was not imported within %s: do less when the file is imported", within)
	case errors.Is(err, io.EOF):
		if how := w.autopsy(); strings.Contains(how, ": bwrap: ") {
			return unavailable("%s", how)
		}
		return domain.Errorf(domain.InvalidArgument, "the process ended while the code was imported: %s", w.autopsy())
	}
	return domain.Errorf(domain.InvalidArgument, "the code cannot be used: %s", err)
}

// kept keeps the first bytes that are written, up to a limit.
type kept struct {
	limit int
	mu    sync.Mutex
	buf   bytes.Buffer
}

func (k *kept) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.buf.Write(p[:min(len(p), max(k.limit-k.buf.Len(), 0))])
	return len(p), nil
}

func (k *kept) text() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.ToValidUTF8(k.buf.String(), "\ufffd")
}

func (k *kept) take() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer k.buf.Reset()
	return strings.ToValidUTF8(k.buf.String(), "\ufffd")
}
