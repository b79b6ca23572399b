// Package agent runs on a worker node and executes the work of the node. The agent connects to the
// control plane and sends a heartbeat every two seconds. The heartbeat reports all running work and
// its progress. The reply lists what should run, and the agent starts and stops work accordingly.
// On disk it only keeps its key, a cache of files, and records of the attempts that it has started.
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
	"sync/atomic"
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
	Node  string        // ID of the node
	Token string        // join token for enrolling the node; "" when the node is enrolled
	Key   nkeys.KeyPair // NKey that authenticates the agent; nil uses the key in Dir
	URL   string        // URL of the NATS server, or several separated by commas
	// NATS has further options of the NATS connection, such as TLS or an in-process server.
	NATS []nats.Option

	Pool   string // "training" or "inference" to accept only such work; "" accepts both
	Region string // one of domain.Regions; "" for a node without a region
	Labels map[string]string
	// ShareAccelerators lets several replicas share a device. The engine must be able to limit the
	// memory of a model.
	ShareAccelerators bool

	Capacity map[string]int // number of devices by accelerator type; nil detects the devices of the machine
	Cores    int            // number of CPU cores that the node offers; 0 means those of the machine
	// CheckDevices is the interval at which the state of detected devices is read; 0 disables it.
	CheckDevices time.Duration
	Dir          string // directory of the cache and of work in progress; only one agent may use it
	CacheBytes   int64  // maximum bytes of unused files in the cache; 0 means 64 GiB
	Engine       engines.Engine
	Version      string // version of the anneal program
	// LeaveWithin limits the shutdown, in which attempts save checkpoints and responses are finished.
	// 0 means 25 s.
	LeaveWithin time.Duration
	// RecoveryInterval is the time between two recovery checkpoints of a training run that has
	// changed; 0 means 30 s.
	RecoveryInterval time.Duration
	LoadWithin       time.Duration // timeout for the engine to load a model or an addon; 0 means 30 min
	Sound            Sound         // decodes audio files; nil means that the node serves no speech models
	HTTP             *http.Client  // client for downloads and uploads; nil uses a client with the settings in TLS
	// TLS has the TLS settings of the default client; nil trusts the certificate authorities of the
	// system.
	TLS *tls.Config
	Log *slog.Logger // receives log messages; nil discards them
}

// A Sound decodes the audio file at path to the samples that speech models read. preprocessing is
// one of the Preprocess constants of package engines, or "" for none. A *domain.Error with the code
// InvalidArgument means that the file is not valid audio.
type Sound func(ctx context.Context, path, preprocessing string) (io.ReadCloser, error)

// KeyFile is the name of the file with the agent's key in Options.Dir.
const KeyFile = "node.nkey"

// An Agent executes the work that the coordinator assigns to one node.
type Agent struct {
	options Options
	log     *slog.Logger
	boot    string // random ID of this run of the agent process, which heartbeats contain
	spec    domain.NodeSpec
	conn    *nats.Conn
	link    atomic.Pointer[nats.Conn] // conn, for Connected, which may be called before Run
	meters  *meters
	cache   *cache
	files   *transfer
	started *startedAttempts
	devices *devices
	watch   *deviceWatch  // reads the state of the devices; nil when it is not read
	wake    chan struct{} // receives an element when a heartbeat should be sent now

	reconnected signal // fires after each reconnection to NATS

	mu       sync.Mutex
	number   uint64 // sequence number of the last heartbeat
	seen     uint64 // highest log position that a coordinator's reply contained
	attempts map[string]*attempt
	replicas map[string]*replica
	streams  map[string]response
	leaving  bool
	work     sync.WaitGroup // counts the goroutines of attempts and replicas, for which the agent waits before it stops
}

