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

// BenchmarkDo compares whole commands (decide, envelope, version check,
// append, projection) with bare publishes of the same body to a bare server of
// the same durability (sync_interval always, or not), and reports do/s, raw/s
// and their ratio. The two take turns, so that a slow moment of the machine
// meets both.
func BenchmarkDo(b *testing.B) {
	for _, durable := range []bool{true, false} {
		for _, clients := range []int{1, 64, 256} {
			kind := map[bool]string{true: "durable", false: "nosync"}[durable]
			b.Run(fmt.Sprintf("%s/%d", kind, clients), func(b *testing.B) {
				compare(b, servertest.Start(b, func(o *natsserver.Options) { o.NoSync = !durable }), bare(b, durable), clients)
			})
		}
	}
}

// bare is a NATS server as it comes, with a stream for raw.>.
func bare(b *testing.B, durable bool) jetstream.JetStream {
	s, err := server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: b.TempDir(), SyncAlways: durable, NoSigs: true, NoLog: true})
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
		_, err := eventlog.Do(b.Context(), s.Log(), rows, eventlog.Request{Time: time.Now(), Actor: "accounts/acme/apiKeys/k1"}, intent)
		return err
	}
	raw := func() error {
		_, err := js.PublishMsg(b.Context(), &nats.Msg{Subject: "raw.acme.counters.c" + strconv.FormatInt(id.Add(1), 10), Data: body})
		return err
	}
	each := max(1, 512/clients) // operations of a client in one burst
	burst(b, clients, each, do) // warm
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

// A rate is how often something was done in how long.
type rate struct {
	count  int64
	length time.Duration
}

func (r *rate) add(other rate)     { r.count, r.length = r.count+other.count, r.length+other.length }
func (r *rate) perSecond() float64 { return float64(r.count) / r.length.Seconds() }

// burst calls op so often from each of so many clients.
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

// BenchmarkFollow reads the log from the beginning, decoded.
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

// BenchmarkHistory reads the ten events of one resource among many.
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

// fill writes that many events, ten to a resource.
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
