package natsserver

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/metering"
)

// A Reader is a NATS client that may read the events and usage records of one account.
type Reader struct {
	Account string
	ID      string     // ID of the API key with which the client authenticates
	Expires *time.Time // when the client's connections are closed; nil means never
}

// User returns the reader's NATS user name: account, dot, ID. The other clients that authenticate
// here are nodes, whose IDs have no dot.
func (r Reader) User() string { return r.Account + "." + r.ID }

// An account's readers use two NATS accounts, created when the first of them
// connects:
//
//	MIRROR-acme   the streams EVENTS and USAGE: mirrors of the streams of READERS,
//	              filtered to the account acme, with the positions of the log
//	READERS-acme  the users of the readers; no streams, but each subject of the
//	              JetStream API that reads the mirrors is imported from MIRROR-acme
//
// A reader can direct any response of the JetStream API to any subject of its own NATS account. In
// an account with streams, a response with the body {} to the subject $JS.API.STREAM.DELETE.EVENTS
// would delete the stream EVENTS. So READERS-acme has no streams and does not import that subject,
// and readers cannot create push consumers, which deliver to subjects of MIRROR-acme.
const (
	mirrorAccount  = "MIRROR-"
	readersAccount = "READERS-"
	feedPrefix     = "feed."    // prefix of the subjects on which READERS delivers messages to the mirrors
	feedAPI        = "feed.api" // prefix of the subjects of requests from the mirrors to READERS
	// prefix of the subjects of requests that are checked before they are forwarded to the JetStream
	// API
	checkedAPI = "checked.api"
)

// Limits of the mirrors of one account, and of the readers' requests.
const (
	readerStreams   = 2
	readerConsumers = 100
	readerBody      = 64 << 10        // maximum bytes of a request to create a consumer
	createTime      = 5 * time.Second // maximum time for creating a consumer
)

// readerAPI returns the subjects of the JetStream API to which a reader may send requests about a
// stream. The value says whether a request has one reply or several.
func readerAPI(stream string) map[string]server.ServiceRespType {
	return map[string]server.ServiceRespType{
		"$JS.API.STREAM.INFO." + stream:              server.Singleton,
		"$JS.API.STREAM.MSG.GET." + stream:           server.Singleton,
		"$JS.API.DIRECT.GET." + stream:               server.Streamed,
		"$JS.API.DIRECT.GET." + stream + ".>":        server.Singleton,
		"$JS.API.CONSUMER.NAMES." + stream:           server.Singleton,
		"$JS.API.CONSUMER.LIST." + stream:            server.Singleton,
		"$JS.API.CONSUMER.INFO." + stream + ".*":     server.Singleton,
		"$JS.API.CONSUMER.DELETE." + stream + ".*":   server.Singleton,
		"$JS.API.CONSUMER.MSG.NEXT." + stream + ".*": server.Streamed,
		"$JS.ACK." + stream + ".>":                   server.Singleton,
	}
}

// checkedRequests returns the subjects of requests that create a consumer on a stream, without
// their prefix $JS.API.
func checkedRequests(stream string) []string {
	return []string{"CONSUMER.CREATE." + stream, "CONSUMER.CREATE." + stream + ".>", "CONSUMER.DURABLE.CREATE." + stream +
		".*"}
}

// readerFilters returns, by stream, the subject filter of what the readers of an account may read.
func readerFilters(account string) map[string]string {
	return map[string]string{eventlog.Stream: "events." + account + ".>", metering.Stream: "usage." + account + ".>"}
}

// accountReaders manages the NATS accounts for readers in the embedded server: two for each account
// of anneal that has had a reader.
type accountReaders struct {
	server *Server
	verify func(ctx context.Context, user, password string) (Reader, bool)
	logins func(Login)
	secret string // password of this process's own connections into the NATS accounts MIRROR-…

	mu     sync.Mutex
	open   map[string]*accountMirror // accounts of anneal that have had a reader, by account ID
	closed bool
}

// An accountMirror is the state of the NATS accounts and mirrors for one account's readers.
type accountMirror struct {
	mu       sync.Mutex // held while the mirrors are created
	accounts bool       // makeAccounts has created the NATS accounts
	failed   error      // error of creating the NATS accounts, which is not tried again
	conn     *nats.Conn // connection into MIRROR-…; nil until the mirrors exist
}

func newAccountReaders(s *Server,
	verify func(ctx context.Context, user, password string) (Reader, bool)) *accountReaders {
	return &accountReaders{server: s, verify: verify, secret: rand.Text(), open: map[string]*accountMirror{}}
}

