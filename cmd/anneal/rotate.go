package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"anneal/eventlog"
)

func logRotateKey() *cobra.Command {
	var data, natsURL string
	var certs tlsFlags
	c := &cobra.Command{Use: "rotate-key", Short: "Replace the key under which secrets lie, while the server is stopped", Args: arguments(0, 0),
		Example: "  anneal log rotate-key --data data",
		Long: `What is sealed (secrets and trackers' keys) has a key each, and those are wrapped by the newest key
in DATA/keys/ring. This makes a new one, wraps all of them by it, and takes the older ones out of the
file, so that whoever has read it opens nothing that is copied from now on. Backups from before need
the older file.

With --nats-url, and ANNEAL_NATS_PASSWORD set, the log lies in a NATS cluster: stop all its servers, and
give the others a copy of DATA/keys/ring before they start again.`,
		RunE: func(c *cobra.Command, _ []string) error {
			dir := folder(data)
			if data == "" {
				dir = folder(filepath.Dir(contextPath(c)))
			}
			opened, err := certs.open(natsURL != "")
			if err != nil {
				return err
			}
			wrapped, err := rotateKey(c.Context(), dir, natsURL, opened.cluster)
			if err != nil {
				return err
			}
			if inJSON, _ := asJSON(c); inJSON {
				return printJSON(c.OutOrStdout(), map[string]int{"wrapped": wrapped})
			}
			note(c, "%s has a new key: back it up\nvalues that lie under it: %d", dir.ringPath(), wrapped)
			return nil
		}}
	c.Flags().StringVar(&data, "data", "", "the server's folder (default: that of the context file)")
	c.Flags().StringVar(&natsURL, "nats-url", "", "the NATS cluster that the log lies in (default: the server's folder)")
	certs.addCluster(c)
	return c
}

// rotateKey replaces the newest key of a folder's ring, and answers how many
// data keys it wraps. Until they all are, the older keys stay.
func rotateKey(ctx context.Context, dir folder, natsURL string, cluster *tls.Config) (wrapped int, err error) {
	if _, err := os.Stat(dir.path("version")); err != nil {
		return 0, fmt.Errorf("%s is not a server's folder: give --data DIR", dir)
	}
	release, err := eventlog.LockDir(string(dir))
	if err != nil {
		return 0, err
	}
	defer release()
	open, done, err := stoppedVault(dir, natsURL, cluster)
	if err != nil {
		return 0, err
	}
	defer done()
	ring, err := eventlog.RotateKeyRing(dir.ringPath())
	if err != nil {
		return 0, err
	}
	vault, err := open(ctx, ring)
	if err == nil {
		wrapped, err = vault.Rewrap(ctx)
		err = errors.Join(err, vault.Close())
	}
	if err != nil {
		return 0, fmt.Errorf("not everything is wrapped by the new key, so the older ones stay: try again (%w)", err)
	}
	return wrapped, eventlog.RetireKeys(dir.ringPath())
}

// stoppedVault says how to open the vault of a stopped server.
func stoppedVault(dir folder, natsURL string, cluster *tls.Config) (open func(context.Context, *eventlog.KeyRing) (*eventlog.Vault, error), done func(), err error) {
	if natsURL != "" {
		options := []nats.Option{nats.UserInfo("control", os.Getenv("ANNEAL_NATS_PASSWORD"))}
		if cluster != nil {
			options = append(options, nats.Secure(cluster))
		}
		conn, err := nats.Connect(natsURL, options...)
		if err != nil {
			return nil, nil, fmt.Errorf("cannot connect to %s: check --nats-url and ANNEAL_NATS_PASSWORD (%w)", natsURL, err)
		}
		return func(ctx context.Context, ring *eventlog.KeyRing) (*eventlog.Vault, error) {
			return eventlog.OpenVault(ctx, conn, ring)
		}, conn.Close, nil
	}
	if _, err := os.Stat(dir.path("nats")); err != nil {
		return nil, nil, fmt.Errorf("%s holds no log: say where it lies with --nats-url", dir)
	}
	server, err := eventlog.StartServer(eventlog.ServerOptions{Dir: dir.path("nats"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, ring *eventlog.KeyRing) (*eventlog.Vault, error) {
		return eventlog.OpenLocalVault(ctx, server.Control(), ring, dir.localStore("datakeys", slog.Default()))
	}, server.Close, nil
}
