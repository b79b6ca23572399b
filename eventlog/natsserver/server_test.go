package natsserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/internal/testutil"
)

func TestServerRestart(t *testing.T) {
	dir := t.TempDir()
	reopen := func() *Server {
		return start(t, func(o *Options) { o.Dir, o.NoSync = dir, false })
	}
	first := reopen()
	position := logtest.Append(t, first.Log(), logtest.Write("a", 0))
	_, password := first.ReaderCredentials()
	first.Close()

	second := reopen()
	_, same := second.ReaderCredentials()
	assert.Equal(t, password, same)
	e, err := second.Log().At(t.Context(), position)
	require.NoError(t, err)
	assert.Equal(t, logtest.Name("a"), e.Name)
	logtest.Append(t, second.Log(), logtest.Write("a", position))
	info := testutil.Stat(t, filepath.Join(dir, readerPasswordFile))
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestServerReportsWhyItCannotStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	tests := map[string]struct {
		opts Options
		want string
	}{
		"no port":              {Options{Dir: t.TempDir(), Listen: "localhost"}, "host:port"},
		"an invalid port":      {Options{Dir: t.TempDir(), Listen: "localhost:70000"}, "0 to 65535"},
		"a port in use":        {Options{Dir: t.TempDir(), Listen: taken.Addr().String()}, "in use"},
		"not a directory":      {Options{Dir: file}, "not a directory"},
		"a file as its parent": {Options{Dir: filepath.Join(file, "x")}, "not a directory"},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			_, err := Start(test.opts)
			require.ErrorContains(t, err, test.want)
			assert.NotEqual(t, domain.Unknown, domain.CodeOf(err))
		})
	}
}

func TestServerWithoutNetwork(t *testing.T) {
	s := start(t, func(o *Options) { o.Listen = "" })
	assert.Empty(t, s.URL())
	_, err := s.Log().Last(t.Context())
	require.NoError(t, err)
	agent := connect(t, "", append(agentOptions(t, "n1"), s.InProcess())...)
	require.NoError(t, agent.Flush())
}

func TestUnknownUsersAreRefused(t *testing.T) {
	s := start(t)
	_, password := s.ReaderCredentials()
	tests := map[string][]nats.Option{
		"nobody":                     nil,
		"an invalid token":           {nats.UserInfo("n1", tokenOf("n2"))},
		"an empty token":             {nats.UserInfo("n1", "")},
		"a node with a wildcard":     {nats.UserInfo("*", tokenOf("*"))},
		"a node with a dot":          {nats.UserInfo("n1.x", tokenOf("n1.x"))},
		"control, guessed":           {nats.UserInfo("control", "control")},
		"control, with the readers'": {nats.UserInfo("control", password)},
		"the reader, guessed":        {nats.UserInfo("reader", "")},
	}
	for what, opts := range tests {
		nc, err := nats.Connect(s.URL(), opts...)
		if err == nil {
			nc.Close()
		}
		assert.ErrorIs(t, err, nats.ErrAuthorization, what)
	}
}

// denied returns an option that sends the errors of a connection, such as permission violations, to
// errs.
func denied(errs chan error) nats.Option {
	return nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { errs <- err })
}