const keeperUser = "keeper."

// authTime is the maximum time for authenticating a connection. Authenticating a reader can take
// long, because the projections have to catch up and the mirrors of its account may have to be
// created.
const authTime = 10 * time.Second

// isReader reports whether an authorization request is from a reader; otherwise it is from a node.
// It returns false when a is nil, because the server then has no readers.
func (a *accountReaders) isReader(question *jwt.AuthorizationRequestClaims) bool {
	return a != nil && strings.Contains(question.ConnectOptions.Username, ".")
}

// answer responds to a reader's authorization request, with user claims signed by keys or with an
// error.
func (a *accountReaders) answer(m *nats.Msg, question *jwt.AuthorizationRequestClaims, keys nkeys.KeyPair) {
	ctx, cancel := context.WithTimeout(context.Background(), authTime)
	defer cancel()
	response := jwt.NewAuthorizationResponseClaims(question.UserNkey)
	response.Audience = question.Server.ID
	claims, err := a.claims(ctx, question)
	if err == nil {
		response.Jwt, err = claims.Encode(keys)
	}
	if err != nil {
		response.Error = err.Error()
	}
	if !strings.HasPrefix(question.ConnectOptions.Username, keeperUser) || err != nil {
		loggedIn(a.logins, question, true, err)
	}
	if text, err := response.Encode(keys); err == nil {
		_ = m.Respond([]byte(text))
	}
}

// claims returns the user claims for a reader, after the mirrors of its account exist. Its error
// says why the reader is refused.
func (a *accountReaders) claims(ctx context.Context, question *jwt.AuthorizationRequestClaims) (*jwt.UserClaims,
	error) {
	user, password := question.ConnectOptions.Username, question.ConnectOptions.Password
	claims := jwt.NewUserClaims(question.UserNkey)
	claims.Name = user
	if account, ok := strings.CutPrefix(user, keeperUser); ok &&
		subtle.ConstantTimeCompare([]byte(password), []byte(a.secret)) == 1 {
		claims.Audience = mirrorAccount + account
		return claims, nil
	}
	reader, ok := a.verify(ctx, user, password)
	if !ok {
		return nil, errors.New("the API key of the reader is invalid, revoked or expired")
	}
	if err := a.ensureMirrors(ctx, reader.Account); err != nil {
		a.warn("cannot create the mirrors of an account: its readers are refused until they try "+
			"again", "account", reader.Account, "error", err)
		return nil, errors.New("the mirror of the account's events could not be created: try again later")
	}
	claims.Name, claims.Audience, claims.Permissions = reader.User(), readersAccount+reader.Account, readerPermissions()
	if reader.Expires != nil {
		claims.Expires = reader.Expires.Unix()
	}
	return claims, nil
}

func readerPermissions() jwt.Permissions {
	p := jwt.Permissions{Sub: jwt.Permission{Allow: jwt.StringList{"_INBOX.>"}}}
	for _, stream := range []string{eventlog.Stream, metering.Stream} {
		for subject := range readerAPI(stream) {
			p.Pub.Allow.Add(subject)
		}
		for _, request := range checkedRequests(stream) {
			p.Pub.Allow.Add("$JS.API." + request)
		}
	}
	return p
}

// ensureMirrors creates the NATS accounts and the mirrors for the readers of an account, unless
// they exist.
func (a *accountReaders) ensureMirrors(ctx context.Context, account string) error {
	a.mu.Lock()
	m := a.open[account]
	if a.closed {
		a.mu.Unlock()
		return errors.New("the server is shutting down: try again later")
	}
	if m == nil {
		m = &accountMirror{}
		a.open[account] = m
	}
	a.mu.Unlock()

	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil || m.failed != nil {
		return m.failed
	}
	if !m.accounts {
		if m.failed = a.makeAccounts(account); m.failed != nil {
			return m.failed
		}
		m.accounts = true
	}
	conn, err := nats.Connect("", nats.InProcessServer(a.server.nats), nats.UserInfo(keeperUser+account, a.secret),
		nats.Name("anneal mirror of account "+account), nats.MaxReconnects(-1), nats.Timeout(5*time.Second))
	if err != nil {
		return fmt.Errorf("connect to NATS account %s%s: %w", mirrorAccount, account, err)
	}
	if err := a.keepMirrors(ctx, conn, account); err != nil {
		conn.Close()
		return err
	}
	m.conn = conn
	return nil
}

