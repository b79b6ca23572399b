package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"anneal/disk"
	"anneal/eventlog/archive"
	"anneal/eventlog/integrity"
	"anneal/eventlog/natsserver"
	"anneal/internal/datadir"
	"anneal/projections"
	"anneal/workers/coordinator"
)

func (s *Server) openLog(ctx context.Context) (err error) {
	s.admission = &coordinator.Admission{Now: time.Now, Logger: s.logger.With("part", "nodes"),
		ReadToken: func(token string, now time.Time) (coordinator.JoinToken, error) {
			return datadir.VerifyJoinToken(s.nodeKey, token, now)
		}}
	s.admits = make(chan struct{})
	verify := func(ctx context.Context, login natsserver.NodeLogin) error {
		select {
		case <-s.admits:
			return s.admission.Admit(ctx, login)
		case <-ctx.Done():
			return fmt.Errorf("the server is still starting: %w", ctx.Err())
		}
	}
	if s.flags.natsURL != "" {
		if err := moveMark(s.dir); err != nil {
			return err
		}
		s.events, err = natsserver.Connect(ctx,
			natsserver.ConnectOptions{URL: s.flags.natsURL, Password: os.Getenv("ANNEAL_NATS_PASSWORD"),
				IssuerSeed: os.Getenv("ANNEAL_NATS_ISSUER_SEED"), Replicas: s.flags.natsReplicas, VerifyNode: verify,
				Logins: recordLogins(s), TLS: s.certs.cluster, Log: s.logger,
				Before: checkInstallation(s.dir), Mark: s.dir.Path(datadir.ClusterMark), AcceptLoss: s.acceptLoss()})
		if err == nil && holdsSharedReader(s.dir) {
			s.logger.Warn("context.json contained credentials that read the events of all accounts; they are now " +
				"only in " +
				"operator.json: change ANNEAL_NATS_READER_PASSWORD of the NATS servers")
		}
		return err
	}
	s.loading = projections.StartLoading(s.dir.Path("snapshots")) // load the newest snapshot while NATS starts
	restore := rarerCollections()
	go func(loading *projections.Loading) {
		loading.Wait()
		restore()
	}(s.loading)
	holds, err := s.loading.Claim()
	if err != nil {
		return err
	}
	options := natsserver.Options{Dir: s.dir.Path("nats"), Listen: natsAddress(s.flags, s.dir), VerifyNode: verify,
		Logins: recordLogins(s), VerifyReader: s.verifyReader, TLS: s.certs.nats, Holds: holds,
		Log: s.logger.With("part", "nats"), MaxConnections: s.descriptors.nats}
	if options.NewReaderPassword = holdsSharedReader(s.dir); options.NewReaderPassword {
		s.logger.Info("context.json has credentials that read the events of all accounts: they are replaced by new " +
			"ones in " +
			"operator.json, and context.json gets credentials for the account default")
	}
	if s.nats, err = natsserver.Start(options); err != nil && options.Listen != s.flags.natsListen &&
		!integrity.IsDamaged(err) {
		s.logger.Warn("the embedded NATS server cannot listen on the port of the last start: choosing another port",
			"address", options.Listen)
		options.Listen = s.flags.natsListen
		s.nats, err = natsserver.Start(options)
	}
	if integrity.IsDamaged(err) { // a damaged snapshot may be the cause of the error: try an intact one
		if intact, newestErr := projections.Newest(s.dir.Path("snapshots")); newestErr == nil && intact != holds {
			options.Holds = intact
			s.nats, err = natsserver.Start(options)
		}
	}
	if err != nil {
		return err
	}
	s.events = s.nats.Connection
	s.services.start("log", s.nats.Watch)
	_, port, _ := net.SplitHostPort(s.nats.URL()[strings.LastIndexByte(s.nats.URL(), '/')+1:])
	return datadir.WritePrivate(s.dir.Path(natsPortFile), []byte(port+"\n"))
}

