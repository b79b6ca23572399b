package projections

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/natsserver"
	"anneal/internal/testutil"
	"anneal/projections/toytest"
)

const (
	benchRows   = 100_000
	benchEvents = 50_000 // number of events in the logs that are read and folded
)

// fillLog appends benchEvents events of deployments from concurrent writers.
func fillLog(b *testing.B, log eventlog.Log) {
	const writers = 32
	var all sync.WaitGroup
	for g := range writers {
		all.Go(func() {
			var last uint64
			for i := g * 3; i < benchEvents; i++ {
				w := toytest.DeploymentEvent(b, i)
				if i%3 != 0 {
					w.Expect = last
				}
				position, err := log.Append(context.Background(), w)
				if err != nil {
					b.Error(err)
					return
				}
				if last = position; i%3 == 2 {
					i += (writers - 1) * 3
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkRebuild measures reading a log, and reading and folding it into a world.
func BenchmarkRebuild(b *testing.B) {
	for _, kind := range []string{"memory", "jetstream"} {
		b.Run(kind, func(b *testing.B) {
			var log eventlog.Log = eventlog.NewMemory()
			if kind == "jetstream" {
				server, err := natsserver.Start(natsserver.Options{Dir: b.TempDir(), NoSync: true})
				require.NoError(b, err)
				b.Cleanup(server.Close)
				log = server.Log()
			}
			fillLog(b, log)
			rate := func(b *testing.B, events int) {
				b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
			}
			b.Run("read", func(b *testing.B) {
				n := 0
				for b.Loop() {
					for _, err := range log.Read(b.Context(), everything, 0) {
						require.NoError(b, err)
						n++
					}
				}
				rate(b, n)
			})
			b.Run("fold", func(b *testing.B) {
				n := 0
				for b.Loop() {
					w := NewWorld()
					require.NoError(b, w.catchUp(b.Context(), log, 0))
					n += int(w.Position())
				}
				rate(b, n)
			})
		})
	}
}

// benchWorld returns a world with benchRows deployments.
func benchWorld(b *testing.B) *World {
	w := NewWorld()
	for i := range benchRows {
		e := toytest.DeploymentEvent(b, 3*i).Event
		e.Position = uint64(i + 1)
		require.NoError(b, w.Apply(e))
	}
	return w
}

func BenchmarkGet(b *testing.B) {
	w := benchWorld(b)
	all := make([]domain.Name, benchRows)
	for i := range all {
		all[i] = toytest.DeploymentName(i * 7919 % benchRows)
	}
	b.Run("view", func(b *testing.B) {
		v, i := w.View(), 0
		for b.Loop() {
			if _, ok := v.Deployments.Get(all[i%benchRows]); !ok {
				b.Fatal("not found")
			}
			i++
		}
	})
	b.Run("row", func(b *testing.B) {
		i := 0
		for b.Loop() {
			if _, version := w.Row(all[i%benchRows]); version == 0 {
				b.Fatal("not found")
			}
			i++
		}
	})
	b.Run("apply and view", func(b *testing.B) {
		i := 0
		for b.Loop() {
			e := toytest.DeploymentEvent(b, 3*(i%benchRows)+1).Event
			e.Position = w.Position() + 1
			require.NoError(b, w.Apply(e))
			w.View()
			i++
		}
	})
}

func BenchmarkSnapshot(b *testing.B) {
	w, dir := benchWorld(b), b.TempDir()
	b.Run("digest", func(b *testing.B) {
		for b.Loop() {
			_, err := w.View().Digest()
			require.NoError(b, err)
		}
	})
	b.Run("save", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, w.Save(dir))
		}
	})
	paths, err := snapshots(dir)
	require.NoError(b, err)
	info := testutil.Stat(b, paths[0])
	b.Run("load", func(b *testing.B) {
		b.SetBytes(info.Size())
		for b.Loop() {
			loaded, err := Load(dir)
			require.NoError(b, err)
			require.Equal(b, w.Position(), loaded.Position())
		}
	})
}