func (a *accountReaders) warn(message string, args ...any) {
	if a.server.logger != nil {
		a.server.logger.Warn(message, args...)
	}
}

// makeAccounts adds the two NATS accounts for an account's readers to the running server. The
// server then recovers the streams that MIRROR-… had before a restart.
func (a *accountReaders) makeAccounts(account string) error {
	source, err := a.server.nats.LookupAccount("READERS")
	if err != nil {
		return fmt.Errorf("look up NATS account READERS: %w", err)
	}
	mirror, _ := a.server.nats.LookupOrRegisterAccount(mirrorAccount + account)
	users, _ := a.server.nats.LookupOrRegisterAccount(readersAccount + account)
	deliveries := feedPrefix + account + ".>"
	errs := []error{source.AddStreamExport(deliveries, []*server.Account{mirror}),
		mirror.AddStreamImport(source, deliveries, "")}
	lend := func(to, from *server.Account, here, there string, replies server.ServiceRespType) {
		errs = append(errs, from.AddServiceExportWithResponse(there, replies, []*server.Account{to}),
			to.AddServiceImport(from, here, there))
	}
	for stream, filter := range readerFilters(account) {
		create := ".CONSUMER.CREATE." + stream + ".*." + filter
		lend(mirror, source, feedAPI+create, "$JS.API"+create, server.Singleton)
		flow := "$JS.FC." + stream + ".>"
		lend(mirror, source, flow, flow, server.Singleton)
		for subject, replies := range readerAPI(stream) {
			lend(users, mirror, subject, subject, replies)
		}
		for _, request := range checkedRequests(stream) {
			lend(users, mirror, "$JS.API."+request, checkedAPI+"."+request, server.Singleton)
		}
	}
	limits := server.JetStreamAccountLimits{MaxMemory: -1, MaxStore: -1, MaxStreams: readerStreams,
		MaxConsumers: readerConsumers, MaxAckPending: -1,
		MemoryMaxStreamBytes: -1, StoreMaxStreamBytes: -1}
	errs = append(errs, mirror.EnableJetStream(map[string]server.JetStreamAccountLimits{"": limits}, nil))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("set up NATS for the clients that read the events of account %s: %w", account, err)
	}
	return nil
}

// keepMirrors creates the mirrors of an account unless they exist, and then checks and forwards the
// requests of readers. conn is a connection into MIRROR-….
func (a *accountReaders) keepMirrors(ctx context.Context, conn *nats.Conn, account string) error {
	js, err := jetstream.New(conn)
	if err != nil {
		return fmt.Errorf("eventlog: %w", err)
	}
	for stream, filter := range readerFilters(account) {
		if stream == eventlog.Stream {
			err = a.checkMirror(ctx, conn, js, account)
		} else {
			err = a.trimUsage(ctx, js)
		}
		if err != nil {
			return err
		}
		config := eventlog.MirrorConfig(stream, 1)
		if stream == metering.Stream {
			config = metering.MirrorConfig(1)
		}
		config.Description = "Mirror for readers of account " + account + ", at the positions of the log"
		config.Mirror.FilterSubject = filter
		config.Mirror.External = &jetstream.ExternalStream{APIPrefix: feedAPI, DeliverPrefix: feedPrefix + account}
		if _, err := js.CreateOrUpdateStream(ctx, config); err != nil {
			return fmt.Errorf("create mirror %s of account %s: %w", stream, account, err)
		}
		for _, request := range checkedRequests(stream) {
			if _, err := conn.Subscribe(checkedAPI+"."+request, func(m *nats.Msg) { go checkConsumer(conn, m) }); err != nil {
				return fmt.Errorf("eventlog: %w", err)
			}
		}
	}
	return conn.Flush()
}

// checkMirror deletes the mirror of an account's events, so that it is created again, if its newest
// event is not in the log. The log can lack such an event when it lost events after its high-water
// mark.
func (a *accountReaders) checkMirror(ctx context.Context, conn *nats.Conn, js jetstream.JetStream,
	account string) error {
	log := a.server.log
	if _, err := js.Stream(ctx, eventlog.Stream); errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	mirror, err := eventlog.NewJetStream(conn)
	if err != nil {
		return err
	}
	last, err := mirror.Last(ctx)
	if err != nil {
		return fmt.Errorf("look up the mirror's last event: %w", err)
	}
	if last.Position == 0 {
		return nil
	}
	e, err := log.At(ctx, last.Position)
	if err != nil && domain.CodeOf(err) != domain.NotFound {
		return err
	}
	if e.ID == last.EventID {
		return nil
	}
	a.warn("the mirror of an account has an event that the log does not have: deleted the mirror, which is created "+
		"again", "account", account,
		"position", last.Position, "event", last.EventID)
	if err := js.DeleteStream(ctx, eventlog.Stream); err != nil {
		return fmt.Errorf("delete mirror %s of account %s: %w", eventlog.Stream, account, err)
	}
	return nil
}

