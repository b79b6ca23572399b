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

// harness is the Python program of a worker, which calls the evaluator's code.
//
//go:embed harness.py
var harness string

// maxResponse is the maximum size of a response of a worker, in bytes.
const maxResponse = 1 << 20

// A worker is a process that has imported an evaluator's code and runs it on rows.
type worker struct {
	cmd            *exec.Cmd
	conn           *os.File // this process's end of the socket
	responses      *bufio.Reader
	token          string         // token that every response must contain, so that the code cannot forge one
	stdout, stderr *boundedBuffer // output that did not pass through Python's streams
	done           chan struct{}  // closed when the process has exited
	rowsLeft       int            // number of rows that the worker may still score before it is replaced
	release        func()
}

// A setup is the first message to a worker.
type setup struct {
	Token        string            `json:"token"`
	Code         string            `json:"code"`
	Entry        string            `json:"entry"`
	Function     string            `json:"function"`
	Env          map[string]string `json:"env"`
	Limits       map[string]int64  `json:"limits"` // resource limits by name without RLIMIT_, such as NPROC
	Output       int               `json:"output"`
	Build        bool              `json:"build"`
	Requirements string            `json:"requirements"`
}

// A response is a message of a worker. The response to the setup has the ID 0; any other has the ID
// of its row.
type response struct {
	Token   string             `json:"token"`
	ID      int                `json:"id"`
	CPU     float64            `json:"cpu"` // CPU time since the start of the worker, in seconds
	Score   float64            `json:"score"`
	Valid   bool               `json:"valid"`
	Reason  string             `json:"reason"`
	Metrics map[string]float64 `json:"metrics"`
	Stdout  string             `json:"stdout"`
	Stderr  string             `json:"stderr"`
	Error   string             `json:"refused"` // why the evaluator's code is invalid; "" if it is valid
	Log     []string           `json:"log"`     // log of a build
	// Trial is the reason why the call with an example row in a build returned no valid score.
	Trial string `json:"trial"`
}

// environment returns the names and values of the environment variables of workers.
func environment() [][2]string {
	return [][2]string{
		{"PATH", "/usr/local/bin:/usr/bin:/bin"}, {"HOME", "/tmp"}, {"TMPDIR", "/tmp"}, {"LANG", "C.UTF-8"},
		{"PYTHONHASHSEED", "0"},
		{"OPENBLAS_NUM_THREADS", "1"}, {"OMP_NUM_THREADS", "1"}, {"MKL_NUM_THREADS", "1"},
	}
}

// launch starts a worker for the code in dir, and sends its setup.
func (s *Sandbox) launch(dir string, user user, o setup) (_ *worker, err error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	w := &worker{
		conn: ours, responses: bufio.NewReaderSize(ours, 64<<10), token: rand.Text(), done: make(chan struct{}),
		rowsLeft: s.options.Rows, release: func() {},
		stdout: &boundedBuffer{limit: s.options.Output}, stderr: &boundedBuffer{limit: s.options.Output},
	}
	if err := s.command(w, dir, user, theirs); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	o.Token, o.Code, o.Output, o.Limits = w.token, codeDir, s.options.Output, s.limits()
	if s.options.Plain {
		o.Code = dir
		delete(o.Limits, "NPROC") // the limit NPROC would count all processes of this user
	}
	if err := w.cmd.Start(); err != nil {
		w.release()
		return nil, errors.Join(err, ours.Close())
	}
	go func() {
		_ = w.cmd.Wait() // the error is not needed, because exitReason reads the state of the process
		w.release()
		close(w.done)
	}()
	data, err := json.Marshal(o)
	if err == nil {
		_ = ours.SetWriteDeadline(time.Now().Add(s.options.OpenTime))
		_, err = ours.Write(append(data, '\n'))
	}
	if err != nil {
		w.kill()
		return nil, fmt.Errorf("send the setup of an evaluator's worker: %w", err)
	}
	return w, nil
}

