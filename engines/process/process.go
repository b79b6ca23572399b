// Package process runs the programs that engines start, each in a process group
// that is killed as a whole, and keeps the end of their output for errors.
package process

import (
	"context"
	"fmt"
	"io"
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
	Args  []string   // the program and its arguments
	Dir   string     // working directory; "" is this process's
	Env   []string   // the complete environment
	Files []*os.File // inherited from descriptor 3 on; this process's copies stay open

	// Output, if it is not nil, receives everything that the program writes. The Process itself keeps
	// only the last part of it. Write must not return errors.
	Output io.Writer

	User *syscall.Credential // nil is this process's user
	// Interrupt asks the program to exit and reports whether the request was sent; nil sends
	// SIGTERM to the program's process group.
	Interrupt func() bool
	// Sandboxed reports that exit statuses above 128 are signals, as in a shell:
	// bubblewrap exits with 128 plus the signal of the program that it ran.
	Sandboxed bool
}

// A Process is a running or exited program.
type Process struct {
	cmd       *exec.Cmd
	interrupt func() bool
	sandboxed bool
	output    tail
	done      chan struct{} // closed when the program has exited
	err       error         // exit error of the program; set before done is closed
}

// Find returns the path of a program in PATH. The error for a program that is not installed ends
// with install, which explains how to install it.
func Find(program, install string) (path string, err error) {
	path, err = exec.LookPath(program)
	if err != nil {
		return "", domain.Errorf(domain.FailedPrecondition,
			"the program %s is not installed, or not in PATH: %s", program, install)
	}
	return path, nil
}

// Start runs a command. On Linux the program is killed when this process exits,
// even if this process is killed.
func Start(command Command) (*Process, error) {
	p := &Process{
		cmd: exec.Command(command.Args[0], command.Args[1:]...), done: make(chan struct{}),
		interrupt: command.Interrupt, sandboxed: command.Sandboxed,
	}
	p.cmd.Dir, p.cmd.Env, p.cmd.ExtraFiles = command.Dir, command.Env, command.Files
	var output io.Writer = &p.output
	if command.Output != nil {
		output = io.MultiWriter(&p.output, command.Output)
	}
	p.cmd.Stdout, p.cmd.Stderr = output, output
	p.cmd.WaitDelay = time.Second // limit for descendants that hold the output open
	p.cmd.SysProcAttr = attributes()
	p.cmd.SysProcAttr.Credential = command.User
	started := make(chan error)
	go func() {
		// Pdeathsig is sent when the thread that started the program exits, so
		// this thread must live as long as the program.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // descendants
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Args[0], err)
	}
	return p, nil
}

// Done returns a channel that is closed when the program has exited.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns the exit error of a program that is done, with the end of its
// output; nil is success.
func (p *Process) Err() error {
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("%w%s", p.ExitError(), p.LastOutput())
}

// ExitError returns the exit error of a program that is done; nil is success.
func (p *Process) ExitError() error {
	if p.cmd.ProcessState == nil {
		return p.err
	}
	if number := p.cmd.ProcessState.ExitCode() - 128; p.sandboxed && number > 0 && number < 65 {
		return fmt.Errorf("signal: %v", syscall.Signal(number))
	}
	return p.err
}

// LastOutput returns the end of the program's output, to be appended to an error
// message; "" without output.
func (p *Process) LastOutput() string {
	text := p.output.String()
	if text == "" {
		return ""
	}
	return OutputMark + text
}

// OutputMark separates an error from the output that LastOutput appends.
const OutputMark = "; last output: "

// Interrupt asks the program to exit, and kills the program if the request cannot be sent.
func (p *Process) Interrupt() {
	select {
	case <-p.done:
		return
	default:
	}
	switch {
	case p.interrupt == nil:
		p.signal(syscall.SIGTERM)
	case !p.interrupt():
		p.signal(syscall.SIGKILL)
	}
}

// Stop interrupts the program, and kills its process group if it has not exited
// within grace or before ctx is done. It returns when the program has exited.
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

// signal signals the process group of the program. It does nothing when the program has exited,
// because the kernel may then reuse the ID of the group.
func (p *Process) signal(s syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, s) // fails only if the group has exited
	}
}

// Environment returns the variables of this process that a program inherits, and then the variables
// in more. A program inherits the variables that every program needs, and those that begin with one
// of the prefixes. No other variable is passed on, since it may be a secret.
func Environment(prefixes []string, more ...string) []string {
	var env []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if inherited(name, prefixes) {
			env = append(env, entry)
		}
	}
	return append(env, more...)
}

// alwaysInherited are the variables that every program gets.
var alwaysInherited = map[string]bool{
	"PATH": true, "HOME": true, "LD_LIBRARY_PATH": true, "LANG": true, "TMPDIR": true, "USER": true,
	"VIRTUAL_ENV": true,
}

func inherited(name string, prefixes []string) bool {
	if alwaysInherited[name] {
		return true
	}
	for _, prefix := range prefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
