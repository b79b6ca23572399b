// Package agent works on a node: it dials out to the control plane, says every
// two seconds what runs and how far it is, and makes it be what the answer
// says should run. It keeps no state but a cache and a note of what it began.
package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

// Options say who the agent is and what it may use.
type Options struct {
	Node  string        // the node's id
	Token string        // with which it joins at its first contact; "" once it has
	Key   nkeys.KeyPair // with which it authenticates; nil is one that is kept in Dir
	URL   string        // of NATS, nats://host:port; several separated by commas
	// NATS are more options of the connection, such as TLS or a server in
	// this process.
	NATS []nats.Option

	Pool       string         // training, inference, or "" for both
	Capacity   map[string]int // accelerators, type → devices; nil finds them
	Dir        string         // for caches and work in progress; one agent's alone
	CacheBytes int64          // most bytes of cached files that nothing uses; 0 is 64 GiB
	Engine     engines.Engine
	Version    string // of this program
	// LeaveWithin bounds the goodbye: checkpoints are saved and answers
	// finished in this time; 0 is 25 s.
	LeaveWithin time.Duration
	LoadWithin  time.Duration // how long the engine may take to load a model; 0 is 30 min
	Sound       Sound         // reads recordings; nil leaves speech models to other nodes
	HTTP        *http.Client  // for files; nil is one with sensible limits
	TLS         *tls.Config   // of that one; nil trusts the system's authorities
	Log         *slog.Logger  // nil is silence
}

// Sound reads the recording at path, of whatever form, as the samples that
// listeners take. What it does to them first is one of engines' Preprocess
// names, or "" for none. A *domain.Fault with code InvalidArgument is about the
// recording.
type Sound func(ctx context.Context, path, preprocessing string) (io.ReadCloser, error)

// KeyFile is where an agent keeps its key, in its folder.
const KeyFile = "node.nkey"

// An Agent is one node's worker.
type Agent struct {
	options Options
	log     *slog.Logger
	boot    string // distinguishes this run from others of the same node
	spec    domain.NodeSpec
	conn    *nats.Conn
	cache   *cache
	files   *transfer
	begun   *begun
	devices *devices
	kick    chan struct{} // beat now

	mu       sync.Mutex
	beats    uint64
	seen     uint64 // newest position that was told
	attempts map[string]*attempt
	replicas map[string]*replica
	streams  map[string]answer
	leaving  bool
	work     sync.WaitGroup // goroutines of attempts and replicas
}

// New prepares an agent; it looks at the machine but touches nothing.
func New(o Options) (*Agent, error) {
	var v domain.Violations
	v.Require(domain.ValidID(o.Node), "node", domain.IDRule)
	v.Require(o.Dir != "", "dir", "is required: a folder for caches and work in progress")
	v.Require(o.URL != "" || len(o.NATS) > 0, "url", "is required: the address of NATS, like nats://HOST:4222")
	v.Require(o.Pool == "" || o.Pool == domain.PoolTraining || o.Pool == domain.PoolInference, "pool", "must be training, inference or empty for both")
	for kind, n := range o.Capacity {
		v.Require(kind != "" && n > 0, "accelerators", "must be TYPE=N with N at least 1")
	}
	if err := v.Err(); err != nil {
		return nil, err
	}
	o.CacheBytes, o.LeaveWithin = cmp.Or(o.CacheBytes, 64<<30), cmp.Or(o.LeaveWithin, 25*time.Second)
	o.LoadWithin = cmp.Or(o.LoadWithin, longestLoad)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	accelerators := engines.Number(o.Capacity)
	if o.Capacity == nil {
		accelerators = findAccelerators()
	}
	capacity, err := capacityOf(accelerators)
	if err != nil {
		return nil, err
	}
	files := newTransfer(o.HTTP)
	if transport, own := files.client.Transport.(*http.Transport); own && o.HTTP == nil {
		transport.TLSClientConfig = o.TLS
	}
	return &Agent{
		options: o, log: o.Log.With("node", o.Node), boot: rand.Text(), files: files,
		spec:  domain.NodeSpec{Pool: o.Pool, Capacity: capacity, Engines: abilities(o.Engine, o.Sound), Version: o.Version},
		cache: &cache{dir: filepath.Join(o.Dir, "cache"), limit: o.CacheBytes, files: files, entries: map[string]*entry{}},
		begun: &begun{dir: filepath.Join(o.Dir, "begun")}, devices: newDevices(accelerators),
		kick: make(chan struct{}, 1), attempts: map[string]*attempt{}, replicas: map[string]*replica{}, streams: map[string]answer{},
	}, nil
}

// Memory is what the machine has, in bytes.
func (a *Agent) Memory() int64 { return a.spec.Capacity.MemoryMiB << 20 }

// abilities are what an engine can do, as nodes name it. Who learns from scores
// of its own answers needs somebody to score them; who listens, somebody who
// reads recordings.
func abilities(e engines.Engine, sound Sound) []string {
	all := map[string]bool{"train": e.Trainer != nil, "complete": e.Completer != nil, "score": e.Scorer != nil}
	for _, method := range e.Methods {
		all["train:"+method] = e.Trainer != nil && (method != engines.Reinforcement || e.Scorer != nil)
	}
	for format := range e.Transcribers {
		all[domain.SpeechAbility(format)] = sound != nil
	}
	maps.DeleteFunc(all, func(_ string, can bool) bool { return !can })
	return slices.Sorted(maps.Keys(all))
}

