package subscriptions

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"anneal/blobs/external/s3test"
	"anneal/blobs/reconcile/faults"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/servertest"
)

// toFiles creates the secret of the object store, and returns a subscription of the events of datasets
// that writes files into it.
func (b *harness) toFiles(store *s3test.Server) domain.SubscriptionSpec {
	sealed, err := b.vault.Seal(b.Context(), secretName, []byte(store.Credentials()))
	require.NoError(b, err)
	b.do(domain.Intend(domain.Secrets, secretName, domain.CreateSecret{KeyName: "STORE", Value: sealed}))
	return domain.SubscriptionSpec{EventTypes: []string{"dataset.*"}, StartPosition: count(0),
		Files: &domain.EventFiles{ExternalURL: store.Address("log/"), CredentialsSecret: string(secretName)}}
}

// requireFiles waits until the files have every selected event, and requires that they have each once,
// in the order of the log, and that their names are disjoint ranges that contain their events.
func (b *harness) requireFiles(store *s3test.Server) {
	b.Helper()
	want := b.lines()
	var got []string
	b.eventually(func() bool {
		got = nil
		objects := store.Objects()
		for _, key := range slices.Sorted(maps.Keys(objects)) {
			if strings.HasSuffix(key, ".parquet") {
				got = append(got, b.readParquet(objects[key])...)
			} else {
				got = append(got, strings.Split(strings.TrimSuffix(objects[key], "\n"), "\n")...)
			}
		}
		return len(got) >= len(want)
	})
	require.Equal(b, want, got)
	end := uint64(0)
	for _, key := range slices.Sorted(maps.Keys(store.Objects())) {
		var first, last uint64
		_, err := fmt.Sscanf(key, "log/%d-%d.", &first, &last)
		require.NoError(b, err)
		require.Equal(b, end+1, first)
		require.GreaterOrEqual(b, last, first)
		end = last
	}
}

// TestFilesHaveEachEventOnce checks the files of a backfill and of new events, with runners that stop
// and run concurrently.
func TestFilesHaveEachEventOnce(t *testing.T) {
	b, store := newHarness(t), s3test.Start(t)
	b.subscribe(b.toFiles(store))
	for n := range 95 {
		b.record(fmt.Sprint("d", n%4), n/4)
	}
	stops := []func(){b.start(), b.start()}
	for n := range 100 {
		b.record(fmt.Sprint("e", n%4), n/4)
		if n%10 == 5 {
			stops[n/10%2]()
			stops[n/10%2] = b.start()
		}
	}
	b.requireFiles(store)
	require.Greater(t, len(store.Objects()), 19)
}

// TestFilesAtEveryEffect injects a fault at each event that records a file.
func TestFilesAtEveryEffect(t *testing.T) {
	faults.AtEveryEffect(t, 3, func(t *testing.T, plan *faults.Plan, at int) {
		b, store := newHarness(t), s3test.Start(t)
		b.subscribe(b.toFiles(store))
		for n := range 25 {
			b.record("d", n)
		}
		b.plan.Store(plan)
		stop := b.start()
		b.eventually(func() bool { return len(plan.Steps()) >= at && (at > 0 || len(store.Objects()) == 3) })
		stop()
		b.plan.Store(nil)
		before := store.Objects()
		b.start()
		b.requireFiles(store)
		for key, content := range before {
			require.Equal(t, content, store.Objects()[key], "a repetition writes the identical object")
		}
	})
}

// TestFilesReportProblems checks that a subscription is disabled when its object store refuses the
// credentials, and writes its files when they are corrected.
func TestFilesReportProblems(t *testing.T) {
	b, store := newHarness(t), s3test.Start(t)
	b.subscribe(b.toFiles(store))
	right := store.SecretKey
	store.SecretKey = "another"
	b.record("d", 0)
	b.start()
	b.eventually(func() bool { return b.subscription().State == domain.SubscriptionDisabledState })
	require.Contains(t, b.subscription().Status.Message, "refuses access")
	require.NotNil(t, b.subscription().File, "the range is recorded")
	store.SecretKey = right
	b.on(domain.ResumeSubscription{})
	b.requireFiles(store)
}

// BenchmarkBackfill measures the events per second that are read from a log, in memory or on JetStream,
// encoded and written to an object store on this machine.
func BenchmarkBackfill(b *testing.B) {
	logs := map[string]func(testing.TB) eventlog.Log{
		"memory":    func(testing.TB) eventlog.Log { return eventlog.NewMemory() },
		"JetStream": func(t testing.TB) eventlog.Log { return servertest.StartLog(t) },
	}
	for _, log := range slices.Sorted(maps.Keys(logs)) {
		for _, format := range []string{domain.EventFilesJSONL, domain.EventFilesParquet} {
			b.Run("log="+log+"/format="+format, func(b *testing.B) { backfill(b, logs[log](b), format) })
		}
	}
}

func backfill(b *testing.B, log eventlog.Log, format string) {
	const events, datasets, clients = 100_000, 1024, 64
	harness, store := newHarnessOn(b, log), s3test.Start(b)
	harness.policy = DefaultPolicy
	harness.policy.FileInterval = time.Millisecond
	spec := harness.toFiles(store)
	spec.Files.Format = format
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			for n := client; n < events; n += clients {
				harness.record(fmt.Sprint("d", n%datasets), n/datasets)
			}
		})
	}
	all.Wait()
	var used time.Duration
	for round := range b.N {
		b.StopTimer()
		if round > 0 {
			harness.on(domain.DeleteSubscription{})
		}
		dir := fmt.Sprintf("log%d/", round)
		spec.Files.ExternalURL = store.Address(dir)
		harness.subscribe(spec)
		b.StartTimer()
		before := cpuTime(b)
		stop := harness.start()
		require.Eventually(b, func() bool {
			f := harness.subscription().File
			if f == nil || f.Last < events {
				return false
			}
			_, written := store.Objects()[dir+nameOf(*f, format)]
			return written
		}, 5*time.Minute, 10*time.Millisecond)
		stop()
		used += cpuTime(b) - before
	}
	b.ReportMetric(float64(used.Microseconds())/float64(events*b.N), "cpu-µs/event")
	b.ReportMetric(events*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// cpuTime returns the CPU time of the process, which does not depend on other load of the machine.
func cpuTime(b *testing.B) time.Duration {
	var usage unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