// New returns an Agent for this machine. Call Run to start it.
func New(o Options) (*Agent, error) {
	var v domain.Violations
	v.Require(domain.ValidID(o.Node), "node", domain.IDRule)
	v.Require(o.Dir != "", "dir", "is required: the directory for the cache and for work in progress")
	v.Require(o.URL != "" || len(o.NATS) > 0, "url", "is required: the URL of the NATS server, such as nats://HOST:4222")
	v.Require(o.Pool == "" || o.Pool == domain.PoolTraining || o.Pool == domain.PoolInference, "pool",
		"%.64q must be training, inference, or empty for both", o.Pool)
	v.Require(o.Region == "" || slices.Contains(domain.Regions[1:], o.Region), "region", "%.64q %s", o.Region,
		domain.OneOfRule(o.Region, domain.Regions[1:]))
	for kind, n := range o.Capacity {
		v.Require(kind != "" && n > 0, "accelerators", "%.64s=%d must be TYPE=N with N at least 1", kind, n)
	}
	v.Require(!o.ShareAccelerators || o.Engine.SharesDevices || o.Engine.Completer == nil, "share-accelerators",
		"the engine %s does not limit the memory of a model to a share of a device: use the engine vllm, use an "+
			"--engine-command with {share}, or omit the flag", o.Engine.Name)
	if err := v.Err(); err != nil {
		return nil, err
	}
	o.CacheBytes, o.LeaveWithin = cmp.Or(o.CacheBytes, 64<<30), cmp.Or(o.LeaveWithin, 25*time.Second)
	o.LoadWithin = cmp.Or(o.LoadWithin, defaultLoadTimeout)
	o.RecoveryInterval = cmp.Or(o.RecoveryInterval, recoveryInterval)
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
	meters := newMeters()
	a := &Agent{
		meters: meters, options: o, log: o.Log.With("node", o.Node), boot: rand.Text(), files: files,
		spec: domain.NodeSpec{Pool: o.Pool, Region: o.Region, Labels: o.Labels, Capacity: capacity,
			Engines: abilitiesOf(o), Version: o.Version},
		cache: &cache{dir: filepath.Join(o.Dir, "cache"), limit: o.CacheBytes, files: files, meters: meters,
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

// Memory returns the memory of the machine in bytes.
func (a *Agent) Memory() int64 { return a.spec.Capacity.MemoryMiB << 20 }

// abilitiesOf returns the abilities of the node: what its engine can do, as in NodeSpec.Engines.
func abilitiesOf(o Options) []string {
	all := abilities(o.Engine, o.Sound)
	if o.ShareAccelerators && o.Engine.Completer != nil && o.Engine.SharesDevices {
		all = append(all, domain.ShareAbility)
	}
	slices.Sort(all)
	return all
}

// abilities returns the abilities of an engine, as in NodeSpec.Engines. Reinforcement learning also
// needs a scorer, and transcription needs sound.
func abilities(e engines.Engine, sound Sound) []string {
	all := map[string]bool{"train": e.Trainer != nil, "complete": e.Completer != nil, "score": e.Scorer != nil}
	if _, ok := e.Trainer.(engines.GangTrainer); ok {
		all[e.Gang] = e.Gang != ""
	}
	for _, method := range e.Methods {
		all["train:"+method] = e.Trainer != nil && (method != engines.Reinforcement || e.Scorer != nil)
	}
	if e.TrainPools != nil {
		service := "train:" + domain.MethodService
		all[service] = true
		if pools, ok := e.TrainPools.(interface{ Kernel() string }); ok {
			all[service+":"+pools.Kernel()] = true
		}
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

// Run executes assigned work until ctx is done. Then it shuts the agent down within LeaveWithin:
// attempts save a checkpoint, and responses are finished. While the control plane is unreachable,
// Run tries again. It returns an error when the directory cannot be used, the NATS URL is invalid,
// or another agent has registered as this node.
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

// openDir locks the agent's directory and prepares it. The caller calls unlock when the agent has
// stopped.
func (a *Agent) openDir() (unlock func(), err error) {
	for _, dir := range []string{a.cache.dir, a.workDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("prepare the agent's directory: %w", err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(a.options.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("prepare the agent's directory: %w", err)
	}
	unlock = func() { // closing the file releases the lock
		a.started.close()
		_ = lock.Close()
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		unlock()
		return nil, domain.Errorf(domain.FailedPrecondition,
			"another agent uses the directory %s: stop that agent, or choose another directory", a.options.Dir)
	}
	// Attempts that an earlier process was executing cannot be continued from their files.
	err = errors.Join(os.RemoveAll(a.workDir()), os.MkdirAll(a.workDir(), 0o700))
	if err == nil {
		err = a.cache.open()
	}
	if err == nil {
		err = a.started.open()
	}
	if err != nil {
		unlock()
		return nil, fmt.Errorf("prepare the agent's directory: %w", err)
	}
	return unlock, nil
}

func (a *Agent) workDir() string { return filepath.Join(a.options.Dir, "work") }

// connect connects to NATS and subscribes to the requests for this node. When the server is
// unreachable, the NATS client keeps trying. Messages are not buffered while the connection is
// interrupted, because the agent repeats those that are still needed.
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
		nats.ReconnectHandler(func(*nats.Conn) {
			a.log.Info("reconnected to NATS")
			a.reconnected.fire()
			a.requestHeartbeat()
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				a.log.Warn("lost the connection to NATS: work continues, and reports are sent after reconnecting", "error", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription,
			err error) {
			a.log.Warn("NATS error", "error", err)
		}),
	}, a.options.NATS...)
	conn, err := natsconn.Connect(a.options.URL, options...)
	if err != nil {
		return domain.Errorf(domain.InvalidArgument, "cannot connect to NATS at %s: %v: check the URL", a.options.URL, err)
	}
	a.conn = conn
	a.link.Store(conn)
	for subject, handle := range map[string]nats.MsgHandler{
		protocol.WakeSubject(a.options.Node):       func(*nats.Msg) { a.requestHeartbeat() },
		protocol.CompleteSubject(a.options.Node):   func(m *nats.Msg) { completions.start(a, life, m) },
		protocol.EmbedSubject(a.options.Node):      func(m *nats.Msg) { embeddings.start(a, life, m) },
		protocol.TranscribeSubject(a.options.Node): func(m *nats.Msg) { transcriptions.start(a, life, m) },
		protocol.AckSubject(a.options.Node):        a.handleAck,
	} {
		if _, err := conn.Subscribe(subject, handle); err != nil {
			conn.Close()
			return fmt.Errorf("subscribe to the NATS subject %s: %w", subject, err)
		}
	}
	return nil
}

// requestHeartbeat makes the agent send a heartbeat now.
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

// leave stops all work within LeaveWithin, and sends a last heartbeat. The coordinator then marks
// the node as lost immediately, so that its work moves to other nodes.
func (a *Agent) leave(life context.Context) {
	bound, cancel := context.WithTimeout(life, a.options.LeaveWithin)
	defer cancel()
	a.mu.Lock()
	a.leaving = true
	a.spec.Engines = nil // a node without abilities gets no more work
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
		a.log.Warn("cannot deliver the last heartbeat: the control plane will notice only after a timeout that this node "+
			"has left", "error", err)
	}
}
