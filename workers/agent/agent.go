// Package agent runs on a worker node. The agent connects to the control plane and sends a
// heartbeat every two seconds. The heartbeat reports all running work and its progress; the reply
// lists what should run, and the agent starts and stops work accordingly. The agent's only state on
// disk is its key, a cache of files, and records of the attempts that it has started.
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
	"anneal/eventlog/natsconn"
	"anneal/workers/protocol"
)

// Options configure an Agent.
type Options struct {
	Node  string        // node ID
	Token string        // join token for the first contact; "" once the node is enrolled
	Key   nkeys.KeyPair // authenticates the agent; nil uses the key in Dir
	URL   string        // comma-separated list of NATS servers, nats://host:port
	// NATS holds further options of the connection, such as TLS or an in-process server.
	NATS []nats.Option

	Pool   string // training, inference or "" for both
	Region string // one of domain.Regions; "" without one
	Labels map[string]string
	// ShareAccelerators offers shares of devices to replicas; the engine must share devices.
	ShareAccelerators bool

	Capacity map[string]int // accelerators: type → devices; nil detects them
	Cores    int            // of the node; 0 is the cores of this machine
	// CheckDevices is the time between two readings of the state of detected devices; 0 disables the
	// readings.
	CheckDevices time.Duration
	Dir          string // directory of the cache and work in progress; only one agent may use it
	CacheBytes   int64  // limit for unused files in the cache; 0 is 64 GiB
	Engine       engines.Engine
	Version      string // version of anneal
	// LeaveWithin limits the shutdown, in which checkpoints are saved and responses finished; 0 is
	// 25 s.
	LeaveWithin time.Duration
	LoadWithin  time.Duration // timeout of the engine to load a model or an addon; 0 is 30 min
	Sound       Sound         // decodes recordings; nil means that the node serves no speech models
	HTTP        *http.Client  // client that downloads and uploads files; nil uses a client with the settings in TLS
	TLS         *tls.Config   // TLS settings of the default client; nil trusts the system's authorities
	Log         *slog.Logger  // nil discards log messages
}

// Sound decodes the recording at path, in any supported format, to the samples that transcribers
// read. preprocessing is one of the Preprocess names of engines, or "" for none. A *domain.Error
// with code InvalidArgument means that the recording is invalid.
type Sound func(ctx context.Context, path, preprocessing string) (io.ReadCloser, error)

// KeyFile is the name of the file in Options.Dir that holds the agent's key.
const KeyFile = "node.nkey"

// An Agent runs the work of one node.
type Agent struct {
	options Options
	log     *slog.Logger
	boot    string // random ID of this run of the agent
	spec    domain.NodeSpec
	conn    *nats.Conn
	cache   *cache
	files   *transfer
	started *startedAttempts
	devices *devices
	watch   *deviceWatch  // nil if the state of the devices is not read
	wake    chan struct{} // receives a value when a heartbeat is requested

	mu       sync.Mutex
	number   uint64 // number of the last heartbeat
	seen     uint64 // newest log position that a coordinator sent
	attempts map[string]*attempt
	replicas map[string]*replica
	streams  map[string]response
	leaving  bool
	work     sync.WaitGroup // goroutines of attempts and replicas
}

