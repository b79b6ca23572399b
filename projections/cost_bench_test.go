package projections

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/archive"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/secrets"
	"anneal/eventlog/servertest"
	"anneal/eventlog/transparency"
)

// BenchmarkCost compares whole commands, durable and folded by a world, on servers with and without the
// Merkle tree and the archive of earlier states. The servers take turns, in an order that changes with
// each round. It reports the median rate without both, the medians of the ratios to it in the same
// round, and the CPU time of a command, including what tree and archive do after it.
func BenchmarkCost(b *testing.B) {
	kinds := []struct {
		name          string
		tree, archive bool
	}{{"plain", false, false}, {"tree", true, false}, {"archive", false, true}, {"both", true, true}}
	for _, clients := range []int{1, 64, 256} {
		b.Run(strconv.Itoa(clients), func(b *testing.B) {
			servers := make([]costServer, len(kinds))
			each := max(32, min(1024, 8192/clients)) // long bursts, because each ends with a checkpoint of the tree
			for i, kind := range kinds {
				servers[i] = costServerOf(b, kind.tree, kind.archive)
				burstOf(b, clients, each, servers[i].command) // warm up
				servers[i].finish()
			}
			var ratios [4][]float64
			var rates []float64
			var cpu [4]time.Duration
			rounds := 0
			for range b.N {
				for begun := time.Now(); time.Since(begun) < 20*time.Second; rounds++ {
					var took [4]time.Duration
					for i := range kinds {
						at := (i + rounds) % len(kinds)
						if rounds/len(kinds)%2 == 1 {
							at = len(kinds) - 1 - at
						}
						spent := cpuTime(b)
						took[at] = burstOf(b, clients, each, servers[at].command)
						servers[at].finish()
						cpu[at] += cpuTime(b) - spent
					}
					rates = append(rates, float64(clients*each)/took[0].Seconds())
					for i := range kinds {
						ratios[i] = append(ratios[i], took[0].Seconds()/took[i].Seconds())
					}
				}
			}
			b.ReportMetric(medianOf(rates), "plain/s")
			for i, kind := range kinds {
				if i > 0 {
					b.ReportMetric(medianOf(ratios[i]), kind.name+":plain")
				}
				b.ReportMetric(float64(cpu[i].Microseconds())/float64(rounds*clients*each), kind.name+"-cpu-µs")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func medianOf(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// cpuTime returns the CPU time of the process.
func cpuTime(b *testing.B) time.Duration {
	var usage unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// A costServer executes commands. finish waits until the tree has their events.
type costServer struct {
	command func() error
	finish  func()
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

// costServerOf starts a durable server.
func costServerOf(b *testing.B, tree, archived bool) costServer {
	s, w := servertest.Start(b, func(o *natsserver.Options) { o.NoSync = false }), NewWorld()
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	b.Cleanup(func() { stop(); all.Wait() })
	finish := func() { assert.NoError(b, w.WaitFor(ctx, lastOf(b, s.Log()))) }
	if tree {
		signer, err := transparency.NewSigner([]byte("secret"))
		require.NoError(b, err)
		p := transparency.NewPublisher(transparency.Options{Dir: b.TempDir(), Messages: eventlog.MessagesOf(s.Log()),
			Keys: secrets.NewMemoryVault().Salts(), Signer: signer})
		s.Log().Observe(p.Observe)
		all.Go(func() { _ = p.Run(ctx) })
		world := finish
		finish = func() { world(); assert.NoError(b, p.WaitFor(ctx, w.Position())) }
	}
	if archived {
		a, err := archive.Open(b.TempDir())
		require.NoError(b, err)
		require.NoError(b, w.Archive(a))
		b.Cleanup(func() { stop(); all.Wait(); assert.NoError(b, a.Close()) })
	}
	all.Go(func() { _ = w.Run(ctx, s.Log()) })
	var id atomic.Int64
	return costServer{finish: finish, command: func() error {
		name := domain.NewName("acme", domain.Datasets.Collection, fmt.Sprint("d", id.Add(1)))
		_, err := eventlog.Do(b.Context(), s.Log(), w, eventlog.Request{Time: time.Now(), Actor: "accounts/acme/apiKeys/k1"},
			domain.Intend(domain.Datasets, name, domain.Command[domain.Dataset](domain.CreateDataset{
				DatasetSpec: domain.DatasetSpec{DisplayName: "a dataset", UserUploaded: &struct{}{}},
				CreatedBy:   "accounts/acme/apiKeys/k1"})))
		return err
	}}
}

func lastOf(b *testing.B, log eventlog.Log) uint64 {
	last, err := log.Last(context.Background())
	require.NoError(b, err)
	return last.Position
}
