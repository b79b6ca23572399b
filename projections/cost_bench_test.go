package projections

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/archive"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/secrets"
	"anneal/eventlog/servertest"
	"anneal/eventlog/transparency"
)

// BenchmarkCost compares whole commands, durable and folded by a world, on servers with and without the
// Merkle tree and the archive of earlier states. Bursts on the servers alternate, in an order that
// changes with each round. It reports the rate without both, and the ratios to it.
func BenchmarkCost(b *testing.B) {
	kinds := []struct {
		name          string
		tree, archive bool
	}{{"plain", false, false}, {"tree", true, false}, {"archive", false, true}, {"both", true, true}}
	for _, clients := range []int{1, 64, 256} {
		b.Run(strconv.Itoa(clients), func(b *testing.B) {
			commands, took := make([]func() error, len(kinds)), make([]time.Duration, len(kinds))
			each := max(1, 512/clients)
			for i, kind := range kinds {
				commands[i] = commandsOn(b, kind.tree, kind.archive)
				burstOf(b, clients, each, commands[i]) // warm up
			}
			rounds := 0
			for range b.N {
				for begun := time.Now(); time.Since(begun) < 12*time.Second; rounds++ {
					for i := range kinds {
						at := (i + rounds) % len(kinds)
						if rounds/len(kinds)%2 == 1 {
							at = len(kinds) - 1 - at
						}
						took[at] += burstOf(b, clients, each, commands[at])
					}
				}
			}
			b.ReportMetric(float64(rounds*clients*each)/took[0].Seconds(), "plain/s")
			for i, kind := range kinds[1:] {
				b.ReportMetric(took[0].Seconds()/took[i+1].Seconds(), kind.name+":plain")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// burstOf calls command each times in each of some clients, and returns how long this took.
func burstOf(b *testing.B, clients, each int, command func() error) time.Duration {
	var all sync.WaitGroup
	begun := time.Now()
	for range clients {
		all.Go(func() {
			for range each {
				assert.NoError(b, command())
			}
		})
	}
	all.Wait()
	return time.Since(begun)
}

// commandsOn returns a function that executes a command on a new durable server.
func commandsOn(b *testing.B, tree, archived bool) func() error {
	s, w := servertest.Start(b, func(o *natsserver.Options) { o.NoSync = false }), NewWorld()
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	b.Cleanup(func() { stop(); all.Wait() })
	if tree {
		signer, err := transparency.NewSigner([]byte("secret"))
		require.NoError(b, err)
		p := transparency.NewPublisher(transparency.Options{Dir: b.TempDir(), Messages: eventlog.MessagesOf(s.Log()),
			Keys: secrets.NewMemoryVault().Salts(), Signer: signer})
		s.Log().Observe(p.Observe)
		all.Go(func() { _ = p.Run(ctx) })
	}
	if archived {
		a, err := archive.Open(b.TempDir())
		require.NoError(b, err)
		require.NoError(b, w.Archive(a))
		b.Cleanup(func() { stop(); all.Wait(); assert.NoError(b, a.Close()) })
	}
	all.Go(func() { _ = w.Run(ctx, s.Log()) })
	var id atomic.Int64
	return func() error {
		name := domain.NewName("acme", domain.Datasets.Collection, fmt.Sprint("d", id.Add(1)))
		_, err := eventlog.Do(b.Context(), s.Log(), w, eventlog.Request{Time: time.Now(), Actor: "accounts/acme/apiKeys/k1"},
			domain.Intend(domain.Datasets, name, domain.Command[domain.Dataset](domain.CreateDataset{
				DatasetSpec: domain.DatasetSpec{DisplayName: "a dataset", UserUploaded: &struct{}{}},
				CreatedBy:   "accounts/acme/apiKeys/k1"})))
		return err
	}
}
