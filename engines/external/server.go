package external

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/process"
	"anneal/engines/sandbox"
)

// A server runs the program that serves one model. It restarts the program when it exits, until the
// program has crashed Options.MaxCrashes times in succession.
type server struct {
	options  Options
	preset   preset
	template template
	args     arguments
	own      string // directory with generated files that the program reads
	scratch  string // directory that the program may write
	// onRestart is called with the URL of a restarted program, and restores its state.
	onRestart func(ctx context.Context, url string) error

	key    string // API key with which requests to the program authenticate
	http   *http.Client
	life   context.Context
	end    context.CancelFunc
	ended  chan struct{} // closed when the server is closed or has crashed too often
	failed chan error    // receives the reason when the server has crashed too often

	dialers sync.Map // the *sandbox.Process of a program, by the address on which it listens

	mu          sync.Mutex
	url         string // URL of the running program; "" while none is running
	unavailable error  // error that states why no program is running
}

const (
	healthInterval = 100 * time.Millisecond
	healthTimeout  = 5 * time.Second // maximum time of a health check
	maxPorts       = 3               // maximum number of ports that start tries
)

// open starts the program, and waits until it is healthy.
func (s *server) open(ctx context.Context) error {
	s.key = rand.Text()
	s.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true,
		DialContext: s.dial}}
	s.ended, s.failed = make(chan struct{}), make(chan error, 1)
	s.life, s.end = context.WithCancel(context.WithoutCancel(ctx))
	var err error
	if s.scratch, err = os.MkdirTemp(s.options.Dir, "anneal-scratch-*"); err != nil {
		s.end()
		return err
	}
	program, url, err := s.start(ctx)
	if err != nil {
		s.end()
		_ = os.RemoveAll(s.scratch) // the error of the start is returned instead
		return err
	}
	s.set(url, nil)
	go s.supervise(program)
	return nil
}

// close stops the program and its descendants.
func (s *server) close() error {
	s.set("", errClosed())
	s.end()
	<-s.ended
	s.http.CloseIdleConnections()
	return os.RemoveAll(s.scratch)
}

func (s *server) set(url string, unavailable error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() == nil {
		s.url, s.unavailable = url, unavailable
	}
}

// address returns the URL of the running program, or an error that states why none is running.
func (s *server) address() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.url, s.unavailable
}

// start runs the program on a free port until it is healthy, and returns the program and its URL.
// If another process takes the port before the program does, it tries another port.
func (s *server) start(ctx context.Context) (program *sandbox.Process, url string, err error) {
	free := s.options.port
	if free == nil {
		free = freePort
	}
	for range maxPorts {
		args := s.args
		if args.port, err = free(); err != nil {
			return nil, "", err
		}
		if program, url, err = s.startWith(ctx, args); err == nil || !inUse(args.port) {
			break
		}
	}
	return program, url, err
}

// startWith runs the program with the arguments, and waits until it is healthy or ctx is done. It
// returns the program and its URL.
func (s *server) startWith(ctx context.Context, args arguments) (*sandbox.Process, string, error) {
	env := slices.Concat([]string{"HF_HUB_OFFLINE=1", "DO_NOT_TRACK=1"}, s.preset.env,
		engines.VisibleDevicesEnv(args.devices), args.env)
	if s.preset.keyEnv != "" {
		env = append(env, s.preset.keyEnv+"="+s.key)
	}
	env = append(env, s.options.Env...)
	if s.options.Runner.Confined() { // the loopback is the only network interface of the sandbox
		env = append(env, "VLLM_HOST_IP=127.0.0.1", "NCCL_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo")
	}
	line := s.preset.commandLine(s.template, args)
	program, err := s.options.Runner.Start(sandbox.Program{
		Args: line, Env: process.Environment(s.preset.prefixes, env...),
		Read: s.readable(), Write: s.scratch, Serves: true, Devices: true, Limits: limits,
	})
	if err != nil {
		return nil, "", err
	}
	address := fmt.Sprintf("127.0.0.1:%d", args.port)
	url := "http://" + address
	s.dialers.Store(address, program)
	go func() {
		<-program.Done()
		s.dialers.CompareAndDelete(address, program)
	}()
	if err := s.waitHealthy(ctx, program, url); err != nil {
		program.Stop(s.life, s.options.GracePeriod)
		return nil, "", err
	}
	return program, url, nil
}

