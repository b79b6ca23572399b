package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// meteredLoad sends completions, every second one as a stream, and records by request ID how each ended.
type meteredLoad struct {
	user    caller
	stop    atomic.Bool
	clients sync.WaitGroup

	mu       sync.Mutex
	answered map[string]bool // the client has received the whole answer
	refused  map[string]bool // the client has received an error
	cut      map[string]bool // the connection broke
	more     chan struct{}   // closed and replaced when a request is answered
}

func startMeteredLoad(user caller, clients int) *meteredLoad {
	user.http = &http.Client{Timeout: patience, Transport: &http.Transport{}}
	l := &meteredLoad{user: user, answered: map[string]bool{}, refused: map[string]bool{}, cut: map[string]bool{},
		more: make(chan struct{})}
	for client := range clients {
		l.clients.Go(func() {
			for n := 0; !l.stop.Load(); n++ {
				id := fmt.Sprintf("u-%d-%d", client, n)
				l.record(id, l.complete(id, (client+n)%2 == 0))
			}
		})
	}
	return l
}

// complete sends a request, and returns the set to which it belongs.
func (l *meteredLoad) complete(id string, stream bool) map[string]bool {
	res, err := l.user.send(http.MethodPost, "//inference/v1/completions", object{"prompt": "hello", "temperature": 0,
		"model": "accounts/default/deployments/d", "max_tokens": 16, "stream": stream}, "X-Request-Id", id)
	if err != nil {
		<-time.After(5 * time.Millisecond) // the server restarts
		return l.cut
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	switch {
	case res.StatusCode != http.StatusOK && err == nil:
		<-time.After(5 * time.Millisecond) // the replica is not known yet
		return l.refused
	case stream && strings.HasSuffix(strings.TrimSpace(string(data)), "[DONE]"):
		return l.answered
	case !stream && err == nil && json.Valid(data):
		return l.answered
	}
	return l.cut
}

func (l *meteredLoad) record(id string, ended map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ended[id] = true
	if l.answered[id] {
		close(l.more)
		l.more = make(chan struct{})
	}
}

// awaitAnswers waits until a number of further requests are answered.
func (l *meteredLoad) awaitAnswers(t *testing.T, n int) {
	t.Helper()
	for range n {
		l.mu.Lock()
		more := l.more
		l.mu.Unlock()
		select {
		case <-more:
		case <-time.After(patience):
			require.FailNow(t, "no request is answered")
		}
	}
}

// TestUsageIsExactThroughKills kills the control plane with SIGKILL again and again while clients
// request completions and streams. Each request whose whole answer has reached its client must have
// exactly one usage record, each whose connection broke at most one, and each refused one none.
// ANNEAL_USAGE_KILLS is the number of kills.
func TestUsageIsExactThroughKills(t *testing.T) {
	t.Parallel()
	kills := testutil.Variable(t, "ANNEAL_USAGE_KILLS", 5)
	random := testutil.Random(t)
	f := newFleet(t, "--lame-duck", "0s")
	f.work("survivor")
	f.user().deploy("d", object{"baseModel": baseModel})
	l := startMeteredLoad(f.user(), 6)
	for range kills {
		l.awaitAnswers(t, 1+random.IntN(30))
		<-time.After(time.Duration(random.IntN(5000)) * time.Microsecond) // at any point of a request
		f.kill()
		f.start()
	}
	l.awaitAnswers(t, 30)
	l.stop.Store(true)
	l.clients.Wait()
	eventually(t, "all usage is metered", func() bool {
		requests, _, ok := f.user().metered()
		return ok && requests >= int64(len(l.answered))
	})
	require.Zero(t, f.end()) // waits for the records in the spool
	f.start()
	got := f.usageRecords()
	of := func(ids map[string]bool) (once, often int) {
		for id := range ids {
			switch n := got[id]; {
			case n == 1:
				once++
			case n > 1:
				often++
			}
		}
		return once, often
	}
	once, often := of(l.answered)
	cutOnce, cutOften := of(l.cut)
	refusedOnce, refusedOften := of(l.refused)
	t.Logf("%d kills: %d requests answered, %d cut off, of which %d are metered, %d refused", kills, len(l.answered),
		len(l.cut), cutOnce, len(l.refused))
	require.Equal(t, len(l.answered), once, "every answered request has one record")
	require.Zero(t, often+cutOften+refusedOften, "no request has two records")
	require.Zero(t, refusedOnce, "no refused request has a record")
	require.Len(t, got, once+cutOnce)
	requests, _, ok := f.user().metered()
	require.True(t, ok)
	require.EqualValues(t, len(got), requests, "GET /usage counts the records")
	require.Zero(t, f.workers["survivor"].end())
	require.Zero(t, f.end())
}

// usageRecords returns the number of usage records of each request, and requires that the numbers of
// each control plane's records have no gap.
func (s *plane) usageRecords() map[string]int {
	s.t.Helper()
	js, err := jetstream.New(s.reader(s.operator(), nil))
	require.NoError(s.t, err)
	stream, err := js.Stream(s.t.Context(), "USAGE")
	require.NoError(s.t, err)
	consumer, err := stream.OrderedConsumer(s.t.Context(), jetstream.OrderedConsumerConfig{})
	require.NoError(s.t, err)
	messages, err := consumer.Messages()
	require.NoError(s.t, err)
	defer messages.Stop()
	records, numbers := map[string]int{}, map[string]map[uint64]bool{}
	for range stream.CachedInfo().State.Msgs {
		m, err := messages.Next(jetstream.NextContext(s.t.Context()))
		require.NoError(s.t, err)
		var record struct{ Number uint64 }
		require.NoError(s.t, json.Unmarshal(m.Data(), &record))
		records[m.Headers().Get("ce-correlation")]++
		from := m.Headers().Get("ce-controlplane")
		if numbers[from] == nil {
			numbers[from] = map[uint64]bool{}
		}
		numbers[from][record.Number] = true
	}
	for from, all := range numbers {
		for n := range uint64(len(all)) {
			require.True(s.t, all[n+1], "record %d of %d of %s", n+1, len(all), from)
		}
	}
	return records
}
