package eventlog

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/domain"
)

// ConnectOptions say where a NATS cluster is, and who we are there. Its
// servers have the accounts, users and exports of accounts.conf.
type ConnectOptions struct {
	URL        string // nats://host:port, several separated by commas
	Password   string // of the users control, desk and keeper
	IssuerSeed string // of the auth callout's issuer: see NewIssuer
	TLS        *tls.Config
	Replicas   int          // of the streams; 0 leaves what is there, or 3
	VerifyNode VerifyNode   // nil lets no node in
	Log        *slog.Logger // is warned of servers that do not sync each message; nil asks none
	Mark       string       // file of this control plane's mark of the log; "" keeps none
}

// A Connection is the control plane's place in a NATS server or cluster: one
// connection into each account, and the log.
type Connection struct {
	control, desk, keeper *nats.Conn
	warden                *nats.Conn // into the system account: see NodeSessions
	servers               int        // 1 of the embedded server; 0 is not known
	log                   *JetStream
	replicas              int
}

// Connect joins an existing cluster, makes the streams when they are missing
// and begins to vouch for nodes.
func Connect(ctx context.Context, opts ConnectOptions) (*Connection, error) {
	if opts.URL == "" || opts.Password == "" || opts.IssuerSeed == "" {
		return nil, domain.Faultf(domain.InvalidArgument, "an existing NATS cluster needs its URL, the password of its users control, desk and keeper, and the seed of its auth callout's issuer")
	}
	var common []nats.Option
	if opts.TLS != nil {
		common = append(common, nats.Secure(opts.TLS))
	}
	c, err := join(ctx, opts.URL, opts.Password, opts.IssuerSeed, opts.Replicas, opts.VerifyNode, nil, common)
	if err != nil {
		return nil, err
	}
	c.warnOfLazyServers(ctx, opts)
	if opts.Mark != "" {
		if err = c.keepMark(ctx, opts.Mark); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// keepMark holds the log against the mark that this control plane has of it,
// and keeps the mark from now on.
func (c *Connection) keepMark(ctx context.Context, path string) error {
	mark, err := ReadMark(path)
	switch {
	case err == nil, errors.Is(err, os.ErrNotExist):
	case errors.Is(err, errMarkDamaged):
		slog.Warn("the mark of the log is damaged: a new one is made", "file", path)
	default:
		return domain.Faultf(domain.FailedPrecondition, "the mark of the log cannot be read: %v", err)
	}
	if mark, err = c.log.checkState(ctx, checked{mark: mark}); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return domain.Faultf(domain.FailedPrecondition, "the folder of the log's mark cannot be made: %v", err)
	}
	c.log.mark, err = openMark(path, mark)
	return err
}

func join(ctx context.Context, url, password, seed string, replicas int, verify VerifyNode, readers *accountReaders, common []nats.Option) (c *Connection, err error) {
	c = &Connection{replicas: replicas}
	defer func() {
		if err != nil {
			c.Close()
			c = nil
		}
	}()
	for _, into := range []struct {
		user string
		conn **nats.Conn
	}{{"control", &c.control}, {"desk", &c.desk}, {"keeper", &c.keeper}, {"warden", &c.warden}} {
		options := append([]nats.Option{
			nats.Name("anneal " + into.user), nats.UserInfo(into.user, password),
			nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond), nats.Timeout(5 * time.Second),
		}, common...)
		if *into.conn, err = nats.Connect(url, options...); err != nil {
			return c, domain.Faultf(domain.Unavailable, "cannot connect to NATS as %s: %v", into.user, err)
		}
	}
	if c.replicas == 0 {
		if c.replicas, err = replicasThere(ctx, c.control, 3); err != nil {
			return c, err
		}
	}
	if c.log, err = OpenJetStream(ctx, c.control, JetStreamOptions{Replicas: c.replicas}); err != nil {
		return c, err
	}
	if err = ensureTasks(ctx, c.log.js, c.replicas); err != nil {
		return c, err
	}
	for _, ensure := range []func(context.Context, jetstream.JetStream, int) error{ensureKeys, ensureAnswers, ensureUses, ensureUsage} {
		if err = ensure(ctx, c.log.js, c.replicas); err != nil {
			return c, err
		}
	}
	if err = keepMirror(ctx, c.keeper, c.log, c.replicas); err != nil {
		return c, err
	}
	if err = c.lendUsage(ctx); err != nil {
		return c, err
	}
	return c, vouch(c.control, seed, verify, readers)
}

// replicasThere is how many servers keep the log, otherwise when there is none.
func replicasThere(ctx context.Context, nc *nats.Conn, otherwise int) (replicas int, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, fmt.Errorf("eventlog: %w", err)
	}
	err = persist(ctx, func(ctx context.Context) error {
		stream, err := js.Stream(ctx, Stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			replicas = otherwise
			return nil
		}
		if err == nil {
			replicas = stream.CachedInfo().Config.Replicas
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("eventlog: looking for the stream %s: %w", Stream, err)
	}
	return replicas, nil
}

// Control is the connection into the account CONTROL: streams, keys, tasks.
func (c *Connection) Control() *nats.Conn { return c.control }

// Desk is the connection into the account AGENTS, with every right there.
func (c *Connection) Desk() *nats.Conn { return c.desk }

// Log is the log.
func (c *Connection) Log() *JetStream { return c.log }

// Close sends what is buffered and closes the connections.
func (c *Connection) Close() {
	for _, nc := range []*nats.Conn{c.desk, c.control, c.keeper, c.warden} {
		if nc != nil {
			_ = nc.FlushTimeout(2 * time.Second)
			nc.Close()
		}
	}
	if c.log != nil && c.log.disk == nil {
		_ = c.log.mark.close(Hash{}) // the mark of a cluster's log; it may be a moment behind
	}
}