// trimUsage deletes the mirror of the usage records, so that it is created again, if it has records
// that the stream lost in a power failure.
func (a *accountReaders) trimUsage(ctx context.Context, js jetstream.JetStream) error {
	there, err := js.Stream(ctx, metering.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up mirror %s: %w", metering.Stream, err)
	}
	kept, err := a.server.js.Stream(ctx, metering.Stream)
	if err != nil {
		return fmt.Errorf("look up stream %s: %w", metering.Stream, err)
	}
	if there.CachedInfo().State.LastSeq <= kept.CachedInfo().State.LastSeq {
		return nil
	}
	return js.DeleteStream(ctx, metering.Stream)
}

// checkConsumer handles a reader's request to create a consumer: it forwards the request to the
// JetStream API, or responds with an error when the request has a field that readers may not set.
func checkConsumer(conn *nats.Conn, m *nats.Msg) {
	reply, err := checkedConsumer(conn, m)
	if err != nil {
		reply, _ = json.Marshal(map[string]any{
			"type":  "io.nats.jetstream.api.v1.consumer_create_response",
			"error": server.ApiError{Code: 400, ErrCode: uint16(server.JSBadRequestErr), Description: err.Error()},
		})
	}
	_ = m.Respond(reply)
}

func checkedConsumer(conn *nats.Conn, m *nats.Msg) ([]byte, error) {
	var request server.CreateConsumerRequest
	if len(m.Data) > readerBody {
		return nil, fmt.Errorf("the request to create a consumer has %d bytes: at most %d are "+
			"allowed", len(m.Data), readerBody)
	}
	if err := json.Unmarshal(m.Data, &request); err != nil {
		return nil, fmt.Errorf("the request to create a consumer is not valid JSON: %w", err)
	}
	switch c := request.Config; {
	case c.DeliverSubject != "" || c.DeliverGroup != "":
		return nil, errors.New("a reader that is limited to one account cannot create push consumers: " +
			"use a pull or an ordered consumer")
	case c.Direct || c.Sourcing:
		return nil, errors.New("a reader that is limited to one account cannot set the fields direct and sourcing of a " +
			"consumer")
	}
	// The request is encoded again, so that only the fields that were checked are forwarded.
	data, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode the request to create a consumer: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), createTime)
	defer cancel()
	reply, err := conn.RequestWithContext(ctx, "$JS.API"+strings.TrimPrefix(m.Subject, checkedAPI), data)
	if err != nil {
		return nil, fmt.Errorf("the consumer was not created within %v: try again (%w)", createTime, err)
	}
	return reply.Data, nil
}

// sweep closes the connections of those readers for which valid returns false. valid gets the
// reader's NATS user name and the time at which it connected.
func (a *accountReaders) sweep(valid func(user string, since time.Time) bool) error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	var accounts []string
	for account := range a.open {
		accounts = append(accounts, account)
	}
	a.mu.Unlock()
	for _, account := range accounts {
		for offset := 0; ; {
			page, err := a.server.nats.Connz(&server.ConnzOptions{Username: true, Account: readersAccount + account,
				Offset: offset, Limit: 1024})
			if err != nil {
				return fmt.Errorf("list the connections of the readers of account %s: %w", account, err)
			}
			for _, c := range page.Conns {
				if !valid(c.AuthorizedUser, c.Start) {
					_ = a.server.nats.DisconnectClientByID(c.Cid) // fails only when the client has already disconnected
				}
			}
			if offset += len(page.Conns); len(page.Conns) == 0 || offset >= page.Total {
				break
			}
		}
	}
	return nil
}

// close closes this process's own connections into the NATS accounts MIRROR-….
func (a *accountReaders) close() {
	if a == nil {
		return
	}
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	for _, m := range a.open { // after closed is set, ensureMirrors adds no mirror
		m.mu.Lock()
		if m.conn != nil {
			m.conn.Close()
		}
		m.mu.Unlock()
	}
}
