package server

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nats-io/nats.go"

	"anneal/domain"
	"anneal/eventlog/installation"
	"anneal/eventlog/secrets"
	"anneal/internal/datadir"
)

// ringKey is the name of the key ring among the keys that control planes share.
const ringKey = "ring"

// fingerprints returns the fingerprints of the keys in the data directory, by name. It creates no key.
func fingerprints(dir datadir.Dir) (map[string][]string, error) {
	prints := map[string][]string{}
	for _, name := range datadir.SharedKeys {
		text, err := os.ReadFile(dir.Path("keys", name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		key, _ := hex.DecodeString(strings.TrimSpace(string(text))) // Dir.Key reports a damaged file
		prints[name] = []string{installation.Fingerprint(name, key)}
	}
	if _, err := os.Stat(dir.RingPath()); errors.Is(err, os.ErrNotExist) {
		return prints, nil
	}
	ring, err := secrets.OpenKeyRing(dir.RingPath())
	if err == nil {
		_, prints[ringKey] = ring.Digests(ringFingerprint)
	}
	return prints, err
}

func ringFingerprint(key []byte) string { return installation.Fingerprint(ringKey, key) }

// checkInstallation returns a function that checks whether the control plane of the data directory
// can join the installation whose log is in the NATS cluster. The function returns an error if the
// keys of the installation are missing or differ, or if the control plane cannot read its events.
func checkInstallation(dir datadir.Dir) func(context.Context, *nats.Conn) error {
	return func(ctx context.Context, nc *nats.Conn) error {
		record, ok, err := installation.Read(ctx, nc)
		if err != nil {
			return err
		}
		own, err := fingerprints(dir)
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
			Message: fmt.Sprintf("the NATS cluster has the log of an installation, but %s has no keys: start with the data "+
				"directory of that installation's control plane, or choose another NATS cluster with --nats-url", dir)}
	}
}

// joinInstallation returns the step of Start that makes the control plane a member of the installation
// whose log is in a NATS cluster. The first control plane creates the installation's record, with its
// own keys. An installation with an embedded NATS server has one control plane, and no record.
func joinInstallation(s *Server) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		if s.nats == nil {
			s.membership, err = join(ctx, s)
		}
		return err
	}
}

func join(ctx context.Context, s *Server) (*installation.Membership, error) {
	keys := map[string]string{}
	for _, name := range datadir.SharedKeys {
		key, err := s.dir.Key(name)
		if err != nil {
			return nil, err
		}
		keys[name] = installation.Fingerprint(name, key)
	}
	ring, err := secrets.OpenKeyRing(s.dir.RingPath())
	if err != nil {
		return nil, err
	}
	current, all := ring.Digests(ringFingerprint)
	keys[ringKey] = current
	if _, ok, err := installation.Read(ctx, s.events.Control()); err != nil {
		return nil, err
	} else if !ok {
		if err := installation.Create(ctx, s.events.Control(), s.events.Replicas(), keys, domain.EventVersion); err != nil {
			return nil, err
		}
	}
	own := map[string][]string{ringKey: all}
	for _, name := range datadir.SharedKeys {
		own[name] = []string{keys[name]}
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

// checkBucket returns the step of Start that compares the bucket with the installation's.
func checkBucket(s *Server) func(context.Context) error {
	return func(ctx context.Context) error {
		if s.membership == nil {
			return nil
		}
		return s.membership.CheckBucket(ctx, s.blobs, cmp.Or(s.flags.blobs, s.dir.Path("blobs")))
	}
}

// whileLeading calls run while the control plane leads its installation, with a context that is
// canceled when it no longer leads. Another control plane may lead at the same time. With a nil
// Membership, the control plane is the only one.
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
