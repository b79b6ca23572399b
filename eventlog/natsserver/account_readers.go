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

// A Reader is who connects with the credentials of one account's events.
type Reader struct {
	Account string
	ID      string     // of its API key
	Expires *time.Time // when its connections are closed; nil is never
}

// User is the name with which a reader connects. Its dot keeps it apart from
// the IDs of nodes.
func (r Reader) User() string { return r.Account + "." + r.ID }

// An account's readers live in two NATS accounts, made when the first of them
// connects:
//
//	MIRROR-acme   the streams EVENTS and USAGE, mirrors of those of READERS that
//	              are filtered to acme, with the positions of the log
//	READERS-acme  the users: no streams, only the subjects of the JetStream API
//	              that read the mirrors, imported one by one
//
// A reader can direct any answer of the JetStream API into any subject of its
// own NATS account: a message with the body {} into $JS.API.STREAM.DELETE.EVENTS
// deletes that stream. So its account has no such subject, and it cannot make
// push consumers, whose messages would go into subjects of MIRROR-acme.
const (
	mirrorAccount  = "MIRROR-"
	readersAccount = "READERS-"
	feedPrefix     = "feed."       // of deliveries from READERS to the mirrors
	feedAPI        = "feed.api"    // of the mirrors' requests to READERS
	checkedAPI     = "checked.api" // of requests that are checked before the JetStream API gets them
)

// Limits of one account's mirrors.
const (
	readerStreams   = 2
	readerConsumers = 100
	readerBody      = 64 << 10 // bytes of a request for a consumer
)

// readerAPI lists the subjects that a reader may publish to, for each stream,
// and how many replies a request has.
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

// checkedRequests lists the subjects that make a consumer.
func checkedRequests(stream string) []string {
	return []string{"CONSUMER.CREATE." + stream, "CONSUMER.CREATE." + stream + ".>", "CONSUMER.DURABLE.CREATE." + stream + ".*"}
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
	secret string // of our own connections into the accounts MIRROR-…

	mu     sync.Mutex
	open   map[string]*accountMirror // by account
	closed bool
}

// An accountMirror is one account's place, once it is open.
type accountMirror struct {
	mu       sync.Mutex // held while it is being opened
	accounts bool       // the NATS accounts exist
	failed   error      // why they never will
	conn     *nats.Conn // nil until the mirrors are there
}

func newAccountReaders(s *Server, verify func(ctx context.Context, user, password string) (Reader, bool)) *accountReaders {
	return &accountReaders{server: s, verify: verify, secret: rand.Text(), open: map[string]*accountMirror{}}
}

const keeperUser = "keeper."

// authTime is how long a connection may take to be let in: a reader's may have to
// wait for the world and for its account's mirrors.
const authTime = 10 * time.Second

// concerns tells whether a question is about a reader rather than a node. A nil
// a has no readers.
func (a *accountReaders) concerns(question *jwt.AuthorizationRequestClaims) bool {
	return a != nil && strings.Contains(question.ConnectOptions.Username, ".")
}

// answer responds to the server's question.
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
	if text, err := response.Encode(keys); err == nil {
		_ = m.Respond([]byte(text))
	}
}

