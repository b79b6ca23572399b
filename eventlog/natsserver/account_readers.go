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

// A Reader is a NATS client that is allowed to read the events of one account.
type Reader struct {
	Account string
	ID      string     // ID of the API key with which the reader authenticates
	Expires *time.Time // when the reader's connections are closed; nil is never
}

// User returns the NATS user name of the reader: account, dot, ID. IDs of nodes, the other user
// names, have no dot.
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
	feedPrefix     = "feed."       // prefix of the subjects of deliveries from READERS to the mirrors
	feedAPI        = "feed.api"    // prefix of the subjects of the mirrors' requests to READERS
	checkedAPI     = "checked.api" // prefix of requests that are checked, then forwarded to the JetStream API
)

// Limits of the mirrors of one account.
const (
	readerStreams   = 2
	readerConsumers = 100
	readerBody      = 64 << 10 // bytes of a request to create a consumer
)

// readerAPI returns the subjects of the JetStream API for a stream to which a reader may publish
// requests, and whether a request has one reply or several.
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

// checkedRequests returns the subjects, without the prefix $JS.API., of requests that create a
// consumer on a stream.
func checkedRequests(stream string) []string {
	return []string{"CONSUMER.CREATE." + stream, "CONSUMER.CREATE." + stream + ".>", "CONSUMER.DURABLE.CREATE." + stream +
		".*"}
}

// readerFilters returns the subject filter of each stream that an account's
// readers may read.
func readerFilters(account string) map[string]string {
	return map[string]string{eventlog.Stream: "events." + account + ".>", metering.Stream: "usage." + account + ".>"}
}

// accountReaders manages the NATS accounts of event readers in the embedded
// server, one for each account of the platform.
type accountReaders struct {
	server *Server
	verify func(ctx context.Context, user, password string) (Reader, bool)
	logins func(Login)
	secret string // password of this server's own connections into the accounts MIRROR-…

	mu     sync.Mutex
	open   map[string]*accountMirror // by account of the platform
	closed bool
}

// An accountMirror is the state of one account's mirrors.
type accountMirror struct {
	mu       sync.Mutex // held while the mirrors are being opened
	accounts bool       // the NATS accounts exist
	failed   error      // why the NATS accounts could not be created; they are not created again
	conn     *nats.Conn // nil until the mirrors exist
}

func newAccountReaders(s *Server,
	verify func(ctx context.Context, user, password string) (Reader, bool)) *accountReaders {
	return &accountReaders{server: s, verify: verify, secret: rand.Text(), open: map[string]*accountMirror{}}
}

const keeperUser = "keeper."

// authTime limits how long authenticating a connection may take. The authentication of a reader may
// wait for the projections and for its account's mirrors.
const authTime = 10 * time.Second

// isReader reports whether an authorization request is from a reader rather than a node. It returns
// false when a is nil, which accepts no readers.
func (a *accountReaders) isReader(question *jwt.AuthorizationRequestClaims) bool {
	return a != nil && strings.Contains(question.ConnectOptions.Username, ".")
}

// answer responds to an authorization request for a reader. keys signs the response.
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

// claims returns the user claims of a reader, or an error with the reason when the reader is
// refused. It waits until the mirrors of the reader's account exist.
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
		return nil, errors.New("the reader's credentials are invalid, revoked or expired")
	}
	if err := a.opened(ctx, reader.Account); err != nil {
		a.warn("cannot open the mirrors of an account: refusing its readers", "account", reader.Account, "error", err)
		return nil, errors.New("the account's events are unavailable: try again later")
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

// opened creates the NATS accounts and the mirrors of an account unless they exist.
func (a *accountReaders) opened(ctx context.Context, account string) error {
	a.mu.Lock()
	m := a.open[account]
	if a.closed {
		a.mu.Unlock()
		return errors.New("eventlog: the server is closed")
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
		nats.Name("anneal mirror of "+account), nats.MaxReconnects(-1), nats.Timeout(5*time.Second))
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

// makeAccounts adds the NATS accounts for the readers of an account to the running server. The
// server then recovers from disk the streams that MIRROR-… had before a restart.
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
		return fmt.Errorf("add the NATS accounts of the readers of account %s: %w", account, err)
	}
	return nil
}

// keepMirrors creates the account's mirrors unless they exist, and begins to check and forward the
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

// checkMirror deletes the mirror of an account's events if the mirror has an event that the log
// lacks, so that the mirror is created again. The log lacks such an event after it lost events that
// its mark does not require.
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
	a.warn("the mirror of an account has an event that the log does not have: recreating the mirror", "account", account,
		"position", last.Position, "event", last.EventID)
	if err := js.DeleteStream(ctx, eventlog.Stream); err != nil {
		return fmt.Errorf("delete mirror %s of account %s: %w", eventlog.Stream, account, err)
	}
	return nil
}

// trimUsage deletes the mirror of usage records if the mirror has records that the stream lost in a
// power failure, so that the mirror is created again.
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

// checkConsumer forwards a request to create a consumer to the JetStream API, or responds with an
// error when the request has fields that readers may not set.
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
		return nil, fmt.Errorf("the request has %d bytes: at most %d are allowed", len(m.Data), readerBody)
	}
	if err := json.Unmarshal(m.Data, &request); err != nil {
		return nil, errors.New("the request is not a valid JSON configuration of a consumer")
	}
	switch c := request.Config; {
	case c.DeliverSubject != "" || c.DeliverGroup != "":
		return nil, errors.New("a reader that is limited to one account cannot create push consumers: " +
			"use a pull or an ordered consumer")
	case c.Direct || c.Sourcing:
		return nil, errors.New("a reader that is limited to one account cannot source another stream")
	}
	// The request is encoded again, so that it has only the fields that were checked.
	data, err := json.Marshal(request)
	if err != nil {
		return nil, errors.New("the request cannot be encoded")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	reply, err := conn.RequestWithContext(ctx, "$JS.API"+strings.TrimPrefix(m.Subject, checkedAPI), data)
	if err != nil {
		return nil, errors.New("the consumer was not created in time: try again")
	}
	return reply.Data, nil
}

// sweep closes the connections of the readers of accounts for which valid returns false. The
// arguments of valid are the NATS user of the reader and the time since which it is connected.
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
					_ = a.server.nats.DisconnectClientByID(c.Cid) // fails only if the client has disconnected
				}
			}
			if offset += len(page.Conns); len(page.Conns) == 0 || offset >= page.Total {
				break
			}
		}
	}
	return nil
}

// close closes this server's own connections into the accounts MIRROR-….
func (a *accountReaders) close() {
	if a == nil {
		return
	}
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	for _, m := range a.open { // opened adds no mirror after closed is set
		m.mu.Lock()
		if m.conn != nil {
			m.conn.Close()
		}
		m.mu.Unlock()
	}
}
