package subscriptions

import (
	"bytes"
	"fmt"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/blobs/external/s3test"
	"anneal/domain"
)

// subscribeMany creates n subscriptions to files, each in a directory of its own, and returns the
// directories.
func (b *harness) subscribeMany(store *s3test.Server, spec domain.SubscriptionSpec, n int) (dirs []string) {
	for i := range n {
		dir := fmt.Sprintf("many%d/", i)
		files := *spec.Files
		files.ExternalURL, spec.Files = store.Address(dir), &files
		b.do(domain.Intend(domain.Subscriptions, domain.NewName("acme", domain.Subscriptions.Collection, fmt.Sprint("s", i)),
			domain.Command[domain.Subscription](domain.CreateSubscription{SubscriptionSpec: spec})))
		dirs = append(dirs, dir)
	}
	return dirs
}

// lineCount returns the number of lines in the objects of a directory.
func lineCount(store *s3test.Server, dir string) (lines int) {
	for key, content := range store.Objects() {
		if strings.HasPrefix(key, dir) {
			lines += strings.Count(content, "\n")
		}
	}
	return lines
}

// TestSubscriptionsShareSlots writes the old events of more subscriptions than there are slots, and then
// new ones, with one slot and files that are larger than those without a slot. Each subscription gets
// each event once.
func TestSubscriptionsShareSlots(t *testing.T) {
	const subscriptions, events = 6, 300
	b, store := newHarness(t), s3test.Start(t)
	b.policy.LargeFiles, b.policy.FileEvents = 1, 1000
	spec := b.toFiles(store)
	description := strings.Repeat("x", 1000)
	record := func(from, to int) {
		for n := from; n < to; n++ {
			b.do(domain.Intend(domain.Models, domain.NewName("acme", domain.Models.Collection, fmt.Sprint("m", n)),
				domain.Command[domain.Model](domain.CreateModel{ModelSpec: domain.ModelSpec{Description: description,
					Kind: domain.BaseModel}})))
		}
	}
	spec.EventTypes = []string{"model.*"}
	record(0, events)
	dirs := b.subscribeMany(store, spec, subscriptions)
	b.start()
	record(events, 2*events)
	for _, dir := range dirs {
		b.eventually(func() bool { return lineCount(store, dir) >= 2*events })
		require.Equal(t, 2*events, lineCount(store, dir))
	}
}

// TestSlotsAreTakenInTurns checks that no more than the given number of buffers are in use, and that a
// caller that does not wait gets none while others wait.
func TestSlotsAreTakenInTurns(t *testing.T) {
	const n = 3
	s := newSlots(n)
	var mu sync.Mutex
	used, maxUsed := map[*bytes.Buffer]bool{}, 0
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 100 {
				buffer, err := s.take(t.Context())
				assert.NoError(t, err)
				mu.Lock()
				assert.False(t, used[buffer])
				assert.Zero(t, buffer.Len())
				used[buffer] = true
				maxUsed = max(maxUsed, len(used))
				mu.Unlock()
				buffer.WriteString("x")
				mu.Lock()
				delete(used, buffer)
				mu.Unlock()
				s.release(buffer)
			}
		})
	}
	all.Wait()
	require.LessOrEqual(t, maxUsed, n)
	for range n {
		_, ok := s.tryTake()
		require.True(t, ok)
	}
	_, ok := s.tryTake()
	require.False(t, ok)
	require.False(t, s.contended())
}

// BenchmarkBackfillMemory measures by how much the memory in use rises at most while several
// subscriptions write 100,000 old events each, in turns with garbage collections.
func BenchmarkBackfillMemory(b *testing.B) {
	for _, n := range []int{1, 4, 8, 16} {
		b.Run(fmt.Sprintf("subscriptions=%d", n), func(b *testing.B) {
			const events, datasets, clients = 100_000, 1024, 64
			harness, store := newHarness(b), s3test.Start(b)
			store.Discards = true
			harness.policy = DefaultPolicy
			harness.policy.FileInterval = time.Millisecond
			spec := harness.toFiles(store)
			var all sync.WaitGroup
			for client := range clients {
				all.Go(func() {
					for n := client; n < events; n += clients {
						harness.record(fmt.Sprint("d", n%datasets), n/datasets)
					}
				})
			}
			all.Wait()
			harness.subscribeMany(store, spec, n)
			before, peak := liveBytes(), uint64(0)
			stop, began := harness.start(), time.Now()
			require.Eventually(b, func() bool {
				peak = max(peak, liveBytes())
				for row := range harness.world.View().Subscriptions.In("acme") {
					if f := row.State.File; f == nil || f.Last < events {
						return false
					}
				}
				return true
			}, 10*time.Minute, 10*time.Millisecond)
			took := time.Since(began)
			stop()
			b.ReportMetric(float64(int64(peak)-int64(before))/(1<<20), "MiB")
			b.ReportMetric(float64(events*n)/took.Seconds(), "events/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// liveBytes returns the size of the objects that are in use.
func liveBytes() uint64 {
	runtime.GC()
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
