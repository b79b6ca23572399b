package transparency_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/eventlog/integrity"
	"anneal/eventlog/transparency"
)

// BenchmarkAppend measures the time of an event in the tree, in batches of 5,000 events that end
// with a checkpoint, and the memory of a batch.
func BenchmarkAppend(b *testing.B) {
	in := newInstallation(b)
	p, _ := in.publish(b, b.TempDir())
	require.NoError(b, p.WaitFor(b.Context(), 0))
	var attributes []integrity.Attribute
	for _, name := range []string{"actor", "cause", "controlplane", "correlation", "dataschema", "id", "source",
		"specversion", "subject", "time", "traceparent", "type"} {
		attributes = append(attributes, integrity.Attribute{Name: "ce-" + name, Value: strings.Repeat("v", 32)})
	}
	last, err := in.log.Last(b.Context())
	require.NoError(b, err)
	position, data := last.Position, make([]byte, 200)
	b.ReportAllocs()
	for b.Loop() {
		for range 5000 {
			position++
			p.Observe(integrity.NewMessage(position, "events.acme.datasets.d1", attributes, data))
		}
		require.NoError(b, p.WaitFor(b.Context(), position))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/5000, "ns/event")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkLag measures how long after an event a checkpoint with the event is published, at 20,000
// events a second. It reports the 99th percentile in ms.
func BenchmarkLag(b *testing.B) {
	in := newInstallation(b)
	p := transparency.NewPublisher(transparency.Options{Dir: b.TempDir(), Messages: in.log, Keys: in.keys,
		Signer: in.signer})
	go func() { _ = p.Run(b.Context()) }()
	const perTick, tick, ticks = 200, 10 * time.Millisecond, 1000
	var lags []time.Duration
	type sent struct {
		position uint64
		at       time.Time
	}
	for range b.N {
		queue := make(chan sent, ticks)
		go func() {
			defer close(queue)
			clock := time.NewTicker(tick)
			defer clock.Stop()
			for range ticks {
				last, _ := in.log.Last(b.Context())
				in.log.grow(perTick)
				for i := range uint64(perTick) {
					p.Observe(message(last.Position + 1 + i))
				}
				queue <- sent{last.Position + perTick, time.Now()}
				<-clock.C
			}
		}()
		for s := range queue {
			if err := p.WaitFor(b.Context(), s.position); err != nil {
				b.Fatal(err)
			}
			lags = append(lags, time.Since(s.at))
		}
	}
	slices.Sort(lags)
	b.ReportMetric(float64(lags[len(lags)*99/100].Milliseconds()), "p99-ms")
	b.ReportMetric(float64(lags[len(lags)/2].Milliseconds()), "p50-ms")
}
