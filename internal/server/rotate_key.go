package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog/installation"
	"anneal/eventlog/natsconn"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/secrets"
	"anneal/internal/datadir"
	"anneal/projections"
)

// RotateKey replaces the master key of a stopped server, and returns the number of data keys that
// the new master key wraps. It removes the former master keys only after that.
func RotateKey(ctx context.Context, dir datadir.Dir, natsURL string, cluster *tls.Config) (wrapped int, err error) {
	if err := dir.CheckExists(); err != nil {
		return 0, err
	}
	release, err := disk.LockDir(string(dir))
	if err != nil {
		return 0, err
	}
	defer release()
	log, err := stoppedLog(dir, natsURL, cluster)
	if err != nil {
		return 0, err
	}
	defer log.close()
	if log.shared != nil {
		record, _, err := installation.Read(ctx, log.shared)
		if err != nil {
			return 0, err
		}
		if len(record.Members) > 0 {
			return 0, domain.Errorf(domain.FailedPrecondition, "control planes of the installation are running (%s): stop all "+
				"of them first; one that was killed is listed for half a minute",
				strings.Join(slices.Sorted(maps.Keys(record.Members)), ", "))
		}
	}
	ring, err := secrets.RotateKeyRing(dir.RingPath())
	if err != nil {
		return 0, err
	}
	vault, err := log.open(ctx, ring)
	if err == nil {
		wrapped, err = vault.Rewrap(ctx)
		err = errors.Join(err, vault.Close())
	}
	if err != nil {
		return 0, fmt.Errorf("wrap all data keys with the new master key: %w; the former master keys are kept, so "+
			"the command can be run again", err)
	}
	if log.shared != nil {
		current, _ := ring.Digests(datadir.RingFingerprint)
		if err := installation.SetKey(ctx, log.shared, datadir.RingKey, current); err != nil {
			return 0, fmt.Errorf("record the new master key: %w; the former master keys are kept, so the command can be run "+
				"again", err)
		}
	}
	return wrapped, secrets.RetireKeys(dir.RingPath())
}

// connectControl connects to a NATS cluster as the user of its account CONTROL, which has the
// streams.
func connectControl(natsURL string, cluster *tls.Config) (*nats.Conn, error) {
	options := []nats.Option{nats.UserInfo("control", os.Getenv("ANNEAL_NATS_PASSWORD"))}
	if cluster != nil {
		options = append(options, nats.Secure(cluster))
	}
	conn, err := natsconn.Connect(natsURL, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w; check --nats-url and ANNEAL_NATS_PASSWORD", natsURL, err)
	}
	return conn, nil
}

// A vaultLog is a connection to the log of a stopped server, through which its vault of data keys
// is opened.
type vaultLog struct {
	open   func(context.Context, *secrets.KeyRing) (*secrets.Vault, error)
	shared *nats.Conn // connection to the NATS cluster; nil for an embedded server
	close  func()
}

// stoppedLog connects to the log of a stopped server. For an embedded server it starts the NATS
// server.
func stoppedLog(dir datadir.Dir, natsURL string, cluster *tls.Config) (vaultLog, error) {
	if natsURL != "" {
		conn, err := connectControl(natsURL, cluster)
		if err != nil {
			return vaultLog{}, err
		}
		return vaultLog{func(ctx context.Context, ring *secrets.KeyRing) (*secrets.Vault, error) {
			return secrets.OpenVault(ctx, conn, ring)
		}, conn, conn.Close}, nil
	}
	if _, err := os.Stat(dir.Path("nats")); err != nil {
		return vaultLog{}, fmt.Errorf("%s contains no log: if the log is stored in a NATS cluster, give --nats-url", dir)
	}
	holds, err := projections.Newest(dir.Path("snapshots"))
	if err != nil {
		return vaultLog{}, err
	}
	server, err := natsserver.Start(natsserver.Options{Dir: dir.Path("nats"), Holds: holds,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return vaultLog{}, err
	}
	return vaultLog{func(ctx context.Context, ring *secrets.KeyRing) (*secrets.Vault, error) {
		return secrets.OpenLocalVault(ctx, server.Control(), ring, dir.LocalStore("datakeys", slog.Default()))
	}, nil, server.Close}, nil
}
