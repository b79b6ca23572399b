package server

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"anneal/api"
	"anneal/blobs"
	"anneal/disk"
	"anneal/engines/sandbox"
	"anneal/eventlog/idempotency"
	"anneal/eventlog/metering"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/secrets"
	"anneal/internal/datadir"
	"anneal/projections"
	"anneal/workers/coordinator"
)

// A server is a running control plane.
type Server struct {
	dir     datadir.Dir
	flags   Flags
	logger  *slog.Logger
	certs   serverCerts
	context datadir.Context // for users of account default

	events  *natsserver.Connection
	nats    *natsserver.Server // nil when the log lies in a cluster
	world   *projections.World
	admits  chan struct{} // closed once agents can be let in
	blobs   *blobs.Store
	handler *api.Server

	admission   *coordinator.Admission
	descriptors descriptorPlan
	meter       *metering.Meter
	code        *sandbox.Sandbox // evaluators are built and previewed in it
	http        *http.Server

	vault    *secrets.Vault     // nil until sealer opens it
	answers  *idempotency.Store // nil until openAnswers does
	started  chan struct{}      // closed when requests are answered
	release  func()             // of the data folder's lock
	stop     context.CancelFunc // ends every duty
	services services
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

// Start starts everything and returns once requests are answered. ctx
// ends it: see wait.
func Start(ctx context.Context, flags Flags, logger *slog.Logger) (_ *Server, err error) {
	s := &Server{dir: datadir.Dir(flags.Data), flags: flags, logger: logger, started: make(chan struct{})}
	if s.release, err = disk.LockDir(flags.Data); err != nil {
		return nil, err
	}
	duty, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.services = newServices(duty)
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
	warnWithoutTLS(logger, "the interface", "listen", flags.Listen, s.certs.http == nil)
	warnWithoutTLS(logger, "NATS", "natsListen", flags.natsListen, s.certs.nats == nil && flags.natsURL == "")
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
		s.services.start("readers", s.sweepReaders)
	}
	return s, s.writeContexts()
}

// wait returns when ctx is done and everything has ended cleanly, or when a
// duty could not go on.
func (s *Server) Wait(ctx context.Context) error {
	var failed error
	select {
	case <-ctx.Done():
		s.logger.Info("the server stops when what is being answered has ended and checkpoints are stored; interrupt it again to stop it at once", "atMost", farewellTime+drainTime)
	case failed = <-s.services.failed:
		s.logger.Error("the server cannot go on", "error", failed)
	}
	return errors.Join(failed, s.close())
}

// close ends everything in the order in which it depends on one another, and
// saves the world. The local worker comes first: it stores its last checkpoints
// through our own HTTP.
func (s *Server) close() error {
	if s.http != nil {
		s.handler.Close()
	}
	s.services.endWorker()
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
	s.services.wait.Wait()
	var err error
	if s.world != nil {
		_, err = s.world.SaveEvery(s.dir.Path("snapshots"), 1)
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

// Context returns the context of users of account default.
func (s *Server) Context() datadir.Context { return s.context }

// Dir returns the data directory.
func (s *Server) Dir() datadir.Dir { return s.dir }