// New returns an Agent; Run starts it. New inspects the machine and changes nothing.
func New(o Options) (*Agent, error) {
	var v domain.Violations
	v.Require(domain.ValidID(o.Node), "node", domain.IDRule)
	v.Require(o.Dir != "", "dir", "is required: a directory for the cache and work in progress")
	v.Require(o.URL != "" || len(o.NATS) > 0, "url", "is required: the address of NATS, like nats://HOST:4222")
	v.Require(o.Pool == "" || o.Pool == domain.PoolTraining || o.Pool == domain.PoolInference, "pool",
		"%.64q must be training, inference, or empty for both", o.Pool)
	v.Require(o.Region == "" || slices.Contains(domain.Regions[1:], o.Region), "region", "%.64q %s", o.Region,
		domain.OneOfRule(o.Region, domain.Regions[1:]))
	for kind, n := range o.Capacity {
		v.Require(kind != "" && n > 0, "accelerators", "%.64s=%d must be TYPE=N with N at least 1", kind, n)
	}
	v.Require(!o.ShareAccelerators || o.Engine.SharesDevices || o.Engine.Completer == nil, "share-accelerators",
		"the engine %s does not limit the memory of a model to a share of a device: use vllm, or a command line of "+
			"--engine-command with {share}, or leave the flag out", o.Engine.Name)
	if err := v.Err(); err != nil {
		return nil, err
	}
	o.CacheBytes, o.LeaveWithin = cmp.Or(o.CacheBytes, 64<<30), cmp.Or(o.LeaveWithin, 25*time.Second)
	o.LoadWithin = cmp.Or(o.LoadWithin, defaultLoadTimeout)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	accelerators := engines.NumberDevices(o.Capacity)
	var found []driverDevice
	if o.Capacity == nil {
		found = findAccelerators()
		accelerators = devicesOf(found)
	}
	capacity, err := capacityOf(accelerators)
	if err != nil {
		return nil, err
	}
	if o.Cores > 0 {
		capacity.CPUMilli = int64(o.Cores) * 1000
	}
	files := newTransfer(o.HTTP)
	if transport, ok := files.client.Transport.(*http.Transport); ok && o.HTTP == nil {
		transport.TLSClientConfig = o.TLS
	}
	a := &Agent{
		options: o, log: o.Log.With("node", o.Node), boot: rand.Text(), files: files,
		spec: domain.NodeSpec{Pool: o.Pool, Region: o.Region, Labels: o.Labels, Capacity: capacity,
			Engines: abilitiesOf(o), Version: o.Version},
		cache: &cache{dir: filepath.Join(o.Dir, "cache"), limit: o.CacheBytes, files: files,
			entries: map[string]*entry{}},
		started: &startedAttempts{path: filepath.Join(o.Dir, "begun.jsonl"),
			earlierDir: filepath.Join(o.Dir, "begun")}, devices: newDevices(accelerators),
		wake: make(chan struct{}, 1), attempts: map[string]*attempt{}, replicas: map[string]*replica{},
		streams: map[string]response{},
	}
	if len(found) > 0 && o.CheckDevices > 0 {
		a.watch = newDeviceWatch(a, found)
	}
	return a, nil
}

// Memory returns the machine's memory in bytes.
func (a *Agent) Memory() int64 { return a.spec.Capacity.MemoryMiB << 20 }

// abilitiesOf returns the capabilities of a node.
func abilitiesOf(o Options) []string {
	all := abilities(o.Engine, o.Sound)
	if o.ShareAccelerators && o.Engine.Completer != nil && o.Engine.SharesDevices {
		all = append(all, domain.ShareAbility)
	}
	slices.Sort(all)
	return all
}

// abilities returns the capabilities of an engine, as in NodeSpec.Engines. Reinforcement learning
// also requires a scorer, and transcription requires sound.
func abilities(e engines.Engine, sound Sound) []string {
	all := map[string]bool{"train": e.Trainer != nil, "complete": e.Completer != nil, "score": e.Scorer != nil}
	_, gangs := e.Trainer.(engines.GangTrainer)
	all[domain.GangAbility] = gangs
	for _, method := range e.Methods {
		all["train:"+method] = e.Trainer != nil && (method != engines.Reinforcement || e.Scorer != nil)
	}
	for format := range e.Transcribers {
		all[domain.SpeechEngine(format)] = sound != nil
	}
	for _, name := range e.Programs {
		all[domain.EngineAbility(name)] = true
	}
	maps.DeleteFunc(all, func(_ string, can bool) bool { return !can })
	return slices.Sorted(maps.Keys(all))
}

// Run runs the agent until ctx is done, and then shuts it down: attempts save a checkpoint and
// responses finish, within LeaveWithin. Run returns an error when the directory cannot be used, the
// address is invalid, or another agent has registered as this node. It retries while the control
// plane is unreachable.
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
	a.watchDevices(life)
	for ctx.Err() == nil {
		wait, err := a.heartbeat(ctx, life)
		if err != nil {
			return err
		}
		pause := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-a.wake:
		case <-pause.C:
		}
		pause.Stop()
	}
	a.leave(life)
	return nil
}

