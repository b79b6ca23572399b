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

// A relay connects to a program that listens on the loopback interface of its own network
// namespace. A process of the relay is the program's parent in the sandbox. It connects on request,
// and passes the connected socket to this process, so the data does not go through the relay.
type relay struct {
	theirs *os.File // the end of the control socket that the relay's process uses

	mu   sync.Mutex // serializes requests to the relay's process
	ours *net.UnixConn
}

// relayProgram is the path in a sandbox of the relay's program, which is the executable of this
// process.
const relayProgram = "/run/anneal/relay"

const (
	dialTimeout = 5 * time.Second
	controlFile = 3 // descriptor of theirs in the relay's process
)

// init runs the relay if this executable was started as relayProgram.
func init() {
	if os.Args[0] == relayProgram {
		os.Exit(serveRelay(os.Args[1:]))
	}
}

// newRelay returns a relay, and changes p so that the relay's process starts the program in the
// sandbox.
func newRelay(p *Program) (*relay, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	conn, err := net.FileConn(ours)
	_ = ours.Close() // conn has a duplicate of the descriptor
	if err != nil {
		_ = theirs.Close()
		return nil, err
	}
	p.Args = append([]string{relayProgram}, p.Args...)
	p.Files = append([]*os.File{theirs}, p.Files...)
	return &relay{theirs: theirs, ours: conn.(*net.UnixConn)}, nil
}

// closeTheirs closes this process's copy of the socket of the relay's process.
func (r *relay) closeTheirs() { _ = r.theirs.Close() }

func (r *relay) close() {
	if r != nil {
		_ = r.ours.Close()
	}
}

// Dial connects to an address in the network namespace of the program, as net.Dialer.DialContext
// does. For a program without a sandbox, that is the network of the machine.
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
	// ctx must not interrupt the request, because the next request would then read its response.
	// The relay responds within dialTimeout.
	_ = r.ours.SetDeadline(time.Now().Add(2 * dialTimeout))
	if _, err := r.ours.Write(binary.BigEndian.AppendUint16(nil, uint16(port))); err != nil {
		return nil, err
	}
	response, rights := make([]byte, 1), make([]byte, syscall.CmsgSpace(4))
	_, n, _, _, err := r.ours.ReadMsgUnix(response, rights)
	if err != nil {
		_ = r.ours.Close() // a late response would be taken for that of the next request
		return nil, err
	}
	fd, err := parseDescriptor(rights[:n])
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), address)
	defer file.Close()
	return net.FileConn(file)
}

// parseDescriptor returns the descriptor in the control message of a response.
func parseDescriptor(rights []byte) (int, error) {
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

// serveRelay runs a program, and serves requests to connect until the program exits. It returns the
// program's exit status.
func serveRelay(args []string) int {
	syscall.CloseOnExec(controlFile)
	control := os.NewFile(controlFile, "control")
	conn, err := net.FileConn(control)
	_ = control.Close() // conn has a duplicate of the descriptor
	if err == nil && len(args) == 0 {
		err = errors.New("no program is given")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "relay: start with the control socket on descriptor %d: %v\n", controlFile, err)
		return 1
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 127
	}
	go func() {
		for range terminated {
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	}()
	go serveDials(conn.(*net.UnixConn))
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

func serveDials(conn *net.UnixConn) {
	request := make([]byte, 2)
	for {
		for n := 0; n < len(request); {
			more, err := conn.Read(request[n:])
			if err != nil {
				return
			}
			n += more
		}
		if err := serveDial(conn, binary.BigEndian.Uint16(request)); err != nil {
			return
		}
	}
}

// serveDial connects to a port, and sends the connected socket. If it cannot connect, it sends a
// response without a socket.
func serveDial(conn *net.UnixConn, port uint16) error {
	var rights []byte
	if tcp, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), dialTimeout); err == nil {
		file, err := tcp.(*net.TCPConn).File()
		_ = tcp.Close() // file has a duplicate of the descriptor
		if err == nil {
			defer file.Close()
			rights = syscall.UnixRights(int(file.Fd()))
		}
	}
	_, _, err := conn.WriteMsgUnix([]byte{0}, rights, nil)
	return err
}
