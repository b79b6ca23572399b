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
	"anneal/eventlog/audit"
	"anneal/eventlog/idempotency"
	"anneal/eventlog/integrity"
	"anneal/eventlog/metering"
	"anneal/eventlog/natsconn"
	"anneal/eventlog/pubsub"
	"anneal/eventlog/secrets"
)

// ConnectOptions describe a NATS cluster and the control plane's credentials for it. The servers of
// the cluster must have the accounts, users and exports in accounts.conf.
type ConnectOptions struct {
	URL        string // URL nats://host:port, or several separated by commas
	Password   string // password of the NATS users "control", "desk", "keeper" and "warden"
	IssuerSeed string // seed of the key pair that signs the user claims of nodes; see NewIssuer
	TLS        *tls.Config
	Replicas   int         // replicas of the streams; 0 keeps those of an existing log, and means 3 for a new log
	VerifyNode VerifyNode  // decides which nodes may connect; nil refuses all
	Logins     func(Login) // called with each accepted or refused login of a node; may be nil
	// Log receives a warning when servers of the cluster acknowledge messages before a sync to disk.
	// When it is nil, the servers are not checked.
	Log *slog.Logger
	// Before is called with the connection into the NATS account CONTROL before Connect creates or
	// changes anything in the cluster. Connect returns its error. It may be nil.
	Before func(context.Context, *nats.Conn) error
	Mark   string // file of this control plane's high-water mark of the log; "" means that none is kept
	// AcceptLoss is called when the log does not match the high-water mark, with an error that says
	// why. When it returns nil, the log is accepted and a new mark is created. When AcceptLoss is nil,
	// no such log is accepted.
	AcceptLoss func(why error) error
}

// A Connection is the control plane's access to a NATS server or cluster: a connection into each
// NATS account, and the log.
type Connection struct {
	control, desk, keeper *nats.Conn
	warden                *nats.Conn // connection into the system account; see NodeSessions
	servers               int        // number of NATS servers: 1 for the embedded one; 0 is unknown
	log                   *eventlog.JetStream
	js                    jetstream.JetStream // JetStream context on the connection into the NATS account CONTROL
	mark                  *integrity.MarkFile // high-water mark of the log; nil when none is kept
	replicas              int
}

