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

// A server is the program that serves one model. It is started again when it
// dies, until it has died too often.
type server struct {
	options  Options
	preset   preset
	template template
	place    place
	own      string                                      // folder of files that are made for it
	scratch  string                                      // folder that it may write
	again    func(ctx context.Context, url string) error // gives a program that was started again what it had

	key    string
	http   *http.Client
	life   context.Context
	end    context.CancelFunc
	ended  chan struct{} // closed when no program runs any more
	failed chan error    // holds the reason when it is given up

	dialers sync.Map // address of a program → *sandbox.Process

	mu  sync.Mutex
	url string // of the running program; "" while there is none
	why error  // there is none
}

const (
	healthEvery = 100 * time.Millisecond
	healthAsks  = 5 * time.Second // one look at its health may take
	portTries   = 3
)

// open starts the program and waits until it is healthy.
func (s *server) open(ctx context.Context) error {
	s.key = rand.Text()
	s.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true, DialContext: s.dial}}
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
		_ = os.RemoveAll(s.scratch) // the first error is told
		return err
	}
	s.set(url, nil)
	go s.keep(program)
	return nil
}

// close ends the program with all that it started.
func (s *server) close() error {
	s.set("", errClosed())
	s.end()
	<-s.ended
	s.http.CloseIdleConnections()
	return os.RemoveAll(s.scratch)
}

func (s *server) set(url string, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() == nil {
		s.url, s.why = url, why
	}
}

// at is where the running program listens.
func (s *server) at() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.url, s.why
}

// start runs the program on a free port, and on another one when somebody else
// took that before the program did.
func (s *server) start(ctx context.Context) (program *sandbox.Process, url string, err error) {
	free := s.options.port
	if free == nil {
		free = freePort
	}
	for range portTries {
		at := s.place
		if at.port, err = free(); err != nil {
			return nil, "", err
		}
		if program, url, err = s.startAt(ctx, at); err == nil || !taken(at.port) {
			break
		}
	}
	return program, url, err
}

// startAt runs the program and waits until it is healthy. ctx bounds the wait.
func (s *server) startAt(ctx context.Context, at place) (*sandbox.Process, string, error) {
	env := slices.Concat([]string{"HF_HUB_OFFLINE=1", "DO_NOT_TRACK=1"}, s.preset.env, engines.VisibleDevicesEnv(at.devices), s.place.env)
	if s.preset.keyEnv != "" {
		env = append(env, s.preset.keyEnv+"="+s.key)
	}
	env = append(env, s.options.Env...)
	if s.options.Runner.Confined() { // there is no other interface
		env = append(env, "VLLM_HOST_IP=127.0.0.1", "NCCL_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo")
	}
	program, err := s.options.Runner.Start(sandbox.Program{
		Args: s.template.expand(at, s.preset.adapter), Env: process.Environment(s.preset.prefixes, env...),
		Read: s.reads(), Write: s.scratch, Serves: true, Devices: true, Limits: limits,
	})
	if err != nil {
		return nil, "", err
	}
	address := fmt.Sprintf("127.0.0.1:%d", at.port)
	url := "http://" + address
	s.dialers.Store(address, program)
	go func() {
		<-program.Done()
		s.dialers.CompareAndDelete(address, program)
	}()
	if err := s.healthy(ctx, program, url); err != nil {
		program.Stop(s.life, s.options.GracePeriod)
		return nil, "", err
	}
	return program, url, nil
}

// limits hold for each server. What memory it takes is its model's, and the accelerators' libraries
// map far more than they use.
var limits = sandbox.Limits{Processes: 8192, Files: 1 << 16}

// reads are the files that the program may read.
func (s *server) reads() []string {
	var all []string
	for _, path := range []string{s.own, s.place.dir, s.place.adapter, s.place.gguf, s.place.file} {
		if path != "" {
			all = append(all, path)
		}
	}
	return all
}

// dial connects to the program that listens at an address in its own network.
func (s *server) dial(ctx context.Context, network, address string) (net.Conn, error) {
	program, running := s.dialers.Load(address)
	if !running {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	return program.(*sandbox.Process).Dial(ctx, network, address)
}

// healthy waits until the program answers that it is.
func (s *server) healthy(ctx context.Context, program *sandbox.Process, url string) error {
	for {
		if s.looks(ctx, url+s.preset.health) {
			return nil
		}
		timer := time.NewTimer(healthEvery)
		select {
		case <-program.Done():
			return died(program)
		case <-ctx.Done():
			return fmt.Errorf("the server was not ready: %w%s", context.Cause(ctx), program.LastOutput())
		case <-s.life.Done():
			return errClosed()
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (s *server) looks(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, healthAsks)
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
	_ = response.Body.Close() // it was only looked at
	return response.StatusCode == http.StatusOK
}

// died says that the program ended, and what it said last.
func died(program *sandbox.Process) error {
	reason := cmp.Or(program.Err(), errors.New("it ended without an error"+program.LastOutput()))
	return domain.Errorf(domain.Unavailable, "the server of the model ended: %v", reason)
}

// keep has the program running until the server is closed or given up.
func (s *server) keep(program *sandbox.Process) {
	defer close(s.ended)
	deaths := 0
	for program != nil {
		began := time.Now()
		select {
		case <-s.life.Done():
			program.Stop(context.Background(), s.options.GracePeriod)
			return
		case <-program.Done():
		}
		if time.Since(began) > s.options.StableAfter {
			deaths = 0
		}
		program = s.revive(died(program), &deaths)
	}
}

// revive starts the program again; nil is that it is given up, or closed.
func (s *server) revive(why error, deaths *int) *sandbox.Process {
	for {
		*deaths++
		s.set("", why)
		if *deaths >= s.options.MaxCrashes {
			s.failed <- why
			return nil
		}
		pause := time.NewTimer(s.options.RestartDelay << (*deaths - 1))
		select {
		case <-s.life.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
		program, url, err := s.start(s.life)
		if err == nil {
			if err = s.again(s.life, url); err == nil {
				s.set(url, nil)
				return program
			}
			program.Stop(s.life, s.options.GracePeriod)
		}
		why = err
	}
}

// freePort is a port on the loopback that nobody uses at this moment.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// taken tells whether somebody has a port on the loopback.
func taken(port int) bool {
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