// moveMark moves the high-water mark of a cluster's log out of the directory of snapshots, where
// earlier versions of anneal stored it, because an operator may delete that directory.
func moveMark(dir datadir.Dir) error {
	earlier := dir.Path("snapshots", datadir.ClusterMark)
	content, err := os.ReadFile(earlier)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if _, there := os.Stat(dir.Path(datadir.ClusterMark)); err == nil && errors.Is(there, os.ErrNotExist) {
		err = datadir.WritePrivate(dir.Path(datadir.ClusterMark), content)
	}
	if err != nil {
		return err
	}
	return os.Remove(earlier)
}

// acceptLoss returns the function that is called if the cluster's log lacks events, with the error
// that describes them. The function suspends deletions of files and data keys, and renames the
// directories of snapshots and of the Merkle tree, which may contain the lost events. acceptLoss
// returns nil without --accept-log-loss: the server then does not start.
func (s *Server) acceptLoss() func(error) error {
	if !s.flags.acceptLogLoss {
		return nil
	}
	return func(why error) error {
		s.logger.Warn("accepting the log of the NATS cluster although it lacks events, because of --accept-log-loss", "error",
			why)
		err := s.dir.SuspendDeletions("'anneal serve --accept-log-loss' accepted a log that lacks events. Files and " +
			"data keys of " +
			"those events are kept until you remove this file.")
		if err != nil {
			return err
		}
		for _, name := range []string{"snapshots", treeDir} {
			err := os.Rename(s.dir.Path(name), s.dir.Path(name+".refused-"+time.Now().UTC().Format("20060102T150405.000Z")))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	}
}

// natsAddress returns the listen address of the embedded NATS server. If the configured port is 0,
// it is the port of the last start, so that workers and subscribers can reconnect.
func natsAddress(flags Flags, dir datadir.Dir) string {
	host, port, err := net.SplitHostPort(flags.natsListen)
	if err != nil || port != "0" {
		return flags.natsListen
	}
	text, _ := os.ReadFile(dir.Path(natsPortFile))
	if last, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && last > 0 && last < 1<<16 {
		return net.JoinHostPort(host, strconv.Itoa(last))
	}
	return flags.natsListen
}

func (s *Server) openWorld(ctx context.Context) (err error) {
	if s.nodeKey, err = s.dir.Key("nodes"); err != nil {
		return err
	}
	if err := removeStaleArchive(s.dir); err != nil {
		return err
	}
	if s.archive, err = archive.Open(s.dir.Path(datadir.Archive)); err != nil {
		return err
	}
	if s.loading == nil {
		s.loading = projections.StartLoading(s.dir.Path("snapshots"))
	}
	s.world, err = s.loading.Open(ctx, s.events.Log(), s.archive)
	s.loading = nil
	if err != nil {
		return err
	}
	keepTraces(ctx, s.world)
	if s.nats != nil {
		s.services.start("scrub", s.nats.Scrub)
	}
	s.services.start("world", func(ctx context.Context) error { return s.world.Run(ctx, s.events.Log()) })
	s.services.start("freshness", func(ctx context.Context) error { return s.world.KeepConfirming(ctx, s.events.Log()) })
	s.services.start("snapshots", s.saveSnapshots)
	s.admission.Log, s.admission.World, s.admission.Sessions = s.events.Log(), s.world, s.events
	close(s.admits)
	s.services.start("admission", s.admission.Run)
	return nil
}

// logSpace returns the free space of the disk with the log; nil if the log is in a NATS cluster.
func (s *Server) logSpace() *disk.Space {
	if s.nats == nil {
		return nil
	}
	return disk.On(s.dir.Path("nats"))
}

func (s *Server) saveSnapshots(ctx context.Context) error {
	for {
		if err := sleep(ctx, snapshotPause); err != nil {
			return err
		}
		if _, err := s.world.SaveEvery(s.dir.Path("snapshots"), snapshotEvery); err != nil {
			s.logger.Error("cannot write a snapshot, so the next start will take longer", "error", err)
		}
	}
}