// Connect connects to an existing NATS cluster, creates the streams that are missing, and begins to
// authorize nodes.
func Connect(ctx context.Context, opts ConnectOptions) (*Connection, error) {
	if opts.URL == "" || opts.Password == "" || opts.IssuerSeed == "" {
		return nil, domain.Errorf(domain.InvalidArgument,
			"to use an existing NATS cluster, give its URL (--nats-url), the password that its users \"control\", "+
				"\"desk\", \"keeper\" and \"warden\" share (ANNEAL_NATS_PASSWORD), and the seed of the key that signs for "+
				"its auth callout (ANNEAL_NATS_ISSUER_SEED)")
	}
	var common []nats.Option
	if opts.TLS != nil {
		common = append(common, nats.Secure(opts.TLS))
	}
	before := func(ctx context.Context, c *Connection) error {
		if opts.Before != nil {
			if err := opts.Before(ctx, c.control); err != nil {
				return err
			}
		}
		return c.checkMark(ctx, opts)
	}
	c, err := join(ctx, opts.URL, opts.Password, opts.IssuerSeed, opts.Replicas,
		nodeAdmission{opts.VerifyNode, opts.Logins}, nil, common, before)
	if err != nil {
		return nil, err
	}
	c.warnOfUnsyncedServers(ctx, opts)
	if opts.Mark != "" {
		if err = c.keepMark(ctx, opts.Mark); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// keepMark compares the log with the high-water mark in the file at path, and returns an error if
// they do not match. When there is no mark, it creates one. From then on it keeps the mark up to
// date.
func (c *Connection) keepMark(ctx context.Context, path string) error {
	mark, err := integrity.ReadMark(path)
	switch {
	case err == nil, errors.Is(err, os.ErrNotExist):
	case errors.Is(err, integrity.ErrMarkDamaged):
		slog.Warn("the file of the log's high-water mark is damaged: writing a new mark; events that the log lost before "+
			"are not noticed", "file", path)
	default:
		return domain.Errorf(domain.FailedPrecondition, "cannot read the file of the log's high-water mark: %v: check "+
			"the disk and the permissions", err)
	}
	if mark, err = c.log.Verify(ctx, integrity.CheckResult{Mark: mark}); err != nil {
		return clusterFault(path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return domain.Errorf(domain.FailedPrecondition, "cannot create the directory for the log's high-water mark: %v", err)
	}
	if c.mark, err = integrity.OpenMark(path, mark); err != nil {
		return err
	}
	c.log.UseFiles(eventlog.LocalFiles{Mark: c.mark})
	return nil
}

// checkMark compares the log of a cluster with the high-water mark before anything in the cluster
// is created or changed. It returns an error if they do not match. A log that only lacks its newest
// events is accepted if the readers' mirror has them, because join appends them to the log again.
func (c *Connection) checkMark(ctx context.Context, opts ConnectOptions) error {
	if opts.Mark == "" {
		return nil
	}
	mark, err := integrity.ReadMark(opts.Mark)
	if err != nil || mark.MinPosition() == 0 {
		return nil // keepMark later reads the mark again and reports the error
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
		return domain.Errorf(domain.FailedPrecondition, "cannot rename the file of the refused high-water mark: %v: "+
			"check the disk and the permissions", err)
	}
	return disk.Sync(filepath.Dir(opts.Mark))
}

// clusterFault adds advice for the operator to an error that says that the log of a cluster does
// not match the high-water mark at path. It returns other errors unchanged.
func clusterFault(path string, err error) error {
	why := err.Error()
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		why = "the cluster has no stream " + eventlog.Stream
	} else if !integrity.IsDamaged(err) {
		return err
	}
	why, _, _ = strings.Cut(why, logAdvice)
	f := domain.Errorf(domain.FailedPrecondition,
		"the log in the NATS cluster does not match the high-water mark of this control plane (%s, according to %s). "+
			"Nothing was changed. Check that --nats-url names the right cluster and that all of its servers have their data; "+
			"if the log was set back on purpose, such as restored from a backup, start once with --accept-log-loss", why, path)
	f.Reason = integrity.ReasonDamaged
	return f
}

// logAdvice is the beginning of the advice in errors about the embedded server's log. For a
// cluster, clusterFault replaces that advice by its own.
const logAdvice = ". The server does not start"

// join opens the connections to a NATS server or cluster, and creates the streams that are missing.
// Before it creates anything it calls prepare, unless prepare is nil, and returns its error.
func join(ctx context.Context, url, password, seed string, replicas int, nodes nodeAdmission, readers *accountReaders,
	common []nats.Option, prepare func(context.Context, *Connection) error) (c *Connection, err error) {
	c = &Connection{replicas: replicas}
	defer func() {
		if err != nil {
			c.Close()
			c = nil
		}
	}()
	connect := natsconn.Connect
	if url == "" { // the embedded server is in this process, so it cannot hang alone
		connect = nats.Connect
	}
	for _, into := range []struct {
		user string
		conn **nats.Conn
	}{{"control", &c.control}, {"desk", &c.desk}, {"keeper", &c.keeper}, {"warden", &c.warden}} {
		options := append([]nats.Option{
			nats.Name("anneal " + into.user), nats.UserInfo(into.user, password),
			nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond),
		}, common...)
		if *into.conn, err = connect(url, options...); err != nil {
			return c, domain.Errorf(domain.Unavailable, "cannot connect to NATS as %s: %v: check that the NATS "+
				"servers run, and check the URL and the password", into.user, err)
		}
	}
	if prepare != nil {
		if err = prepare(ctx, c); err != nil {
			return c, err
		}
	}
	if c.replicas == 0 {
		if c.replicas, err = existingReplicas(ctx, c.control, 3); err != nil {
			return c, err
		}
	}
	if c.log, err = eventlog.OpenJetStream(ctx, c.control, eventlog.JetStreamOptions{Replicas: c.replicas}); err != nil {
		return c, err
	}
	if c.js, err = jetstream.New(c.control); err != nil {
		return c, fmt.Errorf("eventlog: %w", err)
	}
	for _, ensure := range []func(context.Context, jetstream.JetStream, int) error{pubsub.EnsureTasks,
		secrets.EnsureBucket, idempotency.EnsureBucket, metering.EnsureLastUsed, metering.EnsureStream,
		audit.EnsureStream} {
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
	return c, authorize(c.control, seed, nodes, readers)
}

// existingReplicas returns the number of replicas of the log's stream. When there is no log, it
// returns the argument otherwise.
func existingReplicas(ctx context.Context, nc *nats.Conn, otherwise int) (replicas int, err error) {
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

// Connected returns an error while a connection that reads or inference need is interrupted.
func (c *Connection) Connected() error {
	for _, nc := range []*nats.Conn{c.control, c.desk} {
		if !nc.IsConnected() {
			return domain.Errorf(domain.Unavailable, "the control plane has lost its connection to NATS, and reconnects by "+
				"itself: try again")
		}
	}
	return nil
}

// Control returns the connection into the NATS account CONTROL, which has the log, the buckets and
// the tasks.
func (c *Connection) Control() *nats.Conn { return c.control }

// Coordinator returns the connection into the NATS account AGENTS. Its user may use all subjects of
// that account.
func (c *Connection) Coordinator() *nats.Conn { return c.desk }

// Log returns the event log.
func (c *Connection) Log() *eventlog.JetStream { return c.log }

// Replicas returns the number of replicas of the log's stream.
func (c *Connection) Replicas() int { return c.replicas }

// Close sends buffered messages and closes the connections.
func (c *Connection) Close() {
	for _, nc := range []*nats.Conn{c.desk, c.control, c.keeper, c.warden} {
		if nc != nil {
			if nc.IsConnected() {
				_ = nc.FlushTimeout(2 * time.Second)
			}
			nc.Close()
		}
	}
	if c.mark != nil && c.servers == 0 {
		// there is no hash of the log's files, because in a cluster they are on the NATS servers
		_ = c.mark.Close(integrity.Hash{})
	}
}
