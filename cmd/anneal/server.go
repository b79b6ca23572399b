package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/api"
	"anneal/blobs"
	"anneal/blobs/reconcile"
	"anneal/disk"
	"anneal/domain"
	"anneal/engines/sandbox"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/schedulers"
	"anneal/workers/agent"
	"anneal/workers/coordinator"
)

// A server is a running control plane.
type server struct {
	folder  folder
	flags   serveFlags
	logger  *slog.Logger
	certs   serverCerts
	context contextFile // for users of account default

	events  *eventlog.Connection
	nats    *eventlog.Server // nil when the log lies in a cluster
	world   *projections.World
	admits  chan struct{} // closed once agents can be let in
	blobs   *blobs.Store
	handler *api.Server

	admission   *coordinator.Admission
	descriptors descriptorPlan
	meter       *eventlog.Meter
	code        *sandbox.Sandbox // evaluators are built and previewed in it
	http        *http.Server

	vault   *eventlog.Vault            // nil until sealer opens it
	answers *eventlog.IdempotencyStore // nil until openAnswers does
	started chan struct{}              // closed when requests are answered
	release func()                     // of the data folder's lock
	stop    context.CancelFunc         // ends every duty
	duties  duties
}

const (
	snapshotEvery  = 10_000 // events
	snapshotPause  = 30 * time.Second
	drainTime      = 10 * time.Second // for requests that are being answered at the end
	farewellTime   = 30 * time.Second // for the local worker to save and say goodbye
	blobPath       = "/blobs"
	localNode      = "local"
	natsPortFile   = "nats.port"
	operatorKeyID  = "operator"
	defaultAccount = "default"
)

// startServer starts everything and returns once requests are answered. ctx
// ends it: see wait.
func startServer(ctx context.Context, flags serveFlags, logger *slog.Logger) (_ *server, err error) {
	s := &server{folder: folder(flags.data), flags: flags, logger: logger, started: make(chan struct{})}
	if s.release, err = eventlog.LockDir(flags.data); err != nil {
		return nil, err
	}
	duty, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.duties = newDuties(duty)
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.descriptors, err = planDescriptors(); err != nil {
		return nil, err
	}
	listener, err := listen(flags.listen)
	if err != nil {
		return nil, err
	}
	if s.certs, err = flags.tls.open(flags.natsURL != ""); err != nil {
		listener.Close()
		return nil, err
	}
	s.context = contextFile{Address: "http://" + listener.Addr().String(), Account: defaultAccount}
	if s.certs.http != nil {
		s.context.Address = "https://" + listener.Addr().String()
		if s.context.CAFile, err = filepath.Abs(flags.tls.cert); err != nil {
			return nil, err
		}
		listener = tls.NewListener(listener, s.certs.http)
	}
	warnOfPlain(logger, "the interface", "listen", flags.listen, s.certs.http == nil)
	warnOfPlain(logger, "NATS", "natsListen", flags.natsListen, s.certs.nats == nil && flags.natsURL == "")
	if flags.publicURL != "" {
		s.context.Address = strings.TrimRight(flags.publicURL, "/")
	}
	for _, step := range []func(context.Context) error{s.openLog, s.openBlobs, s.openWorld, s.bootstrap, s.ensureReader, s.openDuties} {
		if err := step(duty); err != nil {
			listener.Close()
			return nil, err
		}
	}
	if err := s.openAPI(duty, listener); err != nil {
		return nil, err
	}
	close(s.started)
	if s.nats != nil {
		s.duties.add("readers", s.sweepReaders)
	}
	return s, s.writeContexts()
}

// listen opens the address, or says in words why not.
func listen(address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is in use by another program: stop it, or choose another address with --listen", address)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s may not be opened by this user: choose a port above 1023 with --listen", address)
	case err != nil:
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	return listener, nil
}