// openDir locks and prepares the agent's directory. The caller calls unlock when the agent has
// stopped.
func (a *Agent) openDir() (unlock func(), err error) {
	for _, dir := range []string{a.cache.dir, a.workDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("open the agent's directory: %w", err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(a.options.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the agent's directory: %w", err)
	}
	unlock = func() { // closing the lock releases it
		a.started.close()
		_ = lock.Close()
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		unlock()
		return nil, domain.Errorf(domain.FailedPrecondition,
			"another agent uses directory %s: stop that agent, or choose another directory", a.options.Dir)
	}
	// Work in progress of an earlier run cannot be continued.
	err = errors.Join(os.RemoveAll(a.workDir()), os.MkdirAll(a.workDir(), 0o700))
	if err == nil {
		err = a.cache.open()
	}
	if err == nil {
		err = a.started.open()
	}
	if err != nil {
		unlock()
		return nil, fmt.Errorf("open the agent's directory: %w", err)
	}
	return unlock, nil
}

func (a *Agent) workDir() string { return filepath.Join(a.options.Dir, "work") }

// connect connects to NATS; the NATS client retries until it is connected. Messages are not
// buffered while the connection is down, because the agent repeats messages that are still current.
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
		return fmt.Errorf("read the node's key: %w", err)
	}
	options := append([]nats.Option{
		nats.Nkey(public, key.Sign),
		nats.Name("anneal agent " + a.options.Node),
		nats.UserInfo(a.options.Node, a.options.Token),
		nats.CustomInboxPrefix("_INBOX." + a.options.Node),
		nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(500 * time.Millisecond), nats.ReconnectJitter(250*time.Millisecond, time.Second),
		nats.ReconnectBufSize(-1),
		nats.ConnectHandler(func(*nats.Conn) { a.requestHeartbeat() }),
		nats.ReconnectHandler(func(*nats.Conn) { a.log.Info("reconnected to NATS"); a.requestHeartbeat() }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				a.log.Warn("connection to NATS lost: work continues, and reports are sent after reconnecting", "error", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription,
			err error) {
			a.log.Warn("NATS error", "error", err)
		}),
	}, a.options.NATS...)
	conn, err := natsconn.Connect(a.options.URL, options...)
	if err != nil {
		return domain.Errorf(domain.InvalidArgument, "connect to NATS at %s: %v", a.options.URL, err)
	}
	a.conn = conn
	for subject, handle := range map[string]nats.MsgHandler{
		protocol.WakeSubject(a.options.Node):       func(*nats.Msg) { a.requestHeartbeat() },
		protocol.CompleteSubject(a.options.Node):   func(m *nats.Msg) { completions.start(a, life, m) },
		protocol.EmbedSubject(a.options.Node):      func(m *nats.Msg) { embeddings.start(a, life, m) },
		protocol.TranscribeSubject(a.options.Node): func(m *nats.Msg) { transcriptions.start(a, life, m) },
		protocol.AckSubject(a.options.Node):        a.handleAck,
	} {
		if _, err := conn.Subscribe(subject, handle); err != nil {
			conn.Close()
			return fmt.Errorf("subscribe to %s: %w", subject, err)
		}
	}
	return nil
}

// requestHeartbeat makes the agent send a heartbeat immediately.
func (a *Agent) requestHeartbeat() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// heartbeatUntil sends heartbeats until all channels in busy are closed or ctx is done.
func (a *Agent) heartbeatUntil(ctx, life context.Context, busy []<-chan struct{}) {
	for len(busy) > 0 {
		wait, err := a.heartbeat(ctx, life)
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

// leave stops all work, within LeaveWithin, and sends the last heartbeat. The coordinator then
// marks the node as lost immediately, so that its work is placed on other nodes.
func (a *Agent) leave(life context.Context) {
	bound, cancel := context.WithTimeout(life, a.options.LeaveWithin)
	defer cancel()
	a.mu.Lock()
	a.leaving = true
	a.spec.Engines = nil // so that the schedulers place no more work on the node
	var busy []<-chan struct{}
	for _, t := range a.attempts {
		t.stop(errLeaving)
		busy = append(busy, t.done)
	}
	for _, s := range a.streams {
		busy = append(busy, s.ended())
	}
	a.mu.Unlock()
	a.heartbeatUntil(bound, life, busy)
	last := a.state()
	last.Leaving = true
	sending, cancelSending := context.WithTimeout(life, 3*time.Second)
	defer cancelSending()
	if err := a.request(sending, protocol.HeartbeatSubject(a.options.Node), last, &protocol.Assignments{}); err != nil {
		a.log.Warn("last heartbeat not delivered: the node will be marked as lost after a timeout", "error", err)
	}
}
