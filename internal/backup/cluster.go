package backup

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"anneal/domain"
	"anneal/eventlog/installation"
	"anneal/eventlog/integrity"
	"anneal/eventlog/natsserver"
)

// openCluster connects to the NATS cluster, and marks it in the record of the installation: from
// then on no control plane can join until completeCluster. It changes nothing in a cluster to which
// the backup cannot be restored.
func (r *restore) openCluster(ctx context.Context) (closeLog func(), err error) {
	_, keys, err := r.dir.Fingerprints()
	if err != nil {
		return nil, err
	}
	r.marker = installation.Restore{ID: nuid.Next(), Log: r.from.Log, Backup: r.from.ID, StartTime: time.Now().UTC()}
	options := *r.Cluster
	options.Before = func(ctx context.Context, nc *nats.Conn) error {
		return installation.CheckRestore(ctx, nc, r.marker, keys, domain.EventVersion)
	}
	if r.log, err = natsserver.Connect(ctx, options); err != nil {
		return nil, err
	}
	r.complete, err = installation.BeginRestore(ctx, r.log.Control(), r.log.Replicas(), r.marker, keys,
		domain.EventVersion)
	if err != nil {
		r.log.Close()
		return nil, err
	}
	// The cluster acknowledges only durable messages, and each of its control planes has a mark of its
	// own.
	r.sync = func() error { return nil }
	r.mark = func(integrity.HashChain) error { return nil }
	return r.log.Close, nil
}

// completeCluster lets control planes join: those with the keys of the backup.
func (r *restore) completeCluster(ctx context.Context) error {
	if r.Cluster == nil || r.complete {
		return nil
	}
	keys, _, err := r.dir.Fingerprints()
	if err != nil {
		return err
	}
	return installation.CompleteRestore(ctx, r.log.Control(), r.log.Replicas(), r.marker, keys)
}