func (s *Sandbox) command(w *worker, dir string, user user, theirs *os.File) error {
	python, files := []string{s.python, "-I", "-c", harness}, []*os.File{theirs}
	if !s.options.Plain {
		bwrap, err := exec.LookPath("bwrap")
		if err != nil {
			return unavailable("bubblewrap is not installed: %s", Install)
		}
		args, filter, err := s.bwrapArgs(dir)
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
	return map[string]int64{
		"AS": o.Memory, "CPU": int64(o.CPUTime / time.Second), "NPROC": int64(o.Processes),
		"NOFILE": int64(o.Files), "FSIZE": o.FileBytes, "MEMLOCK": 64 << 10, "MSGQUEUE": 64 << 10,
	}
}

// socketPair returns two connected sockets. Another process cannot open a socket through /proc,
// unlike a pipe.
func socketPair() (ours, theirs *os.File, err error) {
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
	return os.NewFile(uintptr(pair[0]), "worker"), os.NewFile(uintptr(pair[1]), "harness"), nil
}

// errTimeout is the error of a worker that has not responded in time.
var errTimeout = errors.New("the program that scores rows has not responded in time")

// receive reads the response with an ID. It returns errTimeout after timeout, io.EOF if the socket
// is closed, and another error if the response is too large or the code has written to the socket.
// After an error, the worker must be killed.
func (w *worker) receive(id int, timeout time.Duration) (r response, err error) {
	_ = w.conn.SetReadDeadline(time.Now().Add(timeout))
	var text []byte
	for {
		part, err := w.responses.ReadSlice('\n')
		text = append(text, part...)
		if len(text) > maxResponse {
			return r, fmt.Errorf("the response exceeds the limit of %d bytes: return a shorter reason and fewer metrics",
				maxResponse)
		}
		switch {
		case err == nil:
			if json.Unmarshal(text, &r) != nil || r.Token != w.token || r.ID != id {
				return r, errors.New("the code wrote to file descriptor 3, which is reserved for responses: " +
					"use print for output")
			}
			return r, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, os.ErrDeadlineExceeded):
			return r, errTimeout
		default:
			return r, io.EOF
		}
	}
}

// kill kills the worker and its descendants.
func (w *worker) kill() {
	_ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL)
	_ = w.conn.Close()
	<-w.done
}

// exitReason returns how a worker that has closed its socket has exited.
func (w *worker) exitReason() string {
	timer := time.NewTimer(time.Second) // the socket closes slightly before the process exits
	defer timer.Stop()
	select {
	case <-w.done:
	case <-timer.C:
		return "the code closed file descriptor 3, which is reserved for responses: leave it open"
	}
	state, code := w.cmd.ProcessState, w.cmd.ProcessState.ExitCode()
	reason := fmt.Sprintf("exit status %d", code)
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = 128 + int(status.Signal())
	}
	if code > 128 && code < 128+65 { // exit status of bubblewrap for a signal
		reason = fmt.Sprintf("killed by signal %d (%s)", code-128, syscall.Signal(code-128))
	}
	if lines := strings.Split(strings.TrimSpace(w.stderr.text()), "\n"); lines[len(lines)-1] != "" {
		reason += ": " + clip(lines[len(lines)-1])
	}
	return reason
}

// killOnDone kills the worker when ctx is done, unless stop is called before. stop reports whether
// it has prevented the kill.
func (w *worker) killOnDone(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL) })
}

// startError returns the error of a worker that failed before it had imported the code.
func (w *worker) startError(err error, timeout time.Duration) error {
	switch {
	case errors.Is(err, errTimeout):
		return domain.Errorf(domain.InvalidArgument,
			"the code was not imported within %s: reduce the work that the file does on import", timeout)
	case errors.Is(err, io.EOF):
		reason := w.exitReason()
		if strings.Contains(reason, ": bwrap: ") {
			return unavailable("%s", reason)
		}
		return domain.Errorf(domain.InvalidArgument, "the process exited during the import of the code: %s", reason)
	}
	return domain.Errorf(domain.InvalidArgument, "the code cannot be used: %s", err)
}

// A boundedBuffer records the beginning of the written text, up to a limit.
type boundedBuffer struct {
	limit int
	mu    sync.Mutex
	buf   bytes.Buffer
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf.Write(p[:min(len(p), max(b.limit-b.buf.Len(), 0))])
	return len(p), nil
}

func (b *boundedBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.ToValidUTF8(b.buf.String(), "\ufffd")
}

// take returns the recorded text, and empties the buffer.
func (b *boundedBuffer) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.buf.Reset()
	return strings.ToValidUTF8(b.buf.String(), "\ufffd")
}