// Run works until ctx is done, then says goodbye: it lets attempts save a
// checkpoint and answers finish, within LeaveWithin. It fails when the folder
// cannot be used, the address is wrong, or another agent has taken over the
// node, but never because nobody answers.
func (a *Agent) Run(ctx context.Context) error {
	unlock, err := a.openDir()
	if err != nil {
		return err
	}
	defer unlock()
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer a.work.Wait()
	defer end()
	if err := a.connect(life); err != nil {
		return err
	}
	defer a.conn.Close()
	for ctx.Err() == nil {
		wait, err := a.beat(ctx, life)
		if err != nil {
			return err
		}
		pause := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-a.kick:
		case <-pause.C:
		}
		pause.Stop()
	}
	a.leave(life)
	return nil
}

// openDir makes the folder this agent's own.
func (a *Agent) openDir() (unlock func(), err error) {
	for _, dir := range []string{a.cache.dir, a.begun.dir, a.workDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("the agent's folder: %w", err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(a.options.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the agent's folder: %w", err)
	}
	unlock = func() { _ = lock.Close() } // which also unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		unlock()
		return nil, domain.Errorf(domain.FailedPrecondition, "another agent works in %s: stop it, or give this one a folder of its own", a.options.Dir)
	}
	// What was under way when an earlier run ended is of no use to anybody.
	err = errors.Join(os.RemoveAll(a.workDir()), os.MkdirAll(a.workDir(), 0o700))
	if err == nil {
		err = a.cache.open()
	}
	if err == nil {
		err = a.begun.open()
	}
	if err != nil {
		unlock()
		return nil, fmt.Errorf("the agent's folder: %w", err)
	}
	return unlock, nil
}

func (a *Agent) workDir() string { return filepath.Join(a.options.Dir, "work") }

// connect dials NATS, for as long as it takes. While the connection is away
// nothing is kept back to be sent later: what is late is said anew.
func (a *Agent) connect(life context.Context) error {
	key := a.options.Key
	if key == nil {
		var err error
		if key, err = OpenKey(filepath.Join(a.options.Dir, KeyFile)); err != nil {
			return err
		}
	}
	public, err := publicOf(key)
	if err != nil {
		return fmt.Errorf("the node's key: %w", err)
	}
	options := append([]nats.Option{
		nats.Nkey(public, key.Sign), nats.Timeout(5 * time.Second),
		nats.Name("anneal agent " + a.options.Node),
		nats.UserInfo(a.options.Node, a.options.Token),
		nats.CustomInboxPrefix("_INBOX." + a.options.Node),
		nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(500 * time.Millisecond), nats.ReconnectJitter(250*time.Millisecond, time.Second),
		nats.ReconnectBufSize(-1),
		nats.ConnectHandler(func(*nats.Conn) { a.beatSoon() }),
		nats.ReconnectHandler(func(*nats.Conn) { a.log.Info("connected again"); a.beatSoon() }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				a.log.Warn("the connection is lost; work goes on, reports wait", "error", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { a.log.Warn("NATS", "error", err) }),
	}, a.options.NATS...)
	conn, err := nats.Connect(a.options.URL, options...)
	if err != nil {
		return domain.Errorf(domain.InvalidArgument, "NATS at %s: %v", a.options.URL, err)
	}
	a.conn = conn
	for subject, handle := range map[string]nats.MsgHandler{
		protocol.WakeSubject(a.options.Node):       func(*nats.Msg) { a.beatSoon() },
		protocol.CompleteSubject(a.options.Node):   func(m *nats.Msg) { completing.take(a, life, m) },
		protocol.TranscribeSubject(a.options.Node): func(m *nats.Msg) { listening.take(a, life, m) },
		protocol.AckSubject(a.options.Node):        a.hear,
	} {
		if _, err := conn.Subscribe(subject, handle); err != nil {
			conn.Close()
			return fmt.Errorf("listening on %s: %w", subject, err)
		}
	}
	return nil
}

// beatSoon makes the next beat come at once.
func (a *Agent) beatSoon() {
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// beatUntil goes on saying that the agent lives, until all is done or ctx is.
func (a *Agent) beatUntil(ctx, life context.Context, busy []<-chan struct{}) {
	for len(busy) > 0 {
		wait, err := a.beat(ctx, life)
		if err != nil {
			return
		}
		pause := time.NewTimer(wait)
		for waiting := true; waiting && len(busy) > 0; {
			select {
			case <-busy[0]:
				busy = busy[1:]
			case <-pause.C:
				waiting = false
			case <-ctx.Done():
				pause.Stop()
				return
			}
		}
		pause.Stop()
	}
}

// leave stops all work, within its bound, and says the last word: the desk
// loses the node at once, and what ran here is placed elsewhere.
func (a *Agent) leave(life context.Context) {
	bound, cancel := context.WithTimeout(life, a.options.LeaveWithin)
	defer cancel()
	a.mu.Lock()
	a.leaving = true
	a.spec.Engines = nil // so that nothing new is placed here
	var busy []<-chan struct{}
	for _, t := range a.attempts {
		t.stop(errLeaving)
		busy = append(busy, t.done)
	}
	for _, s := range a.streams {
		busy = append(busy, s.ended())
	}
	a.mu.Unlock()
	a.beatUntil(bound, life, busy)
	farewell := a.state()
	farewell.Leaving = true
	ask, cancelAsk := context.WithTimeout(life, 3*time.Second)
	defer cancelAsk()
	if err := a.request(ask, protocol.HeartbeatSubject(a.options.Node), farewell, &protocol.Assignments{}); err != nil {
		a.log.Warn("nobody heard the goodbye; the node will be missed soon", "error", err)
	}
}