// limits are the resource limits of a program. They do not limit the memory: it depends on the
// model, and accelerator libraries map far more address space than they use.
var limits = sandbox.Limits{Processes: 8192, Files: 1 << 16}

// readable returns the files and directories that the program may read.
func (s *server) readable() []string {
	var all []string
	for _, path := range []string{s.own, s.args.dir, s.args.adapter, s.args.gguf, s.args.file, s.args.draft} {
		if path != "" {
			all = append(all, path)
		}
	}
	return all
}

// dial connects to an address in the network namespace of the program that listens there.
func (s *server) dial(ctx context.Context, network, address string) (net.Conn, error) {
	program, running := s.dialers.Load(address)
	if !running {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	return program.(*sandbox.Process).Dial(ctx, network, address)
}

// waitHealthy requests the program's health path until that succeeds. It returns an error if the
// program exits, if ctx is done, or if the server is closed.
func (s *server) waitHealthy(ctx context.Context, program *sandbox.Process, url string) error {
	for {
		if s.isHealthy(ctx, url+s.preset.health) {
			return nil
		}
		timer := time.NewTimer(healthInterval)
		select {
		case <-program.Done():
			return exitError(program)
		case <-ctx.Done():
			return fmt.Errorf("the model server did not become healthy: %w%s", context.Cause(ctx), program.LastOutput())
		case <-s.life.Done():
			return errClosed()
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (s *server) isHealthy(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	request.Header.Set("Authorization", "Bearer "+s.key)
	response, err := s.http.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close() // only the status is needed
	return response.StatusCode == http.StatusOK
}

// exitError returns the error for requests after the program has exited.
func exitError(program *sandbox.Process) error {
	reason := cmp.Or(program.Err(), errors.New("the program exited without an error"+program.LastOutput()))
	return domain.Errorf(domain.Unavailable, "the model server exited: %v", reason)
}

// supervise restarts the program when it exits, until the server is closed or has crashed too
// often.
func (s *server) supervise(program *sandbox.Process) {
	defer close(s.ended)
	crashes := 0
	for program != nil {
		began := time.Now()
		select {
		case <-s.life.Done():
			program.Stop(context.Background(), s.options.GracePeriod)
			return
		case <-program.Done():
		}
		if time.Since(began) > s.options.StableAfter {
			crashes = 0
		}
		program = s.restart(exitError(program), &crashes)
	}
}

// restart starts the program again after it has exited for the reason why. It increments crashes
// for each attempt. It returns nil if the server is closed or has crashed too often.
func (s *server) restart(why error, crashes *int) *sandbox.Process {
	for {
		*crashes++
		s.set("", why)
		if *crashes >= s.options.MaxCrashes {
			s.failed <- why
			return nil
		}
		pause := time.NewTimer(s.options.RestartDelay << (*crashes - 1))
		select {
		case <-s.life.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
		program, url, err := s.start(s.life)
		if err == nil {
			if err = s.onRestart(s.life, url); err == nil {
				s.set(url, nil)
				return program
			}
			program.Stop(s.life, s.options.GracePeriod)
		}
		why = err
	}
}

// freePort returns an unused port of the loopback interface. Another process can take the port
// before the caller does.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// inUse reports whether a process listens on a port of the loopback interface.
func inUse(port int) bool {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return true
	}
	_ = l.Close()
	return false
}

func errClosed() error {
	return domain.Errorf(domain.Unavailable, "the model was unloaded; send the request to another replica")
}
