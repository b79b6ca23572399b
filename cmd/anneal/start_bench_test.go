package main_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/natsserver"
	"anneal/internal/testutil"
	"anneal/projections"
)

// BenchmarkStart measures the time from the start of a server until it is ready, with a log of
// ANNEAL_START_DATASETS datasets and the snapshot of an orderly end. The limit is the time in which one
// core computes the checksum of the snapshot.
func BenchmarkStart(b *testing.B) {
	datasets := testutil.Variable(b, "ANNEAL_START_DATASETS", 20_000)
	dir := filepath.Join(b.TempDir(), "data")
	server := serve(b, dir)
	server.end()
	createDatasets(b, dir, datasets)
	server.start() // writes the snapshot at its end
	scrubbed(b, server, 0)
	require.Zero(b, server.end())

	var wall, used, limit time.Duration
	runs := 0
	for b.Loop() {
		began := time.Now()
		server.start()
		wall += time.Since(began)
		used += processorTime(b, server.cmd.Process.Pid)
		b.StopTimer()
		runs++
		scrubbed(b, server, runs)
		require.Zero(b, server.end())
		b.StartTimer()
		limit += checksumTime(b, filepath.Join(dir, "snapshots"))
	}
	b.ReportMetric(wall.Seconds()/float64(b.N), "s/start")
	b.ReportMetric(used.Seconds()/float64(b.N), "cpu-s/start")
	b.ReportMetric(wall.Seconds()/limit.Seconds(), "x-limit")
	b.ReportMetric(0, "ns/op")
	total := 0.0
	for _, part := range append(testutil.Glob(b, filepath.Join(dir, "nats/jetstream/*/streams/*")),
		filepath.Join(dir, "tree"), filepath.Join(dir, "archive"), filepath.Join(dir, "snapshots")) {
		size := float64(sizeBelow(b, part)) / float64(datasets)
		total += size
		if size >= 1 {
			b.Logf("%s: %.0f bytes a dataset", strings.TrimPrefix(part, dir+"/"), size)
		}
	}
	b.Logf("in total: %.0f bytes a dataset", total)
}

// sizeBelow returns the total size of the files below a directory.
func sizeBelow(b *testing.B, dir string) (size int64) {
	require.NoError(b, filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			info, err := entry.Info()
			require.NoError(b, err)
			size += info.Size()
		}
		return err
	}))
	return size
}

// createDatasets adds the events that create n datasets to the log in a data directory.
func createDatasets(b *testing.B, dir string, n int) {
	const clients = 256
	nats, err := natsserver.Start(natsserver.Options{Dir: filepath.Join(dir, "nats")})
	require.NoError(b, err)
	defer nats.Close()
	world, err := projections.Load(filepath.Join(dir, "snapshots"))
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	var follower, all sync.WaitGroup
	follower.Go(func() { _ = world.Run(ctx, nats.Log()) }) // an error ends the creates
	for client := range clients {
		all.Go(func() {
			for i := client; i < n; i += clients {
				name := domain.NewName("default", domain.Datasets.Collection, fmt.Sprint("d-", i))
				spec := domain.DatasetSpec{DisplayName: fmt.Sprint("number ", i), UserUploaded: &struct{}{}}
				_, err := eventlog.Do(ctx, nats.Log(), world, eventlog.Request{Time: time.Now()},
					domain.Intend(domain.Datasets, name, domain.CreateDataset{DatasetSpec: spec}))
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	cancel()
	follower.Wait()
}

// scrubbed waits until a server has read all blocks of a log that was read in part before the start, because
// after an earlier end the next start would read the whole log. runs is the number of earlier calls.
func scrubbed(b *testing.B, server *plane, runs int) {
	const partial = 64 << 20 // bytes up to which a log is read completely before the start
	size := int64(0)
	for _, path := range testutil.Glob(b, filepath.Join(server.dir, "nats/jetstream/CONTROL/streams/EVENTS/msgs/*.blk")) {
		size += testutil.Stat(b, path).Size()
	}
	eventually(b, "the files of the log are intact", func() bool {
		return size < partial || strings.Count(server.log.output(), "they are intact") > runs
	})
}

// processorTime returns the CPU time that a process has used.
func processorTime(b *testing.B, pid int) time.Duration {
	var clock unix.Timespec
	// The clock of a process's CPU time, see clock_getcpuclockid(3).
	require.NoError(b, unix.ClockGettime(int32(^pid<<3|2), &clock))
	return time.Duration(clock.Nano())
}

// checksumTime returns the time in which one core reads and hashes the newest snapshot in a directory.
func checksumTime(b *testing.B, dir string) time.Duration {
	paths := testutil.Glob(b, filepath.Join(dir, "snapshot-*"))
	file, err := os.Open(paths[len(paths)-1])
	require.NoError(b, err)
	defer file.Close()
	began := time.Now()
	_, err = io.Copy(sha256.New(), file)
	require.NoError(b, err)
	return time.Since(began)
}
