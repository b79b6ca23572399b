package sandbox

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// A relay connects to a program that listens on the loopback of its own network, which no address
// of the machine leads to. It runs as the program's parent in the sandbox, dials on request, and
// sends the connected socket back: what is said over it does not pass through the relay.
type relay struct {
	theirs *os.File // its end in the sandbox

	mu   sync.Mutex // one request at a time
	ours *net.UnixConn
}

// relayProgram is the path of the relay in a sandbox. It is this program itself.
const relayProgram = "/run/anneal/relay"

const (
	dialWithin  = 5 * time.Second
	controlFile = 3 // descriptor of the relay's end
)

// init runs the relay in the place of this program, where that was started as one.
func init() {
	if os.Args[0] == relayProgram {
		os.Exit(serveRelay(os.Args[1:]))
	}
}

// newRelay puts a relay before a program.
func newRelay(p *Program) (*relay, error) {
	ours, theirs, err := sockets()
	if err != nil {
		return nil, err
	}
	conn, err := net.FileConn(ours)
	_ = ours.Close() // conn has its own
	if err != nil {
		_ = theirs.Close()
		return nil, err
	}
	p.Args = append([]string{relayProgram}, p.Args...)
	p.Files = append([]*os.File{theirs}, p.Files...)
	return &relay{theirs: theirs, ours: conn.(*net.UnixConn)}, nil
}

// started closes the sandbox's end here.
func (r *relay) started() { _ = r.theirs.Close() }

func (r *relay) close() {
	if r != nil {
		_ = r.ours.Close()
	}
}

// Dial connects to where the program listens, as net.Dialer.DialContext does. Of one that was
// started without a sandbox that is the machine's own network.
func (p *Process) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if p.relay == nil {
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}
	conn, err := p.relay.dial(ctx, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return conn, nil
}

func (r *relay) dial(ctx context.Context, address string) (net.Conn, error) {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := net.LookupPort("tcp", text)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// The relay answers each request, within a bound: an answer that is not waited for would be
	// taken for the next one's.
	_ = r.ours.SetDeadline(time.Now().Add(2 * dialWithin))
	if _, err := r.ours.Write(binary.BigEndian.AppendUint16(nil, uint16(port))); err != nil {
		return nil, err
	}
	answer, rights := make([]byte, 1), make([]byte, syscall.CmsgSpace(4))
	_, n, _, _, err := r.ours.ReadMsgUnix(answer, rights)
	if err != nil {
		_ = r.ours.Close() // the order of answers is lost
		return nil, err
	}
	fd, err := descriptor(rights[:n])
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), address)
	defer file.Close()
	return net.FileConn(file)
}

// descriptor is the one that came with a message.
func descriptor(rights []byte) (int, error) {
	messages, err := syscall.ParseSocketControlMessage(rights)
	if err != nil {
		return 0, err
	}
	for _, message := range messages {
		if fds, err := syscall.ParseUnixRights(&message); err == nil && len(fds) == 1 {
			syscall.CloseOnExec(fds[0])
			return fds[0], nil
		}
	}
	return 0, syscall.ECONNREFUSED
}

// serveRelay runs a program and dials for whoever has the other end, until the program ends.
func serveRelay(args []string) int {
	syscall.CloseOnExec(controlFile)
	control := os.NewFile(controlFile, "control")
	conn, err := net.FileConn(control)
	_ = control.Close() // conn has its own
	if err != nil || len(args) == 0 {
		fmt.Fprintln(os.Stderr, "relay: no connection or no program:", err)
		return 1
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 127
	}
	go func() {
		for range ended {
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	}()
	go answerDials(conn.(*net.UnixConn))
	err = cmd.Wait()
	var failed *exec.ExitError
	switch status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus); {
	case err == nil:
		return 0
	case !errors.As(err, &failed):
		return 1
	case status.Signaled():
		return 128 + int(status.Signal())
	}
	return failed.ExitCode()
}

func answerDials(conn *net.UnixConn) {
	request := make([]byte, 2)
	for {
		for n := 0; n < len(request); {
			more, err := conn.Read(request[n:])
			if err != nil {
				return
			}
			n += more
		}
		if err := answerDial(conn, binary.BigEndian.Uint16(request)); err != nil {
			return
		}
	}
}

// answerDial sends a socket that is connected to a port, or nothing where nobody listens there.
func answerDial(conn *net.UnixConn, port uint16) error {
	var rights []byte
	if tcp, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), dialWithin); err == nil {
		file, err := tcp.(*net.TCPConn).File()
		_ = tcp.Close() // file is a copy of it
		if err == nil {
			defer file.Close()
			rights = syscall.UnixRights(int(file.Fd()))
		}
	}
	_, _, err := conn.WriteMsgUnix([]byte{0}, rights, nil)
	return err
}
