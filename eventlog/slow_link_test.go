package eventlog_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
)

// slowly forwards the connections to a listener to addr. What the server sends arrives with at most
// perTick bytes a millisecond.
func slowly(l net.Listener, addr string, perTick int64) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", addr)
		if err != nil {
			client.Close()
			continue
		}
		go func() {
			_, _ = io.Copy(server, client)
			server.Close()
		}()
		go func() {
			defer client.Close()
			ticks := time.NewTicker(time.Millisecond)
			defer ticks.Stop()
			for range ticks.C {
				if _, err := io.CopyN(client, server, perTick); err != nil {
					return
				}
			}
		}()
	}
}

// TestReadOverASlowConnection reads a log over a connection that needs longer for a full page than
// a read waits. Repeated reads, each after the events of the one before, reach its end.
func TestReadOverASlowConnection(t *testing.T) {
	const events, size, ackWait = 300, 30_000, 400 * time.Millisecond
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(),
		NoSigs: true, NoLog: true})
	require.NoError(t, err)
	s.Start()
	defer s.Shutdown()
	require.True(t, s.ReadyForConnections(10*time.Second))
	connect := func(url string) *eventlog.JetStream {
		nc, err := nats.Connect(url)
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		log, err := eventlog.OpenJetStream(t.Context(), nc, eventlog.JetStreamOptions{AckWait: ackWait})
		require.NoError(t, err)
		return log
	}
	log := connect(s.ClientURL())
	for i := range events {
		record, err := domain.Accounts.Encode(domain.AccountCreated{AccountSpec: domain.AccountSpec{
			DisplayName: strings.Repeat("x", size)}})
		require.NoError(t, err)
		_, err = log.Append(t.Context(), eventlog.Write{Event: eventlog.Event{Record: record, ID: fmt.Sprint("e", i),
			Name: domain.NewName("", "accounts", fmt.Sprint("a", i))}})
		require.NoError(t, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go slowly(l, s.Addr().String(), 8<<10)
	slow := connect("nats://" + l.Addr().String())

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	after, failures := uint64(0), 0
	for after < events {
		require.NoError(t, ctx.Err(), "at event %d", after)
		for e, err := range slow.Read(ctx, "", after) {
			if err != nil {
				failures++
				break
			}
			require.Equal(t, after+1, e.Position)
			after = e.Position
		}
	}
	t.Logf("%d reads failed", failures)
}
