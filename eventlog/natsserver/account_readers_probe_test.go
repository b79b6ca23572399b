package natsserver

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/eventlog/metering"
)

// forbidden lists subjects of the control plane, nodes, other readers, the JetStream API and the
// server that a reader of account acme must not reach.
var forbidden = []string{
	"events.acme.counters.a", "events.other.counters.a", "usage.acme.chat", "tasks.x", "work.n1.orders", "agents.n1.beat",
	"commands.x", "anything", "_INBOX.other.x",
	"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.STREAM.CREATE.MINE",
	"$JS.API.STREAM.CREATE.EVENTS", "$JS.API.STREAM.UPDATE.EVENTS",
	"$JS.API.STREAM.DELETE.EVENTS", "$JS.API.STREAM.DELETE.USAGE", "$JS.API.STREAM.PURGE.EVENTS",
	"$JS.API.STREAM.PURGE.USAGE", "$JS.API.STREAM.MSG.DELETE.EVENTS",
	"$JS.API.STREAM.SNAPSHOT.EVENTS", "$JS.API.STREAM.RESTORE.EVENTS", "$JS.API.STREAM.LEADER.STEPDOWN.EVENTS",
	"$JS.API.STREAM.INFO.KV_KEYS", "$JS.API.STREAM.MSG.GET.KV_KEYS",
	"$JS.API.DIRECT.GET.KV_KEYS", "$JS.API.STREAM.DELETE.KV_KEYS", "$JS.API.CONSUMER.CREATE.KV_KEYS",
	"$JS.API.CONSUMER.CREATE.KV_KEYS.c.>", "$JS.API.CONSUMER.DURABLE.CREATE.TASKS.c",
	"$JS.API.CONSUMER.MSG.NEXT.TASKS.c", "$JS.API.CONSUMER.PAUSE.EVENTS.c", "$JS.API.CONSUMER.RESET.EVENTS.c",
	"$JS.API.CONSUMER.UNPIN.EVENTS.c", "$JS.API.CONSUMER.LEADER.STEPDOWN.EVENTS.c",
	"$JS.API.META.LEADER.STEPDOWN", "$JS.API.SERVER.REMOVE", "$JS.API.ACCOUNT.PURGE.CONTROL", "$JS.FC.EVENTS.c.x",
	"$JS.FC._.x.EVENTS.c.x", "$JS.ACK.TASKS.c.1.1.1.1.1", "$KV.KEYS.k",
	"control.api.CONSUMER.CREATE.EVENTS", "control.api.STREAM.INFO.EVENTS", "mirror.readers.x", "feed.acme.x",
	"feed.other.x",
	"feed.api.CONSUMER.CREATE.EVENTS.c.events.acme.>", "feed.api.CONSUMER.CREATE.EVENTS.c.events.other.>",
	"checked.api.CONSUMER.CREATE.EVENTS.c", "checked.api.CONSUMER.CREATE.EVENTS",
	calloutSubject, "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.CONTROL.CONNZ", "$SYS.ACCOUNT.CONTROL.CONNECT",
}

// A probed is a server with events and readers of the accounts acme and other. It records the
// messages that are received in every NATS account except acme's.
type probed struct {
	*Server
	t      *testing.T
	events map[string][]uint64 // positions of the events, by account
	acme   *nats.Conn
	other  *nats.Conn
	errs   chan error // errors that the server sent to acme's reader

	mu       sync.Mutex
	received map[string][]string // subjects of the received messages, by NATS account
}

