package natsserver

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/audit"
	"anneal/eventlog/integrity"
	"anneal/eventlog/metering"
)

// Accounts is the part of a NATS server's configuration that anneal needs, both in a cluster and in
// the embedded server. Its variables ANNEAL_NATS_PASSWORD, ANNEAL_NATS_READER_PASSWORD and
// ANNEAL_NATS_ISSUER must be set earlier in the configuration or in the environment.
//
//go:embed accounts.conf
var Accounts string

// Options configure the embedded NATS server.
type Options struct {
	Dir string // storage directory of the server; the caller must hold the directory's lock
	// Listen is the address host:port for connections of nodes and readers. Port 0 picks a free
	// port; "" allows only connections in this process.
	Listen string
	// do not sync to disk and keep no high-water mark: a power failure can lose acknowledged events
	NoSync bool
	Mark   string // file of the log's high-water mark; "" means Dir with the suffix ".mark"
	// an event that the log must have, such as the newest event in a snapshot; zero when there is none
	Holds      eventlog.Checkpoint
	TLS        *tls.Config // encrypts the connections to Listen; nil means no encryption
	VerifyNode VerifyNode  // decides which nodes may connect; nil refuses all
	Logins     func(Login) // called with each accepted or refused login of a node or reader; may be nil
	// generate a new password for the user that reads all accounts; see ReaderCredentials
	NewReaderPassword bool
	// VerifyReader returns the reader of one account to whom these credentials belong; false refuses
	// the connection. When VerifyReader is nil, all readers of one account are refused.
	VerifyReader func(ctx context.Context, user, password string) (Reader, bool)
	// MaxConnections limits the connections of nodes and readers; 0 means 65536, the default of the
	// NATS server.
	MaxConnections int
	Log            *slog.Logger // receives the NATS server's warnings and errors; nil discards them

	syncAlways bool                                  // for tests: the NATS server itself syncs each message
	inBlocks   func(dir string, message []byte) bool // for tests: called instead of inBlockFiles
}

// A Server is an embedded NATS server with JetStream, and the control plane's connections to it.
type Server struct {
	*Connection
	nats    *server.Server
	dir     string
	reader  string
	readers *accountReaders     // readers of one account; nil without Options.VerifyReader
	logger  *slog.Logger        // receives the NATS server's messages; nil discards them
	broken  chan string         // receives the reason when the NATS server stops storing messages
	files   eventlog.LocalFiles // local files of the log
	partial bool                // the check before the start read only some of the log's block files
}

var usageRetention = integrity.Retention{Age: metering.MaxAge, Count: metering.MaxRecords, Bytes: metering.MaxBytes}

const readerPasswordFile = "reader.password"

// Start starts the embedded server and opens the log in it. Unless NoSync is set, acknowledged
// events survive a power failure.
func Start(opts Options) (*Server, error) {
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "cannot create the storage directory of the event log: %v", err)
	}
	if opts.Mark == "" {
		opts.Mark = integrity.MarkPath(opts.Dir)
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	var before integrity.CheckResult
	if !opts.NoSync {
		var err error
		if before, err = integrity.CheckStore(opts.Dir, opts.Mark, opts.Holds, opts.Log); err != nil {
			return nil, err
		}
		err = integrity.CheckRecords(opts.Dir, metering.Stream, usageRetention, time.Now(), opts.Log)
		if err == nil {
			err = integrity.DiscardDamaged(opts.Dir, metering.UsesStream, opts.Log)
		}
		if err == nil {
			err = integrity.DiscardDamaged(opts.Dir, audit.Stream, opts.Log)
		}
		if err != nil {
			return nil, domain.Errorf(domain.FailedPrecondition, "cannot check the block files of the usage records: %v", err)
		}
		if err := dropUnreadableConsumers(opts.Dir, opts.Log); err != nil {
			return nil, err
		}
	}
	if opts.NewReaderPassword {
		if err := os.Remove(filepath.Join(opts.Dir, readerPasswordFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, domain.Errorf(domain.FailedPrecondition, "cannot write the file with the password for reading all "+
				"accounts: %v", err)
		}
	}
	reader, err := keptPassword(filepath.Join(opts.Dir, readerPasswordFile))
	if err != nil {
		return nil, err
	}
	seed, public, err := NewIssuer()
	if err != nil {
		return nil, err
	}
	own := rand.Text()
	config, err := serverConfig(opts, own, reader, public)
	if err != nil {
		return nil, err
	}
	ns, err := server.NewServer(config)
	if err != nil {
		return nil, fmt.Errorf("create the embedded NATS server: %w", err)
	}
	fatal := make(chan string, 1)
	s := &Server{nats: ns, dir: opts.Dir, reader: reader, logger: opts.Log, broken: make(chan string, 1),
		partial: before.Partial}
	if opts.VerifyReader != nil {
		s.readers = newAccountReaders(s, opts.VerifyReader)
		s.readers.logins = opts.Logins
	}
	ns.SetLoggerV2(serverLog{opts.Log, fatal, s.broken}, false, false, false)
	ns.Start()
	err = s.begin(own, seed, opts, before, fatal)
	if err == nil {
		return s, nil
	}
	s.Close()
	if errors.Is(err, errUnknownLayout) && !opts.syncAlways {
		opts.Log.Warn("the NATS server stores messages in an unknown layout, so each message is synced separately: "+
			"events are recorded more slowly",
			"directory", opts.Dir)
		opts.syncAlways = true
		return Start(opts)
	}
	return nil, err
}

// Watch blocks until ctx is done, and then returns its error. When the NATS server stops storing
// messages because its disk is full or failed, Watch returns a *domain.Error instead.
func (s *Server) Watch(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case reason := <-s.broken:
		return domain.Errorf(domain.FailedPrecondition,
			"the disk of the event log failed (%s): check that it works and has free space, then restart the server; "+
				"acknowledged events are kept", reason)
	}
}

