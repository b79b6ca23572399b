package eventlog_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/secrets"
	"anneal/eventlog/servertest"
	"anneal/eventlog/transparency"
)

// BenchmarkTree compares whole commands, durable, on a server that publishes the tree of its log
// with those on one that does not. Bursts on the two alternate. It reports the rates, and their
// ratio as with:without.
func BenchmarkTree(b *testing.B) {
	for _, clients := range []int{1, 64, 256} {
		b.Run(strconv.Itoa(clients), func(b *testing.B) {
			with, without := commands(b, true), commands(b, false)
			each := max(1, 512/clients)
			burst(b, clients, each, with) // warm up both servers
			burst(b, clients, each, without)
			var treed, plain rate
			for range b.N {
				for begun := time.Now(); time.Since(begun) < 6*time.Second; {
					treed.add(burst(b, clients, each, with))
					plain.add(burst(b, clients, each, without))
					plain.add(burst(b, clients, each, without))
					treed.add(burst(b, clients, each, with))
				}
			}
			b.ReportMetric(treed.perSecond(), "with/s")
			b.ReportMetric(plain.perSecond(), "without/s")
			b.ReportMetric(treed.perSecond()/plain.perSecond(), "with:without")
		})
	}
}

// commands returns a function that executes a command on a new durable server, with or without a
// tree.
func commands(b *testing.B, tree bool) func() error {
	s := servertest.Start(b, func(o *natsserver.Options) { o.NoSync = false })
	if tree {
		signer, err := transparency.NewSigner([]byte("secret"))
		require.NoError(b, err)
		p := transparency.NewPublisher(transparency.Options{Dir: b.TempDir(), Messages: eventlog.MessagesOf(s.Log()),
			Keys: secrets.NewMemoryVault().Salts(), Signer: signer})
		s.Log().Observe(p.Observe)
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); _ = p.Run(ctx) }()
		b.Cleanup(func() {
			last, err := s.Log().Last(context.Background())
			require.NoError(b, err)
			require.NoError(b, p.WaitFor(context.Background(), last.Position))
			stop()
			<-done
		})
	}
	rows := logtest.Follow(b, s.Log())
	var id atomic.Int64
	return func() error {
		intent := domain.Intend(logtest.Counters, logtest.Name(fmt.Sprint("c", id.Add(1))), logtest.Add{N: 1})
		_, err := eventlog.Do(b.Context(), s.Log(), rows,
			eventlog.Request{Time: time.Now(), Actor: "accounts/acme/apiKeys/k1"}, intent)
		return err
	}
}