// claims answers who connects as a reader, or why nobody does. It may take as
// long as opening an account's mirrors.
func (a *accountReaders) claims(ctx context.Context, question *jwt.AuthorizationRequestClaims) (*jwt.UserClaims, error) {
	user, password := question.ConnectOptions.Username, question.ConnectOptions.Password
	claims := jwt.NewUserClaims(question.UserNkey)
	claims.Name = user
	if account, ok := strings.CutPrefix(user, keeperUser); ok && subtle.ConstantTimeCompare([]byte(password), []byte(a.secret)) == 1 {
		claims.Audience = mirrorAccount + account
		return claims, nil
	}
	reader, ok := a.verify(ctx, user, password)
	if !ok {
		return nil, errors.New("the reader's credentials are wrong, revoked or expired")
	}
	if err := a.opened(ctx, reader.Account); err != nil {
		a.warn("the readers of an account are refused", "account", reader.Account, "error", err)
		return nil, errors.New("the account's events cannot be read now: try again later")
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

// opened returns once the mirrors of an account are there.
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

// makeAccounts adds the NATS accounts of an account's readers to the running
// server. What streams MIRROR-… had before a restart are recovered from disk.
func (a *accountReaders) makeAccounts(account string) error {
	source, err := a.server.nats.LookupAccount("READERS")
	if err != nil {
		return fmt.Errorf("look up NATS account READERS: %w", err)
	}
	mirror, _ := a.server.nats.LookupOrRegisterAccount(mirrorAccount + account)
	users, _ := a.server.nats.LookupOrRegisterAccount(readersAccount + account)
	deliveries := feedPrefix + account + ".>"
	errs := []error{source.AddStreamExport(deliveries, []*server.Account{mirror}), mirror.AddStreamImport(source, deliveries, "")}
	lend := func(to, from *server.Account, here, there string, replies server.ServiceRespType) {
		errs = append(errs, from.AddServiceExportWithResponse(there, replies, []*server.Account{to}), to.AddServiceImport(from, here, there))
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
	limits := server.JetStreamAccountLimits{MaxMemory: -1, MaxStore: -1, MaxStreams: readerStreams, MaxConsumers: readerConsumers, MaxAckPending: -1,
		MemoryMaxStreamBytes: -1, StoreMaxStreamBytes: -1}
	errs = append(errs, mirror.EnableJetStream(map[string]server.JetStreamAccountLimits{"": limits}, nil))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("add the NATS accounts of the readers of account %s: %w", account, err)
	}
	return nil
}

// keepMirrors makes the mirrors that are missing and begins to check requests.
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
		config.Description = "What concerns account " + account + ", at the positions of the log"
		config.Mirror.FilterSubject = filter
		config.Mirror.External = &jetstream.ExternalStream{APIPrefix: feedAPI, DeliverPrefix: feedPrefix + account}
		if _, err := js.CreateOrUpdateStream(ctx, config); err != nil {
			return fmt.Errorf("make mirror %s of account %s: %w", stream, account, err)
		}
		for _, request := range checkedRequests(stream) {
			if _, err := conn.Subscribe(checkedAPI+"."+request, func(m *nats.Msg) { go checkConsumer(conn, m) }); err != nil {
				return fmt.Errorf("eventlog: %w", err)
			}
		}
	}
	return conn.Flush()
}

// checkMirror deletes a mirror that holds what the log does not, so that it is
// made anew: the log was set back, and the positions of the mirror would lie.
// The start has held the log against its mark by now.
func (a *accountReaders) checkMirror(ctx context.Context, conn *nats.Conn, js jetstream.JetStream, account string) error {
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
	a.warn("the mirror of an account holds an event that the log does not: the mirror is made anew", "account", account, "position", last.Position, "event", last.EventID)
	if err := js.DeleteStream(ctx, eventlog.Stream); err != nil {
		return fmt.Errorf("delete mirror %s of account %s: %w", eventlog.Stream, account, err)
	}
	return nil
}

// trimUsage deletes a mirror of usage that is ahead of its stream, which a power
// failure has set back.
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

// checkConsumer passes a request for a consumer on to the JetStream API, unless
// it asks for what a reader may not have.
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
		return nil, fmt.Errorf("the request has %d bytes: at most %d are taken", len(m.Data), readerBody)
	}
	if err := json.Unmarshal(m.Data, &request); err != nil {
		return nil, errors.New("the request is no JSON of a consumer")
	}
	switch c := request.Config; {
	case c.DeliverSubject != "" || c.DeliverGroup != "":
		return nil, errors.New("readers of one account have no push consumers: use a pull or an ordered consumer, which pulls")
	case c.Direct || c.Sourcing:
		return nil, errors.New("readers of one account feed no other stream")
	}
	// What is sent on is what was checked, whatever else the body said.
	data, err := json.Marshal(request)
	if err != nil {
		return nil, errors.New("the request cannot be read")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	reply, err := conn.RequestWithContext(ctx, "$JS.API"+strings.TrimPrefix(m.Subject, checkedAPI), data)
	if err != nil {
		return nil, errors.New("the consumer was not made in time: try again")
	}
	return reply.Data, nil
}

// sweep closes the connections of readers that are not valid any more.
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
			page, err := a.server.nats.Connz(&server.ConnzOptions{Username: true, Account: readersAccount + account, Offset: offset, Limit: 1024})
			if err != nil {
				return fmt.Errorf("list the connections of the readers of account %s: %w", account, err)
			}
			for _, c := range page.Conns {
				if !valid(c.AuthorizedUser, c.Start) {
					_ = a.server.nats.DisconnectClientByID(c.Cid) // or it has left
				}
			}
			if offset += len(page.Conns); len(page.Conns) == 0 || offset >= page.Total {
				break
			}
		}
	}
	return nil
}

// close ends our own connections.
func (a *accountReaders) close() {
	if a == nil {
		return
	}
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	for _, m := range a.open { // grows no more
		m.mu.Lock()
		if m.conn != nil {
			m.conn.Close()
		}
		m.mu.Unlock()
	}
}
