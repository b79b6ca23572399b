package eventlog_test

import (
	"anneal/eventlog/servertest"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/eventlog/natsserver"
)

// BenchmarkDo compares whole commands (decide, envelope, version check, append, projection) with
// plain publishes of the same body to a NATS server without anneal. Either both servers sync each
// message, or neither does. It reports do/s, raw/s and their ratio. Bursts of commands and of
// publishes alternate, so that variations of the machine's speed affect both rates.
func BenchmarkDo(b *testing.B) {
	for _, durable := range []bool{true, false} {
		for _, clients := range []int{1, 64, 256} {
			kind := map[bool]string{true: "durable", false: "nosync"}[durable]
			b.Run(fmt.Sprintf("%s/%d", kind, clients), func(b *testing.B) {
				compare(b, servertest.Start(b, func(o *natsserver.Options) { o.NoSync = !durable }),
					plainJetStream(b, durable), clients)
			})
		}
	}
}

// plainJetStream returns a JetStream context on a NATS server with default settings and a stream
// for the subjects raw.>. If durable is set, the server syncs each message to disk.
func plainJetStream(b *testing.B, durable bool) jetstream.JetStream {
	s, err := server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: b.TempDir(),
		SyncAlways: durable, NoSigs: true, NoLog: true})
	require.NoError(b, err)
	s.Start()
	require.True(b, s.ReadyForConnections(10*time.Second))
	nc, err := nats.Connect("", nats.InProcessServer(s))
	require.NoError(b, err)
	b.Cleanup(func() { nc.Close(); s.Shutdown(); s.WaitForShutdown() })
	js := servertest.JetStream(b, nc)
	_, err = js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "RAW", Subjects: []string{"raw.>"}})
	require.NoError(b, err)
	return js
}

func compare(b *testing.B, s *natsserver.Server, js jetstream.JetStream, clients int) {
	rows := logtest.Follow(b, s.Log())
	body := []byte(`{"n":1}`)
	var id atomic.Int64
	do := func() error {
		intent := domain.Intend(logtest.Counters, logtest.Name("c"+strconv.FormatInt(id.Add(1), 10)), logtest.Add{N: 1})
		_, err := eventlog.Do(b.Context(), s.Log(), rows,
			eventlog.Request{Time: time.Now(), Actor: "accounts/acme/apiKeys/k1"}, intent)
		return err
	}
	raw := func() error {
		_, err := js.PublishMsg(b.Context(), &nats.Msg{Subject: "raw.acme.counters.c" + strconv.FormatInt(id.Add(1), 10),
			Data: body})
		return err
	}
	each := max(1, 512/clients) // operations of each client in a burst of about 512
	burst(b, clients, each, do) // warm up
	burst(b, clients, each, raw)
	var done, raws rate
	for range b.N {
		for begun := time.Now(); time.Since(begun) < 3*time.Second; {
			done.add(burst(b, clients, each, do))
			raws.add(burst(b, clients, each, raw))
			raws.add(burst(b, clients, each, raw))
			done.add(burst(b, clients, each, do))
		}
	}
	b.ReportMetric(done.perSecond(), "do/s")
	b.ReportMetric(raws.perSecond(), "raw/s")
	b.ReportMetric(done.perSecond()/raws.perSecond(), "do:raw")
}

// A rate is a number of operations, count, and the time that they took, length.
type rate struct {
	count  int64
	length time.Duration
}

func (r *rate) add(other rate)     { r.count, r.length = r.count+other.count, r.length+other.length }
func (r *rate) perSecond() float64 { return float64(r.count) / r.length.Seconds() }

// burst calls op from concurrent clients and returns the rate. each is the number of calls of one
// client.
func burst(b *testing.B, clients, each int, op func() error) rate {
	var all sync.WaitGroup
	begun := time.Now()
	for range clients {
		all.Go(func() {
			for range each {
				if err := op(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	return rate{int64(clients * each), time.Since(begun)}
}

// BenchmarkFollow measures how fast Follow yields the events of a log from the beginning.
func BenchmarkFollow(b *testing.B) {
	s := servertest.Start(b)
	const events = 50_000
	fill(b, s.Log(), events)
	for b.Loop() {
		seen := 0
		for _, err := range s.Log().Follow(b.Context(), "", 0) {
			require.NoError(b, err)
			if seen++; seen == events {
				break
			}
		}
	}
	b.ReportMetric(float64(events*b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkHistory measures Read of the ten events of one resource in a log of 20,000 events.
func BenchmarkHistory(b *testing.B) {
	s := servertest.Start(b)
	fill(b, s.Log(), 20_000)
	for b.Loop() {
		count := 0
		for _, err := range s.Log().Read(b.Context(), logtest.Name("h7").Subject(), 0) {
			require.NoError(b, err)
			count++
		}
		require.Equal(b, 10, count)
	}
}

// fill appends a number of events, ten for each resource.
func fill(b *testing.B, log *eventlog.JetStream, events int) {
	var all sync.WaitGroup
	var next atomic.Int64
	for range 64 {
		all.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(events/10) {
					return
				}
				var version uint64
				for range 10 {
					var err error
					if version, err = log.Append(b.Context(), logtest.Write("h"+strconv.FormatInt(i, 10), version)); err != nil {
						b.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
}
