package transparency_test

import (
	"slices"
	"testing"
	"time"

	"anneal/eventlog/transparency"
)

// BenchmarkAppend measures the entry, the leaf and the record of an event.
func BenchmarkAppend(b *testing.B) {
	tree, _, err := transparency.OpenTree(b.TempDir() + "/entries")
	if err != nil {
		b.Fatal(err)
	}
	defer tree.Close()
	b.ReportAllocs()
	position := uint64(0)
	for b.Loop() {
		position++
		if err := tree.Append(message(position), transparency.Salts{}); err != nil {
			b.Fatal(err)
		}
	}
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