func startProbed(t *testing.T) *probed {
	p := &probed{Server: startWithReaders(t), t: t, events: map[string][]uint64{}, errs: make(chan error, 1000),
		received: map[string][]string{}}
	for i, account := range []string{"acme", "other", "acme", "other"} {
		w := of(account, fmt.Sprint("c", i))
		// if the event were delivered to a subject of the JetStream API, this would be a valid request
		w.Data = json.RawMessage("{}")
		p.events[account] = append(p.events[account], logtest.Append(t, p.Log(), w))
	}
	p.acme = accountReader(t, p.Server, "acme.r1", denied(p.errs))
	p.other = accountReader(t, p.Server, "other.r1")
	for _, nc := range []*nats.Conn{p.keeper, p.readers.connOf("acme"), p.readers.connOf("other")} {
		for _, stream := range []string{eventlog.Stream, metering.Stream} {
			awaitMirror(t, nc, stream)
		}
	}
	taps := map[string]*nats.Conn{"CONTROL": p.Control(), "AGENTS": p.Coordinator(), "READERS": p.keeper,
		"MIRROR-other": p.readers.connOf("other")}
	for account, nc := range taps {
		sub, err := nc.Subscribe(">", func(m *nats.Msg) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.received[account] = append(p.received[account], m.Subject)
		})
		require.NoError(t, err)
		require.NoError(t, nc.Flush())
		t.Cleanup(func() { _ = sub.Unsubscribe() })
	}
	_, err := p.other.SubscribeSync("_INBOX.other.>")
	require.NoError(t, err)
	return p
}

// awaitMirror returns when the mirror named stream has all messages of its source.
func awaitMirror(t testing.TB, nc *nats.Conn, stream string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for {
		s, err := jetstreamOf(t, nc).Stream(ctx, stream)
		require.NoError(t, err)
		if mirror := s.CachedInfo().Mirror; mirror != nil && mirror.Active >= 0 && mirror.Lag == 0 {
			return
		}
		require.True(t, eventlog.Sleep(ctx, 5*time.Millisecond), "%s is missing a message", stream)
	}
}

