package server

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"anneal/api"
	"anneal/blobs"
	"anneal/blobs/operations"
	"anneal/disk"
	"anneal/domain"
	"anneal/engines/sandbox"
	"anneal/eventlog/archive"
	"anneal/eventlog/audit"
	"anneal/eventlog/idempotency"
	"anneal/eventlog/installation"
	"anneal/eventlog/metering"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/secrets"
	"anneal/eventlog/transparency"
	"anneal/internal/datadir"
	"anneal/projections"
	"anneal/workers/coordinator"
)

// A Server is a running control plane with all its services.
type Server struct {
	dir     datadir.Dir
	flags   Flags
	logger  *slog.Logger
	certs   serverCerts
	context datadir.Context // content of context.json, for users of the account default

	id string // ID of the control plane
	// membership in the installation whose log is in a NATS cluster; nil with the embedded NATS
	// server
	membership *installation.Membership
	backups    *backups // implements the backup operations of the API; set by openBackups
	rebuilds   *rebuilds

	events  *natsserver.Connection
	nats    *natsserver.Server // embedded server; nil if the log is in a NATS cluster
	world   *projections.World
	loading *projections.Loading // loading of the newest snapshot, which becomes the world; used until world is set
	archive *archive.Archive
	nodeKey []byte        // key that verifies join tokens; set before admits is closed
	admits  chan struct{} // closed when the server can authenticate agents
	blobs   *blobs.Store
	journal *operations.Store
	handler *api.Server
	metrics *prometheus.Registry
	named   *prometheus.Registry // metrics with names, which only the operator may read

	admission   *coordinator.Admission
	descriptors descriptorPlan
	meter       *metering.Meter
	code        *sandbox.Sandbox // sandbox in which evaluators are built and previewed
	http        *http.Server

	// records audit records; set by openAudit; a nil Recorder records nothing
	audit       atomic.Pointer[audit.Recorder]
	proofs      *transparency.Publisher
	vault       *secrets.Vault     // vault that encrypts and decrypts sealed values; set by sealer
	idempotency *idempotency.Store // idempotency store; set by openIdempotency
	started     chan struct{}      // closed when the server serves requests
	release     func()             // releases the lock of the data directory
	stop        context.CancelFunc // cancels the context of all services
	stopTraces  func()             // sends the remaining spans
	services    services
}

const (
	snapshotEvery = 10_000 // number of events between two snapshots of the world
	snapshotPause = 30 * time.Second
	drainTimeout  = 10 * time.Second // how long HTTP requests in progress may still run at shutdown
	// leaveTimeout is the maximum time for the local worker to store checkpoints and deregister.
	leaveTimeout             = 30 * time.Second
	leaveInstallationTimeout = 2 * time.Second
	blobPath                 = "/blobs"
	localNode                = "local"
	natsPortFile             = "nats.port"
	operatorKeyID            = "operator"
	defaultAccount           = "default"
)

// Start starts all services, and returns when the server serves requests. The server runs until ctx
// is done; Wait waits for its end.
func Start(ctx context.Context, flags Flags, logger *slog.Logger) (_ *Server, err error) {
	s := &Server{dir: datadir.Dir(flags.Data), flags: flags, logger: logger, started: make(chan struct{}),
		metrics: prometheus.NewRegistry(), named: prometheus.NewRegistry()}
	if err := s.dir.CheckRestored(); err != nil {
		return nil, err
	}
	if s.release, err = disk.LockDir(flags.Data); err != nil {
		return nil, err
	}
	serviceCtx, err := openTraces(ctx, s)
	if err != nil {
		s.release()
		return nil, err
	}
	serviceCtx, stop := context.WithCancel(serviceCtx)
	s.stop = stop
	s.services = newServices(serviceCtx)
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.descriptors, err = planDescriptors(); err != nil {
		return nil, err
	}
	listener, err := listen(flags.Listen)
	if err != nil {
		return nil, err
	}
	if s.certs, err = flags.tls.load(flags.natsURL != ""); err != nil {
		listener.Close()
		return nil, err
	}
	s.context = datadir.Context{Address: "http://" + listener.Addr().String(), Account: defaultAccount}
	if s.certs.http != nil {
		s.context.Address = "https://" + listener.Addr().String()
		if s.context.CAFile, err = filepath.Abs(flags.tls.cert); err != nil {
			return nil, err
		}
		listener = tls.NewListener(listener, s.certs.http)
	}
	warnWithoutTLS(logger, "the HTTP interface", "listen", flags.Listen, s.certs.http == nil)
	warnWithoutTLS(logger, "NATS", "natsListen", flags.natsListen, s.certs.nats == nil && flags.natsURL == "")
	if flags.publicURL != "" {
		s.context.Address = strings.TrimRight(flags.publicURL, "/")
	}
	for _, step := range []func(context.Context) error{s.openLog, identify(s), openAudit(s),
		joinInstallation(s), s.openBlobs,
		checkBucket(s), openProofs(s), s.openWorld, s.bootstrap, s.ensureReader, s.startServices} {
		if err := step(serviceCtx); err != nil {
			listener.Close()
			return nil, err
		}
	}
	if err := s.openAPI(serviceCtx, listener); err != nil {
		return nil, err
	}
	if err := openTracking(serviceCtx, s); err != nil {
		return nil, err
	}
	if err := openBackups(s); err != nil {
		return nil, err
	}
	openBatches(s)
	if err := openSubscriptions(serviceCtx, s); err != nil {
		return nil, err
	}
	close(s.started)
	if s.nats != nil {
		s.services.start("readers", s.closeRevokedReaders)
	}
	return s, s.writeContexts()
}

