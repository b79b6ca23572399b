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
	"anneal/eventlog/integrity"
	"anneal/eventlog/natsserver"
	"anneal/internal/datadir"
	"anneal/projections"
	"anneal/workers/coordinator"
)

func (s *Server) openLog(ctx context.Context) error {
	nodeKey, err := s.dir.Key("nodes")
	if err != nil {
		return err
	}
	s.admission = &coordinator.Admission{Now: time.Now, Logger: s.logger.With("part", "nodes"),
		ReadToken: func(token string, now time.Time) (coordinator.JoinToken, error) {
			return datadir.VerifyJoinToken(nodeKey, token, now)
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
		s.events, err = natsserver.Connect(ctx, natsserver.ConnectOptions{URL: s.flags.natsURL, Password: os.Getenv("ANNEAL_NATS_PASSWORD"),
			IssuerSeed: os.Getenv("ANNEAL_NATS_ISSUER_SEED"), Replicas: s.flags.natsReplicas, VerifyNode: verify, TLS: s.certs.cluster, Log: s.logger,
			Mark: s.dir.Path(clusterMark), AcceptLoss: s.acceptLoss()})
		if err == nil && s.holdsSharedReader() {
			s.logger.Warn("context.json held credentials that read every account's events; they are now in operator.json alone: give the NATS servers another ANNEAL_NATS_READER_PASSWORD")
		}
		return err
	}
	holds, err := projections.Newest(s.dir.Path("snapshots"))
	if err != nil {
		return err
	}
	options := natsserver.Options{Dir: s.dir.Path("nats"), Listen: s.natsAddress(), VerifyNode: verify, VerifyReader: s.verifyReader, TLS: s.certs.nats, Holds: holds, Log: s.logger.With("part", "nats"), MaxConnections: s.descriptors.nats}
	if options.NewReaderPassword = s.holdsSharedReader(); options.NewReaderPassword {
		s.logger.Info("context.json held credentials that read every account's events: the operator's are new, in operator.json, and context.json gets those of account default")
	}
	if s.nats, err = natsserver.Start(options); err != nil && options.Listen != s.flags.natsListen && !integrity.IsDamaged(err) {
		s.logger.Warn("the NATS port of the last start is taken: choosing another", "address", options.Listen)
		options.Listen = s.flags.natsListen
		s.nats, err = natsserver.Start(options)
	}
	if err != nil {
		return err
	}
	s.events = s.nats.Connection
	s.services.start("log", s.nats.Watch)
	s.services.start("scrub", s.nats.Scrub)
	_, port, _ := net.SplitHostPort(s.nats.URL()[strings.LastIndexByte(s.nats.URL(), '/')+1:])
	return datadir.WritePrivate(s.dir.Path(natsPortFile), []byte(port+"\n"))
}

// clusterMark is this control plane's mark of a cluster's log.
const clusterMark = "log.mark"

// moveMark takes over a mark from where earlier versions kept it: beside the
// snapshots, which may be deleted.
func moveMark(dir datadir.Dir) error {
	earlier := dir.Path("snapshots", clusterMark)
	content, err := os.ReadFile(earlier)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if _, there := os.Stat(dir.Path(clusterMark)); err == nil && errors.Is(there, os.ErrNotExist) {
		err = datadir.WritePrivate(dir.Path(clusterMark), content)
	}
	if err != nil {
		return err
	}
	return os.Remove(earlier)
}

// acceptLoss prepares for a cluster's log that was set back: nothing is deleted,
// and snapshots of what is lost are put aside. It is nil without the flag.
func (s *Server) acceptLoss() func(error) error {
	if !s.flags.acceptLogLoss {
		return nil
	}
	return func(why error) error {
		s.logger.Warn("the log of the cluster is taken as it is", "error", why)
		err := s.dir.HoldSweeps("'anneal serve --accept-log-loss' took a log that lacks events. Files and data keys of those events are kept until you remove this file.")
		if err != nil {
			return err
		}
		err = os.Rename(s.dir.Path("snapshots"), s.dir.Path("snapshots.refused-"+time.Now().UTC().Format("20060102T150405.000Z")))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
}

// natsAddress is where the embedded NATS server listens: with port 0, the port
// of the last start, so that workers and subscribers find it again.
func (s *Server) natsAddress() string {
	host, port, err := net.SplitHostPort(s.flags.natsListen)
	if err != nil || port != "0" {
		return s.flags.natsListen
	}
	text, _ := os.ReadFile(s.dir.Path(natsPortFile))
	if last, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && last > 0 && last < 1<<16 {
		return net.JoinHostPort(host, strconv.Itoa(last))
	}
	return s.flags.natsListen
}

func (s *Server) openWorld(ctx context.Context) (err error) {
	if s.world, err = projections.Open(ctx, s.events.Log(), s.dir.Path("snapshots")); err != nil {
		return err
	}
	s.services.start("world", func(ctx context.Context) error { return s.world.Run(ctx, s.events.Log()) })
	s.services.start("snapshots", s.saveSnapshots)
	s.admission.Log, s.admission.World, s.admission.Sessions = s.events.Log(), s.world, s.events
	close(s.admits)
	s.services.start("admission", s.admission.Run)
	return nil
}

// logSpace is the space of the log; nil when it lies in a cluster.
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
		err := disk.On(s.flags.Data).Check(disk.Files, 0)
		if err == nil {
			_, err = s.world.SaveEvery(s.dir.Path("snapshots"), snapshotEvery)
		}
		if err != nil {
			s.logger.Error("the world could not be saved; the next start will read more of the log", "error", err)
		}
	}
}
