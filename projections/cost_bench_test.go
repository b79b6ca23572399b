package projections

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
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
// each round. It reports medians for the plain server, which has neither, and for each other server the
// medians of its ratios to the plain server in the same round: of the rates, of the CPU times with the work
// of tree and archive after a burst, and of the allocated bytes. The garbage collector runs between the
// bursts, because the bursts are so short that some would contain a collection and others none. Its cost
// follows from the allocated bytes.
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
				servers[i].burst(b, clients, each) // warm up
			}
			defer debug.SetGCPercent(debug.SetGCPercent(-1))
			var plain [3][]float64 // rates, CPU times and bytes
			var ratios [4][3][]float64
			for round := range b.N * 16 {
				var costs [4]cost
				for i := range kinds {
					at := (i + round) % len(kinds)
					if round/len(kinds)%2 == 1 {
						at = len(kinds) - 1 - at
					}
					runtime.GC()
					costs[at] = servers[at].burst(b, clients, each)
				}
				for j, base := range costs[0] {
					plain[j] = append(plain[j], base)
					for i := range kinds {
						ratios[i][j] = append(ratios[i][j], costs[i][j]/base)
					}
				}
			}
			for j, unit := range []string{"/s", "-cpu-µs", "-B"} {
				b.ReportMetric(medianOf(plain[j]), "plain"+unit)
				for i, kind := range kinds[1:] {
					b.ReportMetric(medianOf(ratios[i+1][j]), kind.name+":plain"+unit)
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// A cost has the commands per second of a burst, and the CPU time in µs and allocated bytes of one
// command.
type cost [3]float64

// burst executes a number of commands in each of some clients, and returns their cost.
func (s costServer) burst(b *testing.B, clients, each int) cost {
	n := float64(clients * each)
	cpu, bytes := cpuTime(b), allocated()
	took := burstOf(b, clients, each, s.command)
	s.finish()
	return cost{n / took.Seconds(), float64((cpuTime(b) - cpu).Microseconds()) / n, float64(allocated()-bytes) / n}
}

func allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
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