// startTimeout is long, because the NATS server recovers a large log before it accepts connections.
const startTimeout = time.Minute

func (s *Server) begin(password, seed string, opts Options, before integrity.CheckResult,
	fatal <-chan string) (err error) {
	ready := make(chan bool, 1)
	go func() { ready <- s.nats.ReadyForConnections(startTimeout) && s.nats.JetStreamEnabled() }()
	select {
	case ok := <-ready:
		if !ok {
			return domain.Errorf(domain.Unavailable,
				"the embedded NATS server did not start within %v: check that %s is writable and has free space", startTimeout,
				opts.Dir)
		}
	case reason := <-fatal:
		return domain.Errorf(domain.FailedPrecondition, "the embedded NATS server cannot start: %s: check the address "+
			"and the disk", reason)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	s.Connection, err = join(ctx, "", password, seed, 1, nodeAdmission{opts.VerifyNode, opts.Logins}, s.readers,
		[]nats.Option{nats.InProcessServer(s.nats)}, nil)
	if err != nil {
		return err
	}
	s.servers = 1
	s.files.Space = disk.On(opts.Dir)
	s.log.UseFiles(s.files)
	if opts.NoSync {
		return nil
	}
	if err := s.Sync(); err != nil {
		return domain.Errorf(domain.FailedPrecondition, "cannot sync the event log to disk: %v", err)
	}
	if !opts.syncAlways {
		if err := s.checkLayout(ctx, opts); err != nil {
			return err
		}
	}
	mark, err := s.log.Verify(ctx, before)
	if err != nil {
		return err
	}
	if before.NewMark && mark.Durable > 0 {
		opts.Log.Warn("the event log had no high-water mark, so one was created: from now on lost and altered events are "+
			"detected, but not those lost before this start", "position", mark.Durable, "file", opts.Mark)
	} else if before.NewMark {
		opts.Log.Info("created the event log and its high-water mark, by which lost and altered events are "+
			"detected", "file", opts.Mark)
	}
	if s.mark, err = integrity.OpenMark(opts.Mark, mark); err != nil {
		return err
	}
	s.mark.SetUnread(before.Partial)
	s.files.Mark = s.mark
	if opts.syncAlways {
		s.log.UseFiles(s.files)
		return nil
	}
	s.files.Blocks = integrity.BlockDir(opts.Dir, "CONTROL", eventlog.Stream)
	s.log.UseFiles(s.files)
	return serveSync(s.control, opts.Dir, s.log)
}

func serverConfig(opts Options, own, reader, issuer string) (*server.Options, error) {
	config := &server.Options{}
	variables := fmt.Sprintf("ANNEAL_NATS_PASSWORD: %q\nANNEAL_NATS_READER_PASSWORD: %q\nANNEAL_NATS_ISSUER: %q\n", own,
		reader, issuer)
	if err := config.ProcessConfigString(variables + Accounts); err != nil {
		// err is not wrapped because it may contain a password.
		return nil, errors.New("eventlog: invalid configuration of the embedded NATS server's accounts")
	}
	config.ServerName = "anneal"
	config.NoSigs = true
	config.JetStream = true
	config.StoreDir = opts.Dir
	config.SyncInterval = time.Second // for files that no diskSync syncs: states of consumers, some messages
	config.SyncAlways = opts.syncAlways
	// the maximum size of an event, and space for headers that the server adds
	config.MaxPayload = eventlog.MaxEvent + 64<<10
	// The default of the NATS server is three quarters of the space that is free at its start. With
	// that limit, the log would stop while a quarter is still free, and the server would refuse
	// streams whose maximum sizes exceed it. Package disk limits the use of the disk instead.
	config.JetStreamMaxStore = math.MaxInt64 / 2
	config.MaxConn = opts.MaxConnections
	config.DontListen = opts.Listen == ""
	config.AuthTimeout = authTime.Seconds()
	if opts.TLS != nil {
		config.TLSConfig, config.TLSTimeout = opts.TLS, 5
	}
	if config.DontListen {
		return config, nil
	}
	host, port, err := net.SplitHostPort(opts.Listen)
	if err != nil {
		return nil, domain.Errorf(domain.InvalidArgument, "the NATS address %q must be host:port", opts.Listen)
	}
	config.Host = host
	config.Port, err = strconv.Atoi(port)
	if err != nil || config.Port < 0 || config.Port > 65535 {
		return nil, domain.Errorf(domain.InvalidArgument,
			"the port of the NATS address %q must be 0 to 65535; 0 picks a free one", opts.Listen)
	}
	if config.Port == 0 {
		config.Port = server.RANDOM_PORT
	}
	return config, nil
}

// URL returns the URL to which nodes and readers connect; "" when the server does not listen.
func (s *Server) URL() string {
	if addr := s.nats.Addr(); addr != nil {
		return s.nats.ClientURL()
	}
	return ""
}

// InProcess returns the option with which a client in this process connects to the server without a
// network.
func (s *Server) InProcess() nats.Option { return nats.InProcessServer(s.nats) }

// ReaderCredentials returns user and password for reading all events and usage records of all
// accounts. The user cannot change anything. The password is generated at the first start and kept
// in the server's storage directory.
func (s *Server) ReaderCredentials() (user, password string) { return "reader", s.reader }

// scrubEvery is the interval at which a running server checks the log's files for damage.
const scrubEvery = 24 * time.Hour

// Scrub checks the log's block files for damage every scrubEvery until ctx is done. When the check
// before the start was partial, the first check begins immediately.
func (s *Server) Scrub(ctx context.Context) error {
	if s.mark == nil {
		return nil
	}
	if !s.partial && !eventlog.Sleep(ctx, scrubEvery) {
		return ctx.Err()
	}
	for {
		if err := integrity.Scrub(ctx, s.dir, s.mark, s.logger); err != nil {
			return err
		}
		if !eventlog.Sleep(ctx, scrubEvery) {
			return ctx.Err()
		}
	}
}

// SweepReaders closes the connections of the readers of one account for which valid returns false.
// valid gets the reader's NATS user name and the time at which it connected.
func (s *Server) SweepReaders(valid func(user string, since time.Time) bool) error {
	return s.readers.sweep(valid)
}

// Sync syncs the files and directories of all streams. It must be called after a stream is created,
// because the NATS server does not sync the directory in which it creates a file.
func (s *Server) Sync() error { return disk.SyncTree(s.dir) }

// SetChain records the hash chain of a log that was not written with Append, such as a restored
// one, in its high-water mark. All events of the chain must be synced.
func (s *Server) SetChain(chain integrity.HashChain) error {
	return s.mark.Update(func(m *integrity.HighWaterMark) { m.HashChain, m.Durable = chain, chain.Position })
}

// Close stops the server after it has written all buffered data to disk.
func (s *Server) Close() {
	s.readers.close()
	if s.Connection != nil {
		s.Connection.Close()
	}
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
	if s.Connection == nil || s.log == nil {
		return
	}
	s.log.CloseFiles()
	if s.mark != nil {
		// with the hash of the files, the next start reads only a part of a large log
		_ = s.mark.Close(integrity.FilesHash(s.dir))
	}
}

// keptPassword returns the password in the file at path. When the file does not exist, it generates
// a password and writes it to the file.
func keptPassword(path string) (string, error) {
	kept, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		password := rand.Text()
		if err := disk.WriteFile(path, []byte(password+"\n")); err != nil {
			return "", err
		}
		return password, nil
	}
	if err != nil {
		return "", domain.Errorf(domain.FailedPrecondition, "cannot read the file with the password for reading all "+
			"accounts: %v", err)
	}
	password := strings.TrimSpace(string(kept))
	if len(password) < 16 {
		return "", domain.Errorf(domain.FailedPrecondition,
			"the password for reading all accounts in %s is shorter than 16 characters: delete the file to get a new one", path)
	}
	return password, nil
}