func (s *server) openLog(ctx context.Context) error {
	nodeKey, err := s.folder.key("nodes")
	if err != nil {
		return err
	}
	s.admission = &coordinator.Admission{Now: time.Now, Logger: s.logger.With("part", "nodes"),
		ReadToken: func(token string, now time.Time) (coordinator.JoinToken, error) {
			return verifyJoinToken(nodeKey, token, now)
		}}
	s.admits = make(chan struct{})
	verify := func(ctx context.Context, login eventlog.NodeLogin) error {
		select {
		case <-s.admits:
			return s.admission.Admit(ctx, login)
		case <-ctx.Done():
			return fmt.Errorf("the server is still starting: %w", ctx.Err())
		}
	}
	if s.flags.natsURL != "" {
		if err := s.folder.moveMark(); err != nil {
			return err
		}
		s.events, err = eventlog.Connect(ctx, eventlog.ConnectOptions{URL: s.flags.natsURL, Password: os.Getenv("ANNEAL_NATS_PASSWORD"),
			IssuerSeed: os.Getenv("ANNEAL_NATS_ISSUER_SEED"), Replicas: s.flags.natsReplicas, VerifyNode: verify, TLS: s.certs.cluster, Log: s.logger,
			Mark: s.folder.path(clusterMark), AcceptLoss: s.acceptLoss()})
		if err == nil && s.holdsSharedReader() {
			s.logger.Warn("context.json held credentials that read every account's events; they are now in operator.json alone: give the NATS servers another ANNEAL_NATS_READER_PASSWORD")
		}
		return err
	}
	holds, err := projections.Newest(s.folder.path("snapshots"))
	if err != nil {
		return err
	}
	options := eventlog.ServerOptions{Dir: s.folder.path("nats"), Listen: s.natsAddress(), VerifyNode: verify, VerifyReader: s.verifyReader, TLS: s.certs.nats, Holds: holds, Log: s.logger.With("part", "nats"), MaxConnections: s.descriptors.nats}
	if options.NewReaderPassword = s.holdsSharedReader(); options.NewReaderPassword {
		s.logger.Info("context.json held credentials that read every account's events: the operator's are new, in operator.json, and context.json gets those of account default")
	}
	if s.nats, err = eventlog.StartServer(options); err != nil && options.Listen != s.flags.natsListen && !eventlog.IsDamaged(err) {
		s.logger.Warn("the NATS port of the last start is taken: choosing another", "address", options.Listen)
		options.Listen = s.flags.natsListen
		s.nats, err = eventlog.StartServer(options)
	}
	if err != nil {
		return err
	}
	s.events = s.nats.Connection
	s.duties.add("log", s.nats.Watch)
	s.duties.add("scrub", s.nats.Scrub)
	_, port, _ := net.SplitHostPort(s.nats.URL()[strings.LastIndexByte(s.nats.URL(), '/')+1:])
	return writePrivate(s.folder.path(natsPortFile), []byte(port+"\n"))
}

// clusterMark is this control plane's mark of a cluster's log.
const clusterMark = "log.mark"

// moveMark takes over a mark from where earlier versions kept it: beside the
// snapshots, which may be deleted.
func (f folder) moveMark() error {
	earlier := f.path("snapshots", clusterMark)
	content, err := os.ReadFile(earlier)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if _, there := os.Stat(f.path(clusterMark)); err == nil && errors.Is(there, os.ErrNotExist) {
		err = writePrivate(f.path(clusterMark), content)
	}
	if err != nil {
		return err
	}
	return os.Remove(earlier)
}

