package server

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/blobs/reconcile"
	"anneal/domain"
	"anneal/internal/certs"
	"anneal/internal/node"
	"anneal/schedulers"
	"anneal/workers/agent"
	"anneal/workers/coordinator"
)

func (s *Server) startServices(ctx context.Context) error {
	log := s.events.Log()
	sealer, err := s.sealer(ctx)
	if err != nil {
		return err
	}
	secret, err := s.dir.Key("blobs")
	if err != nil {
		return err
	}
	s.code = s.flags.Node.Sandbox(ctx, s.logger)
	agents := coordinator.New(coordinator.Options{Log: log, World: s.world, Blobs: s.blobs, Conn: s.events.Coordinator(),
		Journal: s.journal, OpenSecret: observed(s, sealer).Open, Secret: secret, LostAfter: s.flags.lostAfter,
		Logger: s.logger})
	s.services.start("coordinator", agents.Run)
	reconciler := reconcile.New(reconcile.Options{Log: log, World: s.world, Blobs: s.blobs, Keys: sealer,
		Dir: s.flags.Data, Logger: s.logger})
	s.services.start("reconciler", reconciler.Run)
	for _, scheduler := range []schedulers.Scheduler{
		schedulers.Jobs{}, schedulers.Replicas{PlaceWithin: s.flags.placementTimeout, KeepDeleted: s.flags.keepDeleted},
		schedulers.Autoscale{}, schedulers.Expiry{}, schedulers.Batches{}, schedulers.Addons{}, schedulers.HotLoads{},
		schedulers.Nodes{LostAfter: s.flags.lostAfter, ForgetAfter: s.flags.forgetAfter}, schedulers.Allocations{},
		schedulers.Drain{}, schedulers.Accounts{}, schedulers.Releases{}, schedulers.Training{},
	} {
		s.services.start("scheduler "+scheduler.Name(), func(ctx context.Context) error {
			return whileLeading(ctx, s.membership, func(ctx context.Context) error {
				return schedulers.Run(ctx, log, s.world, scheduler, s.logger)
			})
		})
	}
	if s.membership != nil {
		s.membership.Stand()
	}
	if err := s.openTasks(sealer); err != nil {
		return err
	}
	if !s.flags.worker {
		return nil
	}
	return s.openWorker(ctx)
}

// openWorker starts the local worker in this process. It enrolls without a join token, because it
// has access to the data directory.
func (s *Server) openWorker(ctx context.Context) error {
	flags := s.flags.Node
	flags.ID = s.localNode()
	key, err := agent.OpenKey(s.dir.NodeKeyPath(flags.ID))
	if err != nil {
		return err
	}
	public, err := key.PublicKey()
	if err != nil {
		return err
	}
	if err := s.admission.Enroll(ctx, flags.ID, public, domain.LocalJoinToken); err != nil {
		var fault *domain.Error
		if !errors.As(err, &fault) || fault.Code != domain.FailedPrecondition {
			return err
		}
		s.logger.Error("cannot enroll the local worker: choose another node ID with --node-id, or disable the local worker "+
			"with --worker=false", "node", flags.ID, "error", err)
		return nil
	}
	options := agent.Options{Key: key, URL: s.flags.natsURL, Dir: s.dir.Path("worker"), Log: s.logger,
		LeaveWithin: leaveTimeout}
	if s.nats != nil {
		options.URL, options.NATS = nats.DefaultURL, []nats.Option{s.nats.InProcess()}
	} else if s.certs.cluster != nil {
		options.NATS = []nats.Option{nats.Secure(s.certs.cluster)}
	}
	// The local worker downloads files from this server over HTTP. It must trust the server's
	// certificate, even if the operating system does not.
	if s.certs.pair != nil {
		config, err := certs.ClientConfig(nil)
		if err != nil {
			return err
		}
		options.TLS = certs.Trusting(s.certs.pair, config)
	}
	s.services.startWorker(func(ctx context.Context) error { return node.RunAgent(ctx, options, flags, s.code) })
	s.awaitNode(ctx, domain.NewName(domain.System, domain.Nodes.Collection, flags.ID))
	return nil
}

// registrationTimeout is the maximum time that Start waits for the registration of the local
// worker.
const registrationTimeout = 5 * time.Second

// awaitNode waits until the node has registered, at most registrationTimeout. So the first requests
// to a new installation already find the node's devices: see domain.FleetAccelerator.
func (s *Server) awaitNode(ctx context.Context, name domain.Name) {
	ctx, cancel := context.WithTimeout(ctx, registrationTimeout)
	defer cancel()
	for {
		view := s.world.View()
		if row, ok := view.Nodes.Get(name); ok && row.State.Registered() {
			return
		}
		select {
		case <-s.world.Changed(view.Position):
		case <-ctx.Done():
			return
		}
	}
}

func (s *Server) localNode() string {
	if s.flags.Node.ID != "" {
		return s.flags.Node.ID
	}
	return localNode
}
