package server

import (
	"context"
	"time"

	"anneal/eventlog/idempotency"
	"anneal/workers/tracking"
)

// openTracking starts the service that sends metrics of jobs to the experiment tracker. The control
// planes of a NATS cluster share a lease, so that only one of them sends.
func openTracking(ctx context.Context, s *Server) error {
	sealer, err := s.sealer(ctx)
	if err != nil {
		return err
	}
	service, err := tracking.ParseService(s.flags.tracker)
	if err != nil {
		return err
	}
	sender := tracking.Sender{Log: s.events.Log(), World: s.world, Blobs: s.blobs, Open: observed(s, sealer).Open,
		Service: service,
		Now:     time.Now, Logger: s.logger}
	s.services.start("tracking", func(ctx context.Context) error {
		if s.nats != nil {
			return sender.Run(ctx)
		}
		return holdLease(ctx, s.idempotency, "system.tracking", sender.Run)
	})
	return nil
}

// leaseTime is the time after which the lease of a process that does not renew it expires. The
// holder renews it three times in this time.
const leaseTime = 30 * time.Second

// holdLease calls run whenever this process acquires the lease with a key, and cancels run's
// context when the process loses it. It returns when ctx is done. The lease is an entry of the
// idempotency store, which the control planes of a cluster share.
func holdLease(ctx context.Context, store *idempotency.Store, key string, run func(context.Context) error) error {
	for ctx.Err() == nil {
		claim, err := store.Claim(ctx, key, []byte(key), time.Now(), leaseTime)
		if err == nil && (claim.State == idempotency.Fresh || claim.State == idempotency.Resumed) {
			if err := underLease(ctx, store, claim, run); err != nil {
				return err
			}
			continue
		}
		if err := sleep(ctx, leaseTime/3); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// underLease calls run until ctx is done or the lease can no longer be renewed. It returns an error
// only if run has returned one before.
func underLease(
	ctx context.Context, store *idempotency.Store, claim idempotency.Claim, run func(context.Context) error,
) error {
	held, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- run(held) }()
	for {
		select {
		case err := <-done:
			// release the lease for the next holder; if that fails, the lease expires
			_ = store.Release(context.WithoutCancel(ctx), claim)
			return err
		case <-time.After(leaseTime / 3):
		}
		renewed, err := store.Renew(held, claim, time.Now(), leaseTime)
		if err != nil {
			stop()
			<-done
			return nil
		}
		claim = renewed
	}
}