// acceptLoss prepares for a cluster's log that was set back: nothing is deleted,
// and snapshots of what is lost are put aside. It is nil without the flag.
func (s *server) acceptLoss() func(error) error {
	if !s.flags.acceptLogLoss {
		return nil
	}
	return func(why error) error {
		s.logger.Warn("the log of the cluster is taken as it is", "error", why)
		err := s.folder.holdSweeps("'anneal serve --accept-log-loss' took a log that lacks events. Files and data keys of those events are kept until you remove this file.")
		if err != nil {
			return err
		}
		err = os.Rename(s.folder.path("snapshots"), s.folder.path("snapshots.refused-"+time.Now().UTC().Format("20060102T150405.000Z")))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
}

// natsAddress is where the embedded NATS server listens: with port 0, the port
// of the last start, so that workers and subscribers find it again.
func (s *server) natsAddress() string {
	host, port, err := net.SplitHostPort(s.flags.natsListen)
	if err != nil || port != "0" {
		return s.flags.natsListen
	}
	text, _ := os.ReadFile(s.folder.path(natsPortFile))
	if last, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && last > 0 && last < 1<<16 {
		return net.JoinHostPort(host, strconv.Itoa(last))
	}
	return s.flags.natsListen
}

func (s *server) openBlobs(ctx context.Context) (err error) {
	key, err := s.folder.key("blobs")
	if err != nil {
		return err
	}
	s.blobs, err = blobs.Open(ctx, blobs.Options{URL: s.flags.blobs, Dir: s.folder.path("blobs"), BaseURL: s.context.Address + blobPath, Key: key, Logger: s.logger})
	return err
}

func (s *server) openWorld(ctx context.Context) (err error) {
	if s.world, err = projections.Open(ctx, s.events.Log(), s.folder.path("snapshots")); err != nil {
		return err
	}
	s.duties.add("world", func(ctx context.Context) error { return s.world.Run(ctx, s.events.Log()) })
	s.duties.add("snapshots", s.saveSnapshots)
	s.admission.Log, s.admission.World, s.admission.Sessions = s.events.Log(), s.world, s.events
	close(s.admits)
	s.duties.add("admission", s.admission.Run)
	return nil
}

// logSpace is the space of the log; nil when it lies in a cluster.
func (s *server) logSpace() *disk.Space {
	if s.nats == nil {
		return nil
	}
	return disk.On(s.folder.path("nats"))
}

func (s *server) saveSnapshots(ctx context.Context) error {
	for {
		if err := pause(ctx, snapshotPause); err != nil {
			return err
		}
		err := disk.On(s.flags.data).Check(disk.Files, 0)
		if err == nil {
			_, err = s.world.SaveEvery(s.folder.path("snapshots"), snapshotEvery)
		}
		if err != nil {
			s.logger.Error("the world could not be saved; the next start will read more of the log", "error", err)
		}
	}
}

func (s *server) openDuties(ctx context.Context) error {
	log := s.events.Log()
	s.world.Live().Boot(time.Now()) // nobody listened to the nodes before
	sealer, err := s.sealer(ctx)
	if err != nil {
		return err
	}
	s.code = s.flags.node.sandbox(ctx, s.logger)
	agents := coordinator.New(coordinator.Options{Log: log, World: s.world, Blobs: s.blobs, Conn: s.events.Coordinator(),
		OpenSecret: sealer.Open, LostAfter: s.flags.lostAfter, Logger: s.logger})
	s.duties.add("coordinator", agents.Run)
	reconciler := reconcile.New(reconcile.Options{Log: log, World: s.world, Blobs: s.blobs, Keys: sealer, Dir: s.flags.data, Logger: s.logger})
	s.duties.add("reconciler", reconciler.Run)
	for _, scheduler := range []schedulers.Scheduler{
		schedulers.Jobs{}, schedulers.Replicas{PlaceWithin: s.flags.placementTimeout, KeepDeleted: s.flags.keepDeleted},
		schedulers.Autoscale{}, schedulers.Expiry{}, schedulers.Addons{}, schedulers.HotLoads{},
		schedulers.Nodes{LostAfter: s.flags.lostAfter, ForgetAfter: s.flags.forgetAfter}, schedulers.Allocations{}, schedulers.Accounts{},
	} {
		s.duties.add("scheduler "+scheduler.Name(), func(ctx context.Context) error {
			return schedulers.Run(ctx, log, s.world, scheduler, s.logger)
		})
	}
	if err := s.openTasks(sealer); err != nil {
		return err
	}
	if !s.flags.worker {
		return nil
	}
	return s.openWorker(ctx)
}

// openWorker starts the worker in this process. It needs no token: who has the
// server's folder may enrol it.
func (s *server) openWorker(ctx context.Context) error {
	flags := s.flags.node
	flags.id = s.localNode()
	key, err := agent.OpenKey(s.folder.nodeKeyPath(flags.id))
	if err != nil {
		return err
	}
	public, err := key.PublicKey()
	if err != nil {
		return err
	}
	if err := s.admission.Enroll(ctx, flags.id, public, domain.LocalJoinToken); err != nil {
		var fault *domain.Error
		if !errors.As(err, &fault) || fault.Code != domain.FailedPrecondition {
			return err
		}
		s.logger.Error("this server works without its own worker: give it another name with --node-id, or none with --worker=false", "node", flags.id, "error", err)
		return nil
	}
	options := agent.Options{Key: key, URL: s.flags.natsURL, Dir: s.folder.path("worker"), Log: s.logger, LeaveWithin: farewellTime}
	if s.nats != nil {
		options.URL, options.NATS = nats.DefaultURL, []nats.Option{s.nats.InProcess()}
	} else if s.certs.cluster != nil {
		options.NATS = []nats.Option{nats.Secure(s.certs.cluster)}
	}
	if s.certs.pair != nil { // its files are fetched from this server, which its authority may not be the system's
		config, err := clientTLS(nil)
		if err != nil {
			return err
		}
		options.TLS = trusting(s.certs.pair, config)
	}
	s.duties.first("worker", func(ctx context.Context) error { return runAgent(ctx, options, flags, s.code) })
	return nil
}

func (s *server) localNode() string {
	if s.flags.node.id != "" {
		return s.flags.node.id
	}
	return localNode
}

func (s *server) openAPI(ctx context.Context, listener net.Listener) error {
	pepper, err := s.folder.key("pepper")
	if err != nil {
		return err
	}
	sealer, err := s.sealer(ctx)
	if err != nil {
		return err
	}
	answers, err := s.openAnswers(ctx)
	if err != nil {
		return err
	}
	answers.Limit, answers.Space = s.flags.answers, s.logSpace()
	s.duties.add("answers", answers.Follow)
	uses, err := eventlog.OpenLastUsed(ctx, s.events.Control())
	if err != nil {
		return err
	}
	s.duties.add("uses", func(ctx context.Context) error {
		return uses.Follow(ctx, func(key domain.Name, at time.Time) { s.world.Live().UseKey(key, at) })
	})
	if s.meter, err = s.events.Meter(s.logger); err != nil {
		return err
	}
	s.meter.Space = s.logSpace()
	prices, err := s.flags.prices()
	if err != nil {
		return err
	}
	s.handler = api.New(api.Options{Prices: prices, Cluster: s.flags.cluster, Direct: s.flags.directDomain, Private: s.flags.fetchPrivate,
		Log: s.events.Log(), World: s.world, Blobs: s.blobs, Sealer: sealer, ReaderURL: s.readerURL(), Answers: answers, Uses: uses, Meter: s.meter, Replicas: coordinator.ReplicaClient{Conn: s.events.Coordinator()}, Scorer: s.code, Pepper: pepper,
		Logger: s.logger, Space: disk.On(s.flags.data), Limits: api.Limits{Upload: s.flags.maxUpload, ModelFile: s.flags.maxModelFile, ModelFiles: s.flags.maxModelFiles, Wake: s.flags.holdFor, ScaleToZero: s.flags.zeroFloor, JobTime: s.flags.jobDeadline,
			Audio: s.flags.maxAudio, Bodies: s.flags.maxBodyMemory, Transcription: s.flags.maxListening},
	})
	limits, err := s.connectionLimits()
	if err != nil {
		return err
	}
	s.http = api.HTTP(ctx, s.handler, s.logger)
	s.duties.add("http", func(context.Context) error {
		if err := s.http.Serve(api.LimitConnections(listener, limits)); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	return nil
}

// wait returns when ctx is done and everything has ended cleanly, or when a
// duty could not go on.
func (s *server) wait(ctx context.Context) error {
	var failed error
	select {
	case <-ctx.Done():
		s.logger.Info("the server stops when what is being answered has ended and checkpoints are stored; interrupt it again to stop it at once", "atMost", farewellTime+drainTime)
	case failed = <-s.duties.failed:
		s.logger.Error("the server cannot go on", "error", failed)
	}
	return errors.Join(failed, s.close())
}

// close ends everything in the order in which it depends on one another, and
// saves the world. The local worker comes first: it stores its last checkpoints
// through our own HTTP.
func (s *server) close() error {
	if s.http != nil {
		s.handler.Close()
	}
	s.duties.endFirst()
	if s.http != nil {
		drain, cancel := context.WithTimeout(context.Background(), drainTime)
		defer cancel()
		if s.http.Shutdown(drain) != nil {
			_ = s.http.Close() // what is still open has had its time
		} else {
			s.handler.Drain()
			_ = s.meter.Close(drain) // what does not arrive in time is lost, as a Meter says
		}
	}
	s.stop()
	s.duties.end()
	var err error
	if s.world != nil {
		_, err = s.world.SaveEvery(s.folder.path("snapshots"), 1)
	}
	if s.blobs != nil {
		err = errors.Join(err, s.blobs.Close())
	}
	if s.vault != nil {
		err = errors.Join(err, s.vault.Close())
	}
	if s.answers != nil {
		err = errors.Join(err, s.answers.Close())
	}
	switch {
	case s.nats != nil:
		s.nats.Close()
	case s.events != nil:
		s.events.Close()
	}
	s.release()
	return err
}

func (s *server) writeContexts() error {
	operator := s.operatorContext()
	existing, err := readContext(s.folder.path("operator.json"))
	if err != nil {
		return err
	}
	operator.APIKey = existing.APIKey
	operator.keepCertificates(existing)
	if existing, err = readContext(s.folder.path("context.json")); err != nil {
		return err
	}
	s.context.APIKey = existing.APIKey
	s.context.keepCertificates(existing)
	return errors.Join(s.folder.writeContext("operator.json", operator), s.folder.writeContext("context.json", s.context))
}
