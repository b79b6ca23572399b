package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"anneal/api"
	"anneal/api/connection"
	"anneal/api/request"
	"anneal/blobs"
	"anneal/blobs/operations"
	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog/metering"
	"anneal/schedulers"
	"anneal/workers/coordinator"
)

// listen opens a TCP listener. Its errors advise the user what to do.
func listen(address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is in use by another program: stop it, or choose another address with --listen", address)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("this user has no permission to listen on %s: choose a port above 1023 with --listen", address)
	case err != nil:
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	return listener, nil
}

func (s *Server) openBlobs(ctx context.Context) (err error) {
	key, err := s.dir.Key("blobs")
	if err != nil {
		return err
	}
	s.blobs, err = blobs.Open(ctx,
		blobs.Options{URL: s.flags.blobs, Dir: s.dir.Path("blobs"), BaseURL: s.context.Address + blobPath, Key: key,
			Logger: s.logger, Intercept: s.flags.intercept, Bundles: mayBundle(s)})
	if err == nil {
		s.journal = operations.New(s.blobs, nil)
	}
	return err
}

// mayBundle returns a function that reports whether all control planes can read bundles of files.
func mayBundle(s *Server) func() bool {
	return func() bool { return s.membership == nil || s.membership.EventVersion() >= domain.BundlesVersion }
}

func (s *Server) openAPI(ctx context.Context, listener net.Listener) error {
	pepper, err := s.dir.Key("pepper")
	if err != nil {
		return err
	}
	sealer, err := s.sealer(ctx)
	if err != nil {
		return err
	}
	answers, err := s.openIdempotency(ctx)
	if err != nil {
		return err
	}
	answers.Limit, answers.Space = s.flags.idempotency, s.logSpace()
	s.services.start("answers", answers.Follow)
	uses, err := metering.OpenLastUsed(ctx, s.events.Control())
	if err != nil {
		return err
	}
	s.services.start("uses", func(ctx context.Context) error {
		return uses.Follow(ctx, func(key domain.Name, at time.Time) { s.world.Live().UseKey(key, at) })
	})
	if s.meter, err = metering.NewMeter(metering.MeterOptions{Conn: s.events.Control(), Dir: s.dir.Path("usage"),
		ID: s.id, Space: s.logSpace(), Logger: s.logger}); err != nil {
		return err
	}
	prices, err := s.flags.prices()
	if err != nil {
		return err
	}
	usage, err := openUsage(s)
	if err != nil {
		return err
	}
	login, err := openLogin(s, pepper)
	if err != nil {
		return err
	}
	s.backups = &backups{}
	if err := openRebuilds(s); err != nil {
		return err
	}
	s.handler = api.New(api.Options{Prices: prices, Backups: s.backups, Rebuilds: s.rebuilds, Queue: &schedulers.Places{},
		Usage: usage,
		Login: login, Address: s.context.Address,
		Cluster: s.flags.cluster, Direct: s.flags.directDomain,
		Origins: s.flags.corsOrigins,
		Private: s.flags.fetchPrivate, Strict: s.flags.strictInference,
		Metrics: s.metrics, Named: namedMetrics(s), PrivateMetrics: s.flags.privateMetrics,
		Log: s.events.Log(), World: s.world, Blobs: s.blobs, Journal: s.journal,
		Sealer: observed(s, sealer), ReaderURL: readerURL(s.nats),
		Audit: s.audit.Load(), Addresses: s.flags.clientAddresses,
		Idempotency: answers, Proofs: s.proofs, PublicLog: s.flags.publicLog,
		LastUsed: uses, Meter: s.meter, Replicas: coordinator.ReplicaClient{Conn: s.events.Coordinator()}, Scorer: s.code,
		Pepper: pepper,
		Logger: s.logger, Space: disk.On(s.flags.Data), Link: s.events.Connected,
		Limits: request.Limits{Upload: s.flags.maxUpload, ModelFile: s.flags.maxModelFile, ModelFiles: s.flags.maxModelFiles,
			Wake: s.flags.coldStartTimeout, QueueWait: s.flags.maxQueueWait,
			ScaleToZero: s.flags.zeroFloor, JobTime: s.flags.jobDeadline,
			Audio: s.flags.maxAudio, Bodies: s.flags.maxBodyMemory, Transcription: s.flags.transcriptionTimeout},
	})
	s.services.start("admission queues", func(ctx context.Context) error { return reportQueues(ctx, s) })
	if s.flags.natsURL != "" { // there may be other control planes
		s.services.start("gateways", gateways(s).Run)
		s.services.start("training news", trainingNews(s).Run)
	}
	limits, err := s.descriptors.connectionLimits(s.flags)
	if err != nil {
		return err
	}
	s.http = connection.NewServer(ctx, s.handler, s.logger)
	s.services.start("http", func(context.Context) error {
		if err := s.http.Serve(connection.Limit(listener, limits)); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	return nil
}
