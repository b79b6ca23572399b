package natsserver

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
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
	"anneal/eventlog/integrity"
)

// Accounts is the part of a NATS server's configuration that anneal needs, in
// an own cluster as in the embedded server. Its variables, to be set before it
// or in the environment: ANNEAL_NATS_PASSWORD, ANNEAL_NATS_READER_PASSWORD and
// ANNEAL_NATS_ISSUER.
//
//go:embed accounts.conf
var Accounts string

// ServerOptions say how the embedded NATS server runs.
type Options struct {
	Dir               string              // where streams are kept; nobody else may use it: see LockDir
	Listen            string              // host:port for nodes and readers, port 0 picks one; "" is in-process only
	NoSync            bool                // a power failure may take acknowledged events; no mark is kept
	Mark              string              // file of the log's high-water mark; "" is Dir with ".mark" behind it
	Holds             eventlog.Checkpoint // an event that the log must have, such as a snapshot's last; zero is none
	TLS               *tls.Config         // for Listen; nil is plain
	VerifyNode        VerifyNode          // nil lets no node in
	NewReaderPassword bool                // of the reader of all accounts: the one of before was in other hands
	// VerifyReader names the reader whose credentials these are; nil lets none in.
	VerifyReader func(ctx context.Context, user, password string) (Reader, bool)
	// MaxConnections bounds the connections of nodes and readers; 0 is the NATS server's own bound, 65536.
	MaxConnections int
	Log            *slog.Logger // warnings and errors of the server; nil is silence

	syncAlways bool                                  // the server syncs each message itself
	inBlocks   func(dir string, message []byte) bool // nil is inBlockFiles; for tests
}

// A Server is an embedded NATS server with JetStream, and our place in it.
type Server struct {
	*Connection
	nats    *server.Server
	dir     string
	reader  string
	readers *accountReaders     // nil when no account has readers here
	logger  *slog.Logger        // nil is silence
	broken  chan string         // why the server takes nothing more
	files   eventlog.LocalFiles // of the log
	part    bool                // the log's files were not all read before the start
}

const readerPasswordFile = "reader.password"

// StartServer starts the embedded server and opens the log in it. Acknowledged
// events outlive a power failure unless NoSync is set.
func Start(opts Options) (*Server, error) {
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "the folder for the event log cannot be made: %v", err)
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
		if err := dropUnreadableConsumers(opts.Dir, opts.Log); err != nil {
			return nil, err
		}
	}
	if opts.NewReaderPassword {
		if err := os.Remove(filepath.Join(opts.Dir, readerPasswordFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, domain.Errorf(domain.FailedPrecondition, "the readers' password cannot be replaced: %v", err)
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
		return nil, fmt.Errorf("eventlog: the embedded NATS server: %w", err)
	}
	fatal := make(chan string, 1)
	s := &Server{nats: ns, dir: opts.Dir, reader: reader, logger: opts.Log, broken: make(chan string, 1), part: before.Partial}
	if opts.VerifyReader != nil {
		s.readers = newAccountReaders(s, opts.VerifyReader)
	}
	ns.SetLoggerV2(serverLog{opts.Log, fatal, s.broken}, false, false, false)
	ns.Start()
	err = s.begin(own, seed, opts, before, fatal)
	if err == nil {
		return s, nil
	}
	s.Close()
	if errors.Is(err, errUnknownLayout) && !opts.syncAlways {
		opts.Log.Warn("NATS keeps its messages otherwise than this program knows, so each message is synced by NATS: changes are slower",
			"folder", opts.Dir)
		opts.syncAlways = true
		return Start(opts)
	}
	return nil, err
}

// Watch returns ctx's error when it is done, and before that a fault when the
// server will take nothing more: its disk was full, or is broken.
func (s *Server) Watch(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case reason := <-s.broken:
		return domain.Errorf(domain.FailedPrecondition, "the disk of the event log failed (%s): see that it works and has space left, then start the server again; what was acknowledged is kept", reason)
	}
}

// A large log is recovered before the server answers.
const patience = time.Minute

