package natsserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/idempotency"
	"anneal/eventlog/integrity"
	"anneal/eventlog/metering"
	"anneal/eventlog/pubsub"
	"anneal/eventlog/secrets"
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
	// AcceptLoss is called with the reason when the log is not what the mark says.
	// When it succeeds, the log is taken as it is; nil refuses it.
	AcceptLoss func(why error) error
}

// A Connection is the control plane's place in a NATS server or cluster: one
// connection into each account, and the log.
type Connection struct {
	control, desk, keeper *nats.Conn
	warden                *nats.Conn // into the system account: see NodeSessions
	servers               int        // 1 of the embedded server; 0 is not known
	log                   *eventlog.JetStream
	js                    jetstream.JetStream // of control
	mark                  *integrity.MarkFile // nil where none is kept
	replicas              int
}

// Connect joins an existing cluster, makes the streams when they are missing
// and begins to vouch for nodes.
func Connect(ctx context.Context, opts ConnectOptions) (*Connection, error) {
	if opts.URL == "" || opts.Password == "" || opts.IssuerSeed == "" {
		return nil, domain.Errorf(domain.InvalidArgument, "an existing NATS cluster needs its URL, the password of its users control, desk and keeper, and the seed of its auth callout's issuer")
	}
	var common []nats.Option
	if opts.TLS != nil {
		common = append(common, nats.Secure(opts.TLS))
	}
	before := func(ctx context.Context, c *Connection) error { return c.checkMark(ctx, opts) }
	c, err := join(ctx, opts.URL, opts.Password, opts.IssuerSeed, opts.Replicas, opts.VerifyNode, nil, common, before)
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
	mark, err := integrity.ReadMark(path)
	switch {
	case err == nil, errors.Is(err, os.ErrNotExist):
	case errors.Is(err, integrity.ErrMarkDamaged):
		slog.Warn("the mark of the log is damaged: a new one is made", "file", path)
	default:
		return domain.Errorf(domain.FailedPrecondition, "cannot read the high-water mark: %v", err)
	}
	if mark, err = c.log.Verify(ctx, integrity.CheckResult{Mark: mark}); err != nil {
		return clusterFault(path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return domain.Errorf(domain.FailedPrecondition, "the folder of the log's mark cannot be made: %v", err)
	}
	if c.mark, err = integrity.OpenMark(path, mark); err != nil {
		return err
	}
	c.log.UseFiles(eventlog.LocalFiles{Mark: c.mark})
	return nil
}

// checkMark holds a cluster's log against the mark before anything is made or
// changed there. A log that lacks its end is let pass when the readers' copy has
// all that the mark says: join appends it again.
func (c *Connection) checkMark(ctx context.Context, opts ConnectOptions) error {
	if opts.Mark == "" {
		return nil
	}
	mark, err := integrity.ReadMark(opts.Mark)
	if err != nil || mark.MinPosition() == 0 {
		return nil // keepMark tells
	}
	check := func(nc *nats.Conn) error {
		log, err := eventlog.NewJetStream(nc)
		if err == nil {
			_, err = log.Verify(ctx, integrity.CheckResult{Mark: mark})
		}
		return err
	}
	err = check(c.control)
	lacking := integrity.IsDamaged(err) || errors.Is(err, jetstream.ErrStreamNotFound)
	if err == nil || !lacking {
		return err
	}
	if check(c.keeper) == nil {
		return nil
	}
	if err = clusterFault(opts.Mark, err); opts.AcceptLoss == nil {
		return err
	}
	if accepted := opts.AcceptLoss(err); accepted != nil {
		return accepted
	}
	if err := os.Rename(opts.Mark, opts.Mark+".refused-"+time.Now().UTC().Format("20060102T150405.000Z")); err != nil {
		return domain.Errorf(domain.FailedPrecondition, "the mark of the log cannot be put aside: %v", err)
	}
	return disk.Sync(filepath.Dir(opts.Mark))
}

// clusterFault tells what to do about a cluster's log that is not what the mark
// of this control plane says.
func clusterFault(path string, err error) error {
	why := err.Error()
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		why = "the cluster has no stream " + eventlog.Stream
	} else if !integrity.IsDamaged(err) {
		return err
	}
	why, _, _ = strings.Cut(why, logAdvice)
	f := domain.Errorf(domain.FailedPrecondition, "the log in the NATS cluster is not the one that this control plane has seen (%s, by %s). "+
		"Nothing was changed. Check that --nats-url names the right cluster and that all of its servers have their data; if the log was set back "+
		"on purpose, such as restored from a backup, start once with --accept-log-loss", why, path)
	f.Reason = integrity.ReasonDamaged
	return f
}

// logAdvice begins what logFault adds for the embedded server.
const logAdvice = ". The server does not start"

// join opens the connections, and makes what is missing in the server or cluster.
// before, unless nil, may refuse it when nothing was made yet.
func join(ctx context.Context, url, password, seed string, replicas int, verify VerifyNode, readers *accountReaders, common []nats.Option, before func(context.Context, *Connection) error) (c *Connection, err error) {
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
			return c, domain.Errorf(domain.Unavailable, "cannot connect to NATS as %s: %v", into.user, err)
		}
	}
	if before != nil {
		if err = before(ctx, c); err != nil {
			return c, err
		}
	}
	if c.replicas == 0 {
		if c.replicas, err = replicasThere(ctx, c.control, 3); err != nil {
			return c, err
		}
	}
	if c.log, err = eventlog.OpenJetStream(ctx, c.control, eventlog.JetStreamOptions{Replicas: c.replicas}); err != nil {
		return c, err
	}
	if c.js, err = jetstream.New(c.control); err != nil {
		return c, fmt.Errorf("eventlog: %w", err)
	}
	for _, ensure := range []func(context.Context, jetstream.JetStream, int) error{pubsub.EnsureTasks, secrets.EnsureBucket, idempotency.EnsureBucket, metering.EnsureLastUsed, metering.EnsureStream} {
		if err = ensure(ctx, c.js, c.replicas); err != nil {
			return c, err
		}
	}
	if err = eventlog.EnsureMirror(ctx, c.keeper, c.log, c.replicas); err != nil {
		return c, err
	}
	readersJS, err := jetstream.New(c.keeper)
	if err != nil {
		return c, fmt.Errorf("eventlog: %w", err)
	}
	if err = metering.EnsureMirror(ctx, readersJS, c.js, c.replicas); err != nil {
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
	err = eventlog.Retry(ctx, func(ctx context.Context) error {
		stream, err := js.Stream(ctx, eventlog.Stream)
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
		return 0, fmt.Errorf("look up stream %s: %w", eventlog.Stream, err)
	}
	return replicas, nil
}

// Control is the connection into the account CONTROL: streams, keys, tasks.
func (c *Connection) Control() *nats.Conn { return c.control }

// Coordinator is the connection into the account AGENTS, with every right there.
func (c *Connection) Coordinator() *nats.Conn { return c.desk }

// Log is the log.
func (c *Connection) Log() *eventlog.JetStream { return c.log }

// Close sends what is buffered and closes the connections.
func (c *Connection) Close() {
	for _, nc := range []*nats.Conn{c.desk, c.control, c.keeper, c.warden} {
		if nc != nil {
			_ = nc.FlushTimeout(2 * time.Second)
			nc.Close()
		}
	}
	if c.mark != nil && c.servers == 0 {
		_ = c.mark.Close(integrity.Hash{}) // the mark of a cluster's log; it may be a moment behind
	}
}