func TestNodesAreIsolated(t *testing.T) {
	s := start(t)
	errs := make(chan error, 16)
	n1 := connect(t, s.URL(), append(agentOptions(t, "n1"), denied(errs))...)
	n2 := connect(t, s.URL(), agentOptions(t, "n2")...)

	for _, subject := range []string{"work.n2.orders", "work.>", ">", "_INBOX.>", "_INBOX.n2.>", "events.>",
		"agents.n1.beat", "agents.>", "$JS.>", calloutSubject} {
		sub, err := n1.SubscribeSync(subject)
		require.NoError(t, err)
		require.NoError(t, n1.Flush())
		assert.ErrorContains(t, <-errs, "Permissions Violation for Subscription", subject)
		_ = sub.Unsubscribe()
	}
	everything, err := s.Coordinator().SubscribeSync(">")
	require.NoError(t, err)
	require.NoError(t, s.Coordinator().Flush())
	for _, subject := range []string{"agents.n2.beat", "work.n1.orders", "events.acme.counters.a", "$JS.API.INFO",
		calloutSubject, "_INBOX.n2.x"} {
		require.NoError(t, n1.Publish(subject, []byte("forged")))
		require.NoError(t, n1.Flush())
		assert.ErrorContains(t, <-errs, "Permissions Violation for Publish", subject)
	}

	orders, err := n1.SubscribeSync("work.n1.>")
	require.NoError(t, err)
	require.NoError(t, n1.Flush())
	_, err = s.Coordinator().Subscribe("agents.*.ask",
		func(m *nats.Msg) { _ = m.Respond([]byte("received " + m.Subject)) })
	require.NoError(t, err)
	require.NoError(t, s.Coordinator().Flush())
	for node, nc := range map[string]*nats.Conn{"n1": n1, "n2": n2} {
		reply, err := nc.RequestWithContext(t.Context(), "agents."+node+".ask", nil)
		require.NoError(t, err)
		assert.Equal(t, "received agents."+node+".ask", string(reply.Data))
	}
	answers, err := s.Coordinator().SubscribeSync("stream.of.answers")
	require.NoError(t, err)
	require.NoError(t, s.Coordinator().PublishRequest("work.n1.generate", "stream.of.answers", []byte("go")))
	order, err := orders.NextMsgWithContext(t.Context())
	require.NoError(t, err)
	for range 100 {
		require.NoError(t, order.Respond([]byte("token")))
	}
	for range 100 {
		_, err := answers.NextMsgWithContext(t.Context())
		require.NoError(t, err, "a node responds to a request with many messages")
	}
	for {
		m, err := everything.NextMsgWithContext(t.Context())
		require.NoError(t, err)
		require.NotEqual(t, "forged", string(m.Data), m.Subject)
		if m.Subject == "stream.of.answers" {
			break
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = jetstreamOf(t, n2).AccountInfo(ctx)
	assert.Error(t, err, "a node has no streams")
}

func jetstreamOf(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(startTimeout))
	require.NoError(t, err)
	return js
}

func readerOf(t testing.TB, s *Server, errs chan error) *nats.Conn {
	user, password := s.ReaderCredentials()
	return connect(t, s.URL(), nats.UserInfo(user, password), denied(errs))
}

func TestReadersReadAllEvents(t *testing.T) {
	s := start(t)
	for i := range 40 {
		logtest.Append(t, s.Log(), logtest.Write(string(rune('a'+i%26))+strings.Repeat("x", i/26), 0))
	}
	reader := readerOf(t, s, make(chan error, 16))
	js := jetstreamOf(t, reader)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	pull := func(c jetstream.Consumer, err error) func(*testing.T) {
		return func(t *testing.T) {
			require.NoError(t, err)
			messages, err := c.Messages(jetstream.PullMaxMessages(10))
			require.NoError(t, err)
			defer messages.Stop()
			for want := uint64(1); want <= 40; want++ {
				m, err := messages.Next(jetstream.NextContext(ctx))
				require.NoError(t, err)
				e, err := eventIn(m)
				require.NoError(t, err)
				require.Equal(t, want, e.Position, "the mirror has the log's positions")
				_ = m.Ack()
			}
		}
	}
	t.Run("durable", pull(js.CreateConsumer(ctx, eventlog.Stream,
		jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy})))
	t.Run("ephemeral", pull(js.CreateConsumer(ctx, eventlog.Stream,
		jetstream.ConsumerConfig{FilterSubject: "events.acme.>"})))
	t.Run("ordered", func(t *testing.T) {
		pull(js.OrderedConsumer(ctx, eventlog.Stream, jetstream.OrderedConsumerConfig{}))(t)
	})

	old, err := reader.JetStream()
	require.NoError(t, err)
	for what, opts := range map[string][]nats.SubOpt{
		"push":         {nats.BindStream(eventlog.Stream), nats.DeliverAll()},
		"push durable": {nats.BindStream(eventlog.Stream), nats.DeliverAll(), nats.Durable("p")},
		"push ordered": {nats.BindStream(eventlog.Stream), nats.OrderedConsumer()},
		"flow control": {nats.BindStream(eventlog.Stream), nats.DeliverAll(), nats.EnableFlowControl(),
			nats.IdleHeartbeat(time.Second)},
	} {
		t.Run(what, func(t *testing.T) {
			sub, err := old.SubscribeSync("events.>", opts...)
			require.NoError(t, err)
			for range 40 {
				_, err := sub.NextMsgWithContext(ctx)
				require.NoError(t, err)
			}
		})
	}
	t.Run("direct", func(t *testing.T) {
		stream, err := js.Stream(ctx, eventlog.Stream)
		require.NoError(t, err)
		m, err := stream.GetMsg(ctx, 7)
		require.NoError(t, err)
		assert.Equal(t, uint64(7), m.Sequence)
	})
}