func (s *Server) begin(password, seed string, opts Options, before integrity.CheckResult, fatal <-chan string) (err error) {
	ready := make(chan bool, 1)
	go func() { ready <- s.nats.ReadyForConnections(patience) && s.nats.JetStreamEnabled() }()
	select {
	case ok := <-ready:
		if !ok {
			return domain.Errorf(domain.Unavailable, "the embedded NATS server did not start within %v: is %s writable, with space left?", patience, opts.Dir)
		}
	case reason := <-fatal:
		return domain.Errorf(domain.FailedPrecondition, "the embedded NATS server cannot start: %s", reason)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.Connection, err = join(ctx, "", password, seed, 1, opts.VerifyNode, s.readers, []nats.Option{nats.InProcessServer(s.nats)}, nil)
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
		return domain.Errorf(domain.FailedPrecondition, "the event log cannot be synced to disk: %v", err)
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
		opts.Log.Warn("the log had no high-water mark, so events that it may have lost before are not noticed; it has one from now on",
			"position", mark.Durable, "file", opts.Mark)
	} else if before.NewMark {
		opts.Log.Info("the log has a high-water mark from now on", "position", mark.Durable, "file", opts.Mark)
	}
	if s.mark, err = integrity.OpenMark(opts.Mark, mark); err != nil {
		return err
	}
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
	variables := fmt.Sprintf("ANNEAL_NATS_PASSWORD: %q\nANNEAL_NATS_READER_PASSWORD: %q\nANNEAL_NATS_ISSUER: %q\n", own, reader, issuer)
	if err := config.ProcessConfigString(variables + Accounts); err != nil {
		return nil, errors.New("eventlog: the accounts of the embedded NATS server cannot be read") // the cause may quote a password
	}
	config.ServerName = "anneal"
	config.NoSigs = true
	config.JetStream = true
	config.StoreDir = opts.Dir
	config.SyncInterval = time.Second // of what nobody waits for: the places of consumers, tasks
	config.SyncAlways = opts.syncAlways
	config.MaxPayload = eventlog.MaxEvent + 64<<10 // an event and what the server adds to it
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
		return nil, domain.Errorf(domain.InvalidArgument, "the port of the NATS address %q must be 0 to 65535; 0 picks a free one", opts.Listen)
	}
	if config.Port == 0 {
		config.Port = server.RANDOM_PORT
	}
	return config, nil
}

// URL is where nodes and readers connect; "" when they cannot.
func (s *Server) URL() string {
	if addr := s.nats.Addr(); addr != nil {
		return s.nats.ClientURL()
	}
	return ""
}

// InProcess connects to the server without a network: a node in this process.
func (s *Server) InProcess() nats.Option { return nats.InProcessServer(s.nats) }

// ReaderCredentials let whoever has them read every event, and nothing else.
// The password was made at the first start and is kept in the server's folder.
func (s *Server) ReaderCredentials() (user, password string) { return "reader", s.reader }

// scrubEvery is how often the files of a running server are read.
const scrubEvery = 24 * time.Hour

// Scrub reads the log's closed blocks again and again until ctx is done: immediately
// when the check before the start left some out, and then every scrubEvery.
func (s *Server) Scrub(ctx context.Context) error {
	if s.mark == nil {
		return nil
	}
	if !s.part && !eventlog.Sleep(ctx, scrubEvery) {
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

// SweepReaders closes the connections of account readers that are not valid any
// more, by their user and the time since which they are connected.
func (s *Server) SweepReaders(valid func(user string, since time.Time) bool) error {
	return s.readers.sweep(valid)
}

// Sync writes the names of all streams' files to disk. The server syncs what
// is in a file, but not the folder that it made the file in: so call this when
// a stream was made.
func (s *Server) Sync() error { return disk.SyncTree(s.dir) }

// Close ends the server once everything it holds is written.
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
		_ = s.mark.Close(integrity.IndexHash(integrity.BlockDir(s.dir, "CONTROL", eventlog.Stream))) // else the next start reads the whole log
	}
}

// keptPassword reads a password, or makes one and keeps it.
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
		return "", domain.Errorf(domain.FailedPrecondition, "the readers' password cannot be read: %v", err)
	}
	password := strings.TrimSpace(string(kept))
	if len(password) < 16 {
		return "", domain.Errorf(domain.FailedPrecondition, "the readers' password in %s is shorter than 16 characters: delete the file to get a new one", path)
	}
	return password, nil
}
