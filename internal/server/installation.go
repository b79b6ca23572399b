package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"anneal/domain"
	"anneal/eventlog/installation"
	"anneal/eventlog/secrets"
	"anneal/internal/datadir"
)

// checkInstallation returns a function that checks whether a control plane with this data directory
// can join the installation whose log is in the NATS cluster. The function returns an error if the
// directory lacks the installation's keys or has other keys, or if this version of anneal cannot
// read the installation's events.
func checkInstallation(dir datadir.Dir) func(context.Context, *nats.Conn) error {
	return func(ctx context.Context, nc *nats.Conn) error {
		record, ok, err := installation.Read(ctx, nc)
		if err != nil {
			return err
		}
		_, own, err := dir.Fingerprints()
		if err != nil {
			return err
		}
		if ok {
			return record.Check(own, domain.EventVersion)
		}
		if has, err := installation.HasLog(ctx, nc); err != nil || !has || len(own) > 0 {
			return err
		}
		return &domain.Error{Code: domain.FailedPrecondition, Reason: installation.Reason,
			Message: fmt.Sprintf("the NATS cluster has the log of an installation, but %s has none of its keys: "+
				"start with the data directory of that installation's control plane, or choose another NATS cluster "+
				"with --nats-url", dir)}
	}
}

// joinInstallation returns the step of Start that adds the control plane to the installation whose
// log is in the NATS cluster. The first control plane creates the record of the installation, with
// its own keys. An installation with an embedded NATS server has one control plane and no record.
func joinInstallation(s *Server) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		if s.nats == nil {
			s.membership, err = join(ctx, s)
		}
		return err
	}
}

func join(ctx context.Context, s *Server) (*installation.Membership, error) {
	for _, name := range datadir.SharedKeys {
		if _, err := s.dir.Key(name); err != nil { // creates the key
			return nil, err
		}
	}
	if _, err := secrets.OpenKeyRing(s.dir.RingPath()); err != nil {
		return nil, err
	}
	keys, own, err := s.dir.Fingerprints()
	if err != nil {
		return nil, err
	}
	if _, ok, err := installation.Read(ctx, s.events.Control()); err != nil {
		return nil, err
	} else if !ok {
		if err := installation.Create(ctx, s.events.Control(), s.events.Replicas(), keys, domain.EventVersion); err != nil {
			return nil, err
		}
	}
	m, err := installation.Join(ctx, installation.Options{Conn: s.events.Control(),
		Replicas: s.events.Replicas(), ID: s.id,
		Release: s.flags.Node.Version, EventVersion: domain.EventVersion, Keys: own, Logger: s.logger})
	if err != nil {
		return nil, err
	}
	s.events.Log().RequireReadable(func(eventType string) bool {
		return domain.EventVersionOf(eventType) <= m.EventVersion()
	})
	s.services.start("installation", m.Run)
	return m, nil
}

// checkBucket returns the step of Start that checks that the bucket belongs to the installation.
func checkBucket(s *Server) func(context.Context) error {
	return func(ctx context.Context) error {
		if s.membership == nil {
			return nil
		}
		return s.membership.CheckBucket(ctx, s.blobs, cmp.Or(s.flags.blobs, s.dir.Path("blobs")))
	}
}

// whileLeading calls run whenever this control plane becomes the leader of its installation, and
// cancels run's context when it is no longer the leader. For a short time another control plane may
// lead too. If m is nil, this is the only control plane, which always leads.
func whileLeading(ctx context.Context, m *installation.Membership, run func(context.Context) error) error {
	if m == nil {
		return run(ctx)
	}
	for ctx.Err() == nil {
		leads, changed := m.Leads()
		if leads {
			term, stop := context.WithCancel(ctx)
			ended := make(chan error, 1)
			go func() { ended <- run(term) }()
			select {
			case err := <-ended:
				stop()
				return err
			case <-changed:
				stop()
				if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
					return err
				}
			case <-ctx.Done():
				stop()
				return <-ended
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// Members returns the control planes of the installation whose log is in a NATS cluster.
func Members(ctx context.Context, natsURL string, tls TLSFlags) (installation.Record, error) {
	cluster, err := tls.LoadCluster(true)
	if err != nil {
		return installation.Record{}, err
	}
	conn, err := connectControl(natsURL, cluster)
	if err != nil {
		return installation.Record{}, err
	}
	defer conn.Close()
	record, ok, err := installation.Read(ctx, conn)
	if err == nil && !ok {
		err = domain.Errorf(domain.NotFound, "the NATS cluster has no installation: start a control plane with "+
			"`anneal serve --nats-url %s`", natsURL)
	}
	return record, err
}
