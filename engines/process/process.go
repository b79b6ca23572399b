// Package process runs the programs that engines start: each in a process group
// of its own that ends whole, with what it said last kept for its errors.
package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"anneal/domain"
)

// A Command is a program to run.
type Command struct {
	Args  []string   // the program, and what it is told
	Dir   string     // it runs in; "" is this process's own
	Env   []string   // the whole of its environment
	Files []*os.File // it has from descriptor 3 on; this process's copies stay open

	User      *syscall.Credential // it runs as; nil is this process's own
	Interrupt func() bool         // asks the program to end, and tells whether it could; nil sends SIGTERM to its group
	Sandboxed bool                // its status tells a signal of the program in the sandbox as a shell does: 128 and the number
}

// A Process is a program that was started.
type Process struct {
	cmd    *exec.Cmd
	asks   func() bool
	inside bool // of a sandbox
	output tail
	done   chan struct{} // closed when it has ended
	err    error         // why; set before done is closed
}

// Find says where a program lies, or that it is not installed; how says what
// would install it.
func Find(program, how string) (path string, err error) {
	path, err = exec.LookPath(program)
	if err != nil {
		return "", domain.Errorf(domain.FailedPrecondition, "the program %s is not installed, or not in PATH: %s", program, how)
	}
	return path, nil
}

// Start runs a command. On Linux the program also ends when this process does,
// however that ends.
func Start(command Command) (*Process, error) {
	p := &Process{cmd: exec.Command(command.Args[0], command.Args[1:]...), done: make(chan struct{}),
		asks: command.Interrupt, inside: command.Sandboxed}
	p.cmd.Dir, p.cmd.Env, p.cmd.ExtraFiles = command.Dir, command.Env, command.Files
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.WaitDelay = time.Second // for descendants that hold the output open
	p.cmd.SysProcAttr = attributes()
	p.cmd.SysProcAttr.Credential = command.User
	started := make(chan error)
	go func() {
		// The kernel takes the end of the thread that started a program for the
		// end of its parent: so this one stays as long as the program.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // what it left behind
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", command.Args[0], err)
	}
	return p, nil
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how a program that is done has ended, with the last of what it said.
// nil is success.
func (p *Process) Err() error {
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("%w%s", p.Ended(), p.Said())
}

// Ended says how a program that is done has ended; nil is success. In a sandbox the status alone tells
// a signal.
func (p *Process) Ended() error {
	if p.cmd.ProcessState == nil {
		return p.err
	}
	if number := p.cmd.ProcessState.ExitCode() - 128; p.inside && number > 0 && number < 65 {
		return fmt.Errorf("signal: %v", syscall.Signal(number))
	}
	return p.err
}

// Said is the end of the program's output, as the end of a sentence.
func (p *Process) Said() string {
	text := p.output.String()
	if text == "" {
		return ""
	}
	return "; its last words were: " + text
}

// Interrupt asks the program to end. One that cannot be asked is killed.
func (p *Process) Interrupt() {
	select {
	case <-p.done:
		return
	default:
	}
	switch {
	case p.asks == nil:
		p.signal(syscall.SIGTERM)
	case !p.asks():
		p.signal(syscall.SIGKILL)
	}
}

// Stop ends the program with all that it started: asked first, and killed when
// it has not ended within grace or before ctx is done.
func (p *Process) Stop(ctx context.Context, grace time.Duration) {
	p.Interrupt()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return
	case <-timer.C:
	case <-ctx.Done():
	}
	p.signal(syscall.SIGKILL)
	<-p.done
}

// signal goes to the whole group, while there is one: afterwards its number may
// be another's.
func (p *Process) signal(s syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, s) // it fails only when nobody is left
	}
}

// Environment is what a program of ours gets of this process's environment:
// what programs need to be found and to run, what begins with a prefix, and no
// secret by accident. more is added, and counts.
func Environment(prefixes []string, more ...string) []string {
	var env []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if passes(name, prefixes) {
			env = append(env, entry)
		}
	}
	return append(env, more...)
}

var needed = map[string]bool{"PATH": true, "HOME": true, "LD_LIBRARY_PATH": true, "LANG": true, "TMPDIR": true, "USER": true, "VIRTUAL_ENV": true}

func passes(name string, prefixes []string) bool {
	if needed[name] {
		return true
	}
	for _, prefix := range prefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
