package natsserver

import (
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// BenchmarkAccountReaders measures the cost of account readers: the CPU time of the whole process
// per append, until every mirror has the event, and the time from the append until a reader
// receives the event.
func BenchmarkAccountReaders(b *testing.B) {
	for _, accounts := range []int{0, 1, 20} {
		b.Run(fmt.Sprintf("accounts=%d", accounts), func(b *testing.B) {
			s := startWithReaders(b)
			arrived := make(chan uint64, 1024)
			for i := range accounts {
				js := jetstreamOf(b, accountReader(b, s, fmt.Sprintf("a%d.r1", i)))
				c, err := js.OrderedConsumer(b.Context(), eventlog.Stream, jetstream.OrderedConsumerConfig{})
				require.NoError(b, err)
				consuming, err := c.Consume(func(m jetstream.Msg) {
					meta, _ := m.Metadata()
					arrived <- meta.Sequence.Stream
				})
				require.NoError(b, err)
				b.Cleanup(consuming.Stop)
			}
			next := 0
			add := func() uint64 {
				next++
				return logtest.Append(b, s.Log(), of(fmt.Sprintf("a%d", next%max(accounts, 1)), fmt.Sprint("c", next)))
			}
			var latencies []time.Duration
			for range 200 {
				position, at := add(), time.Now()
				for accounts > 0 {
					if <-arrived == position {
						latencies = append(latencies, time.Since(at))
						break
					}
				}
			}
			before := cpuTime(b)
			for b.Loop() {
				position := add()
				for accounts > 0 && <-arrived != position {
				}
			}
			b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "µs-cpu/op")
			if slices.Sort(latencies); len(latencies) > 0 {
				b.ReportMetric(float64(latencies[len(latencies)/2].Microseconds()), "µs-p50-latency")
			}
		})
	}
}

func cpuTime(tb testing.TB) time.Duration {
	var usage unix.Rusage
	require.NoError(tb, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