// undamaged checks that no message of acme's reader reached a forbidden subject, and that all
// streams are unchanged.
func (p *probed) undamaged() {
	p.t.Helper()
	live := of("acme", fmt.Sprint("live-", time.Now().UnixNano()))
	position := logtest.Append(p.t, p.Log(), live)
	p.events["acme"] = append(p.events["acme"], position)
	for account, nc := range map[string]*nats.Conn{"acme": p.acme, "other": p.other} {
		var got []uint64
		log, err := eventlog.OpenReader(p.t.Context(), nc)
		require.NoError(p.t, err)
		for e, err := range log.Follow(p.t.Context(), "", 0) {
			require.NoError(p.t, err)
			require.Equal(p.t, account, e.Name.Account())
			if got = append(got, e.Position); len(got) == len(p.events[account]) {
				break
			}
		}
		require.Equal(p.t, p.events[account], got)
	}
	last, err := p.Log().Last(p.t.Context())
	require.NoError(p.t, err)
	require.Equal(p.t, eventlog.Checkpoint{Position: position, EventID: live.ID}, last, "no other writer")
	for _, nc := range []*nats.Conn{p.Control(), p.Coordinator(), p.keeper} {
		require.NoError(p.t, nc.Flush())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for account, subjects := range p.received {
		for _, subject := range subjects {
			own := strings.HasPrefix(subject, "events.acme.counters.live-") || account == "READERS" &&
				strings.HasPrefix(subject, "feed.")
			require.False(p.t, slices.Contains(forbidden, subject) && !own, "%s received %s", account, subject)
		}
	}
}

func TestAccountReadersPublishNothing(t *testing.T) {
	p := startProbed(t)
	for _, subject := range forbidden {
		require.NoError(t, p.acme.Publish(subject, []byte("{}")))
		require.NoError(t, p.acme.Flush())
		assert.ErrorContains(t, <-p.errs, "Permissions Violation for Publish", subject)
	}
	p.undamaged()
}

func TestAccountReadersSubscribeToTheirInboxesOnly(t *testing.T) {
	p := startProbed(t)
	for _, subject := range append([]string{">", "*", "events.>", "usage.>", "$JS.>", "$SYS.>", "feed.>", "checked.>",
		"mirror.>", "work.>", "agents.>", "_R_.>"}, forbidden...) {
		if strings.HasPrefix(subject, "_INBOX.") {
			continue
		}
		_, err := p.acme.SubscribeSync(subject)
		require.NoError(t, err)
		require.NoError(t, p.acme.Flush())
		assert.ErrorContains(t, <-p.errs, "Permissions Violation for Subscription", subject)
	}
}

// TestResponsesToAccountReadersStayInTheirAccount checks that responses of the JetStream API to a
// reader reach no subject that the reader is not allowed to reach, whatever reply subject the
// request has.
func TestResponsesToAccountReadersStayInTheirAccount(t *testing.T) {
	p := startProbed(t)
	js := jetstreamOf(t, p.acme)
	for _, name := range []string{"mine", "victim"} {
		_, err := js.CreateOrUpdateConsumer(t.Context(), eventlog.Stream,
			jetstream.ConsumerConfig{Durable: name, AckPolicy: jetstream.AckNonePolicy})
		require.NoError(t, err)
	}
	first := fmt.Sprintf(`{"seq":%d}`, p.events["acme"][0])
	requests := map[string]string{
		"$JS.API.DIRECT.GET.EVENTS": first, "$JS.API.STREAM.MSG.GET.EVENTS": first, "$JS.API.STREAM.INFO.EVENTS": "",
		"$JS.API.CONSUMER.LIST.EVENTS":      "",
		"$JS.API.CONSUMER.INFO.EVENTS.mine": "", "$JS.API.CONSUMER.NAMES.EVENTS": "",
		"$JS.API.DIRECT.GET.EVENTS.events.acme.counters.c0": "",
		"$JS.API.CONSUMER.MSG.NEXT.EVENTS.mine": `{"batch": 10, ` +
			`"expires": 300000000, "idle_heartbeat": 100000000}`,
		"$JS.API.CONSUMER.CREATE.EVENTS.made.events.>": `{"stream_name": "EVENTS", ` +
			`"config": {"name": "made", "filter_subject": "events.>"}}`,
	}
	for _, target := range forbidden {
		for subject, body := range requests {
			require.NoError(t, p.acme.PublishRequest(subject, target, []byte(body)))
		}
		require.NoError(t, p.acme.Flush())
	}
	p.undamaged()
	_, err := js.Consumer(t.Context(), eventlog.Stream, "victim")
	require.NoError(t, err)
}

func TestAccountReadersHaveNoPushConsumers(t *testing.T) {
	p := startProbed(t)
	refused := func(what, subject, body string) {
		t.Helper()
		reply, err := p.acme.RequestWithContext(t.Context(), subject, []byte(body))
		require.NoError(t, err)
		require.Contains(t, string(reply.Data), `"error"`, "%s", what)
	}
	for _, target := range forbidden {
		for _, field := range []string{"deliver_subject", "Deliver_Subject", `deliver\u005fsubject`} {
			config := fmt.Sprintf(`{"name": "evil", %q: %q, "idle_heartbeat": 100000000, "flow_control": true}`, field, target)
			config = strings.ReplaceAll(config, `\\u`, `\u`)
			refused(config, "$JS.API.CONSUMER.CREATE.EVENTS.evil", `{"stream_name": "EVENTS", "config": `+config+`}`)
		}
	}
	push := `"deliver_subject": "anything"`
	for subject, body := range map[string]string{
		"$JS.API.CONSUMER.CREATE.EVENTS": `{"stream_name": "EVENTS", "config": {` + push + `}}`,
		"$JS.API.CONSUMER.CREATE.EVENTS.evil.events.>": `{"stream_name": "EVENTS", ` +
			`"config": {"name": "evil", "filter_subject": "events.>", ` + push + `}}`,
		"$JS.API.CONSUMER.DURABLE.CREATE.EVENTS.evil": `{"stream_name": "EVENTS", "config": {"durable_name": "evil", ` +
			push + `}}`,
		"$JS.API.CONSUMER.CREATE.USAGE.evil": `{"stream_name": "USAGE", "config": {"name": "evil", ` + push + `}}`,
		"$JS.API.CONSUMER.CREATE.EVENTS.twice": `{"stream_name": "EVENTS", ` +
			`"config": {"name": "twice", "deliver_subject": "", ` + push + `}}`,
		"$JS.API.CONSUMER.CREATE.EVENTS.configs": `{"stream_name": "EVENTS", "config": {` + push +
			`}, "Config": {"name": "configs"}}`,
		"$JS.API.CONSUMER.CREATE.EVENTS.direct": `{"stream_name": "EVENTS", ` +
			`"config": {"name": "direct", "direct": true, "sourcing": true}}`,
		"$JS.API.CONSUMER.CREATE.EVENTS.stream": `{"stream_name": "KV_KEYS", "config": {"name": "stream"}}`,
		"$JS.API.CONSUMER.CREATE.EVENTS.large": `{"stream_name": "EVENTS", "config": {"name": "large", "description": "` +
			strings.Repeat("x", readerBody) + `"}}`,
		"$JS.API.CONSUMER.CREATE.EVENTS.text": `no JSON`,
	} {
		refused(body[:min(len(body), 100)], subject, body)
	}
	names := jetstreamOf(t, p.readers.connOf("acme"))
	for _, stream := range []string{eventlog.Stream, metering.Stream} {
		s, err := names.Stream(t.Context(), stream)
		require.NoError(t, err)
		for info := range s.ListConsumers(t.Context()).Info() {
			require.Fail(t, "a consumer was created", "%+v", info.Config)
		}
	}
	p.undamaged()
}

func TestAccountReadersSeeNothingOfOthers(t *testing.T) {
	p := startProbed(t)
	js := jetstreamOf(t, p.acme)
	ctx := t.Context()
	stream, err := js.Stream(ctx, eventlog.Stream)
	require.NoError(t, err)
	require.EqualValues(t, len(p.events["acme"]), stream.CachedInfo().State.Msgs)
	for _, position := range p.events["other"] {
		_, err := stream.GetMsg(ctx, position)
		require.ErrorIs(t, err, jetstream.ErrMsgNotFound)
	}
	for _, subject := range []string{"events.other.counters.c1", "events.other.>"} {
		_, err = stream.GetLastMsgForSubject(ctx, subject)
		require.ErrorIs(t, err, jetstream.ErrMsgNotFound)
	}
	for name, filter := range map[string]string{"all": "events.>", "theirs": "events.other.>",
		"one": "events.other.counters.c1"} {
		c, err := js.CreateConsumer(ctx, eventlog.Stream,
			jetstream.ConsumerConfig{Name: name, FilterSubject: filter, AckPolicy: jetstream.AckNonePolicy})
		require.NoError(t, err)
		batch, err := c.FetchNoWait(100)
		require.NoError(t, err)
		for m := range batch.Messages() {
			require.True(t, strings.HasPrefix(m.Subject(), "events.acme."), m.Subject())
		}
	}
	theirs := jetstreamOf(t, p.other)
	_, err = theirs.CreateConsumer(ctx, eventlog.Stream,
		jetstream.ConsumerConfig{Durable: "secret", AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
	_, err = js.Consumer(ctx, eventlog.Stream, "secret")
	require.ErrorIs(t, err, jetstream.ErrConsumerNotFound)
	require.ErrorIs(t, js.DeleteConsumer(ctx, eventlog.Stream, "secret"), jetstream.ErrConsumerNotFound)
	reply, err := p.acme.RequestWithContext(ctx, "$JS.API.CONSUMER.MSG.NEXT.EVENTS.secret",
		[]byte(`{"batch":1,"no_wait":true}`))
	if err == nil {
		require.Equal(t, "503", reply.Header.Get("Status"))
	} else {
		require.ErrorIs(t, err, nats.ErrNoResponders)
	}
	_, err = theirs.Consumer(ctx, eventlog.Stream, "secret")
	require.NoError(t, err)
}

func TestAccountReadersAreRefused(t *testing.T) {
	s := startWithReaders(t)
	_, password := s.ReaderCredentials()
	for what, one := range map[string][2]string{
		"no password":                          {"acme.r1", ""},
		"another reader's password":            {"acme.r1", tokenOf("acme.r2")},
		"the operator's password":              {"acme.r1", password},
		"the server's own user, guessed":       {"keeper.acme", ""},
		"the server's own user, as another":    {"keeper.acme", password},
		"the server's own user, as the reader": {"keeper.acme", tokenOf("acme.r1")},
		"a node's ID with a dot":               {"n1.x", tokenOf("n1")},
		"a node's token":                       {"acme.r1", tokenOf("acme")},
		"an account with a wildcard":           {"*.r1", tokenOf("other.r1")},
		"the operator's reader, guessed":       {"reader", tokenOf("reader")},
	} {
		nc, err := nats.Connect(s.URL(), nats.UserInfo(one[0], one[1]))
		if err == nil {
			nc.Close()
		}
		assert.ErrorIs(t, err, nats.ErrAuthorization, what)
	}
	without := start(t)
	_, err := nats.Connect(without.URL(), nats.UserInfo("acme.r1", tokenOf("acme.r1")))
	assert.ErrorIs(t, err, nats.ErrAuthorization)
}

func TestAccountReadersReconnectAfterARestart(t *testing.T) {
	dir := t.TempDir()
	reopen := func() *Server { return startWithReaders(t, func(o *Options) { o.Dir = dir }) }
	first := reopen()
	position := logtest.Append(t, first.Log(), of("acme", "a"))
	nc := accountReader(t, first, "acme.r1")
	c, err := jetstreamOf(t, nc).CreateConsumer(t.Context(), eventlog.Stream,
		jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
	m, err := c.Next()
	require.NoError(t, err)
	require.NoError(t, m.DoubleAck(t.Context()))
	nc.Close()
	first.Close()

	second := reopen()
	w := logtest.Write("a", position)
	w.Name = domain.NewName("acme", logtest.Counters.Collection, "a")
	position = logtest.Append(t, second.Log(), w)
	nc = accountReader(t, second, "acme.r2")
	c, err = jetstreamOf(t, nc).Consumer(t.Context(), eventlog.Stream, "d")
	require.NoError(t, err)
	m, err = c.Next()
	require.NoError(t, err)
	meta, err := m.Metadata()
	require.NoError(t, err)
	require.Equal(t, position, meta.Sequence.Stream, "it resumes at its position")
	require.Equal(t, w.ID, m.Headers().Get("ce-id"))
}

func TestAccountReadersAreDisconnectedWhenInvalid(t *testing.T) {
	soon := time.Now().Add(2 * time.Second)
	s := startWithReaders(t, func(o *Options) {
		verify := o.VerifyReader
		o.VerifyReader = func(ctx context.Context, user, password string) (Reader, bool) {
			r, ok := verify(ctx, user, password)
			if r.ID == "brief" {
				r.Expires = &soon
			}
			return r, ok
		}
	})
	closed := func(user string) <-chan struct{} {
		gone := make(chan struct{})
		accountReader(t, s, user, nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(gone) }))
		return gone
	}
	revoked, expired := closed("acme.r1"), closed("acme.brief")
	stays := accountReader(t, s, "acme.r2", nats.NoReconnect())
	require.NoError(t, s.SweepReaders(func(user string, since time.Time) bool {
		return user != "acme.r1" &&
			!since.After(time.Now())
	}))
	<-revoked
	<-expired
	require.NoError(t, stays.Flush())
}

// connOf returns the server's own connection into the NATS account MIRROR-… of an account.
func (a *accountReaders) connOf(account string) *nats.Conn {
	a.mu.Lock()
	m := a.open[account]
	a.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conn
}
