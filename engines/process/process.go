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
	Args  []string   // program and its arguments
	Dir   string     // working directory; "" stands for that of this process
	Env   []string   // complete environment of the program
	Files []*os.File // files that the program gets as descriptors from 3 on; this process's copies stay open

	// Output, unless it is nil, receives all output of the program. The Process keeps only the end
	// of it. Write must not return errors.
	Output io.Writer

	User *syscall.Credential // user of the program; nil stands for that of this process
	// Interrupt requests the program to exit, and reports whether the request was sent; nil sends
	// SIGTERM to the program's process group.
	Interrupt func() bool
	// Sandboxed reports that exit statuses above 128 stand for signals, as in a shell: bubblewrap
	// exits with 128 plus the signal that ended its program.
	Sandboxed bool
}

// A Process is a program that is running or has exited.
type Process struct {
	cmd       *exec.Cmd
	interrupt func() bool
	sandboxed bool
	output    tail
	done      chan struct{} // closed when the program has exited
	err       error         // exit error of the program, set before done is closed
}

// Find returns the path of a program in PATH. If the program is not installed, the error ends with
// install, which states how to install it.
func Find(program, install string) (path string, err error) {
	path, err = exec.LookPath(program)
	if err != nil {
		return "", domain.Errorf(domain.FailedPrecondition,
			"the program %s is not installed, or not in PATH: %s", program, install)
	}
	return path, nil
}

// Start starts a program. On Linux, the program is killed when this process exits, even if this
// process is killed.
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
	// Maximum wait for descendants that keep the output open after the program has exited.
	p.cmd.WaitDelay = time.Second
	p.cmd.SysProcAttr = attributes()
	p.cmd.SysProcAttr.Credential = command.User
	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread that started the program exits, so this
		// thread must exist as long as the program.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // kills the descendants of the program
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

// Err returns the exit error of a program that has exited, with the end of its output; nil for
// success.
func (p *Process) Err() error {
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("%w%s", p.ExitError(), p.LastOutput())
}

// ExitError returns the exit error of a program that has exited, without its output; nil for
// success.
func (p *Process) ExitError() error {
	if p.cmd.ProcessState == nil {
		return p.err
	}
	if number := p.cmd.ProcessState.ExitCode() - 128; p.sandboxed && number > 0 && number < 65 {
		return fmt.Errorf("signal: %v", syscall.Signal(number))
	}
	return p.err
}

// LastOutput returns the end of the program's output, in a form to append to an error message; ""
// if there is none.
func (p *Process) LastOutput() string {
	text := p.output.String()
	if text == "" {
		return ""
	}
	return OutputMark + text
}

// OutputMark separates an error message from the output that LastOutput returns.
const OutputMark = "; last output: "

// Interrupt requests the program to exit. It kills the program if the request cannot be sent.
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

// Stop interrupts the program. If it has not exited after grace, or when ctx is done, Stop kills
// its process group. Stop returns when the program has exited.
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

// signal sends a signal to the program's process group. It does nothing if the program has exited,
// because the kernel may have reused the group's ID.
func (p *Process) signal(s syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, s) // returns an error only if no process of the group exists
	}
}

// Environment returns the variables that a program inherits from this process, followed by more. A
// program inherits the variables that every program needs, and those whose names begin with one of
// the prefixes. It gets no other variable, because that could be a secret.
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

// alwaysInherited are the names of the variables that every program inherits.
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