// Wait returns when ctx is done and all services have ended, or with the error of a service that
// failed.
func (s *Server) Wait(ctx context.Context) error {
	var failed error
	select {
	case <-ctx.Done():
		lameDuck := s.flags.lameDuckTime()
		s.logger.Info("shutting down: waiting for load balancers, running requests and checkpoints; interrupt "+
			"again to exit immediately", "lameDuck", lameDuck, "timeout", lameDuck+leaveTimeout+drainTimeout)
		s.handler.LameDuck()
		select {
		case <-time.After(lameDuck):
		case failed = <-s.services.failed:
		}
	case failed = <-s.services.failed:
	}
	if failed != nil {
		s.logger.Error("the server stops, because a service failed", "error", failed)
	}
	return errors.Join(failed, s.close())
}

// close stops all services in the order of their dependencies, and writes a snapshot. The local
// worker stops first, because it uploads its last checkpoints over HTTP.
func (s *Server) close() error {
	if s.http != nil {
		s.handler.Close()
	}
	s.services.endWorker()
	if s.http != nil {
		drain, cancel := context.WithTimeout(context.Background(), drainTimeout)
		defer cancel()
		if s.http.Shutdown(drain) != nil {
			_ = s.http.Close() // closes connections of requests that still run after drainTimeout
		} else {
			s.handler.Drain()
			if s.meter.Drain(drain) != nil {
				s.logger.Warn("usage records that the stream has not acknowledged remain on disk: the next start "+
					"with this data directory sends them", "records",
					s.meter.Waiting())
			}
		}
	}
	s.stop()
	s.services.wait.Wait()
	var err error
	if s.meter != nil {
		err = s.meter.Close()
	}
	if s.world != nil {
		_, failed := s.world.SaveEvery(s.dir.Path("snapshots"), 1)
		var full *domain.Error
		if errors.As(failed, &full) && full.Reason == disk.Full { // the next start reads more of the log
			s.logger.Warn("cannot write a snapshot, so the next start will take longer", "error", failed)
			failed = nil
		}
		err = errors.Join(err, failed)
	}
	if s.archive != nil {
		if failed := s.archive.Close(); failed != nil { // only log the error: the next start completes the archive
			s.logger.Warn("the archive of earlier states is incomplete: the next start completes it", "error", failed)
		}
	}
	if s.blobs != nil {
		err = errors.Join(err, s.blobs.Close())
	}
	if s.vault != nil {
		err = errors.Join(err, s.vault.Close())
	}
	if s.idempotency != nil {
		err = errors.Join(err, s.idempotency.Close())
	}
	if s.membership != nil {
		leave, cancel := context.WithTimeout(context.Background(), leaveInstallationTimeout)
		if late := s.membership.Leave(leave); late != nil {
			s.logger.Debug("this control plane could not deregister from the installation: another control plane "+
				"removes it after half a minute", "error", late)
		}
		cancel()
	}
	switch {
	case s.nats != nil:
		s.nats.Close()
	case s.events != nil:
		s.events.Close()
	}
	s.stopTraces()
	s.release()
	return err
}

func (s *Server) writeContexts() error {
	operator := s.operatorContext()
	existing, err := datadir.ReadContext(s.dir.Path("operator.json"))
	if err != nil {
		return err
	}
	operator.APIKey = existing.APIKey
	operator.KeepCertificates(existing)
	if existing, err = datadir.ReadContext(s.dir.Path("context.json")); err != nil {
		return err
	}
	s.context.APIKey = existing.APIKey
	s.context.KeepCertificates(existing)
	return errors.Join(s.dir.WriteContext("operator.json", operator), s.dir.WriteContext("context.json", s.context))
}

// Context returns the content of the context file for users of the account default.
func (s *Server) Context() datadir.Context { return s.context }

// Dir returns the data directory of the server.
func (s *Server) Dir() datadir.Dir { return s.dir }