func TestReadersCanDoNothingElse(t *testing.T) {
	s := start(t)
	position := logtest.Append(t, s.Log(), logtest.Write("a", 0))
	errs := make(chan error, 64)
	reader := readerOf(t, s, errs)
	for _, subject := range []string{
		"events.acme.counters.a", "tasks.x", "work.n1.x", "agents.n1.x", "anything",
		"$JS.API.STREAM.DELETE.EVENTS", "$JS.API.STREAM.PURGE.EVENTS", "$JS.API.STREAM.UPDATE.EVENTS",
		"$JS.API.STREAM.CREATE.MINE", "$JS.API.STREAM.MSG.DELETE.EVENTS", "$JS.API.STREAM.SNAPSHOT.EVENTS",
		"$JS.API.CONSUMER.CREATE.OTHER", "control.api.CONSUMER.CREATE.EVENTS", "control.api.CONSUMER.CREATE.EVENTS.x",
		"control.api.STREAM.INFO.EVENTS", "mirror.readers.x", calloutSubject,
	} {
		require.NoError(t, reader.Publish(subject, []byte("{}")))
		require.NoError(t, reader.Flush())
		assert.ErrorContains(t, <-errs, "Permissions Violation for Publish", subject)
	}
	for _, subject := range []string{"$JS.API.>", "control.api.>", "mirror.readers.>", calloutSubject} {
		_, err := reader.SubscribeSync(subject)
		require.NoError(t, err)
		require.NoError(t, reader.Flush())
		assert.ErrorContains(t, <-errs, "Permissions Violation for Subscription", subject)
	}

	t.Run("messages of others are not received", func(t *testing.T) {
		all, err := reader.SubscribeSync(">")
		require.NoError(t, err)
		require.NoError(t, reader.Flush())
		require.NoError(t, s.Coordinator().Publish("agents.n1.beat", []byte("secret")))
		require.NoError(t, s.Control().Publish("tasks.x", []byte("secret")))
		require.NoError(t, s.Coordinator().Flush())
		require.NoError(t, s.Control().Flush())
		_, err = reader.JetStream()
		require.NoError(t, err)
		inbox := reader.NewInbox()
		// the reply to this request shows that no further reply will follow
		require.NoError(t, reader.PublishRequest("$JS.API.INFO", inbox, nil))
		for {
			m, err := all.NextMsgWithContext(t.Context())
			require.NoError(t, err)
			require.NotEqual(t, "secret", string(m.Data), m.Subject)
			if m.Subject == inbox {
				break
			}
		}
	})
	t.Run("a push consumer reaches no other client", func(t *testing.T) { testPushIsContained(t, s, reader) })
	mirror, err := eventlog.NewJetStream(reader)
	require.NoError(t, err)
	last, err := mirror.Last(t.Context())
	require.NoError(t, err)
	assert.GreaterOrEqual(t, last.Position, position, "the mirror is complete")
}

func testPushIsContained(t *testing.T, s *Server, reader *nats.Conn) {
	got := make(chan *nats.Msg, 64)
	targets := []string{"work.n1.orders", "agents.n1.beat", "tasks.run", "commands.x", "$JS.API.STREAM.DELETE.EVENTS",
		"$JS.API.STREAM.PURGE.EVENTS", "$JS.API.STREAM.DELETE.KV_KEYS", "control.api.CONSUMER.CREATE.EVENTS",
		"control.api.STREAM.INFO.EVENTS", calloutSubject}
	for _, nc := range []*nats.Conn{s.Control(), s.Coordinator()} {
		for _, target := range targets {
			if target == calloutSubject || strings.HasPrefix(target, "$JS") {
				continue
			}
			sub, err := nc.ChanSubscribe(target, got)
			require.NoError(t, err)
			defer func() { _ = sub.Unsubscribe() }()
		}
		require.NoError(t, nc.Flush())
	}
	js := jetstreamOf(t, reader)
	for i, target := range targets {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the server does not reply to a request that it refuses
		_, err := js.CreatePushConsumer(ctx, eventlog.Stream, jetstream.ConsumerConfig{
			Name: "evil" + string(rune('a'+i)), DeliverSubject: target, DeliverPolicy: jetstream.DeliverAllPolicy,
		})
		cancel()
		t.Logf("push consumer into %s: %v", target, err)
	}
	w := logtest.Write("after", 0)
	position := logtest.Append(t, s.Log(), w)
	log, err := eventlog.NewJetStream(reader)
	require.NoError(t, err)
	for e, err := range log.Follow(t.Context(), "", position-1) {
		require.NoError(t, err, "the mirror still follows the log")
		assert.Equal(t, w.ID, e.ID)
		break
	}
	require.NoError(t, s.Control().Flush())
	require.NoError(t, s.Coordinator().Flush())
	assert.Empty(t, got)
	e, err := s.Log().At(t.Context(), position)
	require.NoError(t, err)
	assert.Equal(t, w.ID, e.ID, "the log still accepts events")
}

func TestServerWithTLS(t *testing.T) {
	certificate, roots := selfSigned(t)
	s := start(t, func(o *Options) { o.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}} })
	logtest.Append(t, s.Log(), logtest.Write("a", 0)) // the test's own connection is in this process and needs no TLS
	agent := connect(t, s.URL(), append(agentOptions(t, "n1"), nats.Secure(&tls.Config{RootCAs: roots}))...)
	require.NoError(t, agent.Flush())
	state, err := agent.TLSConnectionState()
	require.NoError(t, err)
	assert.True(t, state.HandshakeComplete)
	stranger, err := nats.Connect(s.URL(), nats.UserInfo("n1", tokenOf("n1")))
	if err == nil {
		stranger.Close()
	}
	assert.Error(t, err, "whose certificate authority is unknown")
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}
