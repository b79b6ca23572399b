package projections

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/archive"
	"anneal/internal/testutil"
	"anneal/projections/toytest"
)

// pastEvents returns the number of events of BenchmarkViewAt.
func pastEvents(b *testing.B) int { return testutil.Variable(b, "ANNEAL_AS_OF_EVENTS", 200_000) }

// benchEventAt returns the event at a position of BenchmarkViewAt: a quarter of the events are of
// deployments that have three events in a row, half of deployments with 1,000 events scattered over the log,
// and a quarter of 10 deployments.
func benchEventAt(b *testing.B, random *rand.Rand, templates []eventlog.Write, position, total int,
	seen map[int]bool) eventlog.Event {
	number, kind := 0, 1+position%2
	switch position % 8 {
	case 0, 1:
		number, kind = 1_000_000+position/8, position%8
		if position%8 == 1 {
			kind = 2
		}
	case 2, 3, 4, 5:
		number = 100 + random.IntN(max(1, total/2_000))
	default:
		number = random.IntN(10)
	}
	if !seen[number] && number < 1_000_000 {
		seen[number], kind = true, 0
	}
	e := templates[kind].Event
	e.Position, e.ID = uint64(position), fmt.Sprintf("01a20ed3-c3fa-79ab-82b0-%012d", position)
	e.Name = domain.NewName("acme", "deployments", fmt.Sprintf("d-%07d", number))
	e.Time = toytest.Epoch.Add(time.Duration(position) * time.Millisecond)
	return e
}

// BenchmarkViewAt measures reads of earlier states of a log with $ANNEAL_AS_OF_EVENTS events.
func BenchmarkViewAt(b *testing.B) {
	total, random := pastEvents(b), rand.New(rand.NewPCG(1, 1))
	templates := []eventlog.Write{toytest.DeploymentEvent(b, 0), toytest.DeploymentEvent(b, 1),
		toytest.DeploymentEvent(b, 2)}
	dir := b.TempDir()
	a, err := archive.Open(dir)
	require.NoError(b, err)
	defer a.Close()
	w := NewWorld()
	require.NoError(b, w.Archive(a))
	seen := map[int]bool{}
	begin := time.Now()
	for position := 1; position <= total; position++ {
		require.NoError(b, w.Apply(benchEventAt(b, random, templates, position, total, seen)))
	}
	require.NoError(b, a.Flush())
	b.Logf("folded and archived %d events of %d resources in %.1f s", total, w.View().Deployments.Len(),
		time.Since(begin).Seconds())
	for _, file := range []string{"frames-1", "links-1"} {
		info := testutil.Stat(b, filepath.Join(dir, file))
		b.Logf("%s: %.1f bytes per event", file, float64(info.Size())/float64(total))
	}
	var names []domain.Name
	for row := range w.View().Deployments.All() {
		names = append(names, row.Name)
	}
	for kind, pick := range map[string]func() domain.Name{
		"any":       func() domain.Name { return names[random.IntN(len(names))] },
		"scattered": func() domain.Name { return names[10+random.IntN(max(1, total/2_000))] },
		"hot":       func() domain.Name { return names[random.IntN(10)] },
	} {
		b.Run("get/"+kind, func(b *testing.B) {
			var times []time.Duration
			for b.Loop() {
				name, begin := pick(), time.Now()
				v := mustViewAt(b, w, 1+random.Uint64N(uint64(total)))
				v.Deployments.Get(name)
				require.NoError(b, v.Past.Err())
				times = append(times, time.Since(begin))
			}
			reportPercentiles(b, times)
		})
	}
	for _, part := range []int{1, 10, 50, 90, 99} {
		b.Run(fmt.Sprintf("list/%d%%", part), func(b *testing.B) {
			var times []time.Duration
			rows := 0
			for b.Loop() {
				position, begin := uint64(total*part/100)+random.Uint64N(500), time.Now()
				v := mustViewAt(b, w, min(position, uint64(total)))
				rows = v.Deployments.Count("acme")
				require.NoError(b, v.Past.Err())
				times = append(times, time.Since(begin))
			}
			b.ReportMetric(float64(rows), "rows")
			reportPercentiles(b, times)
		})
	}
}

func reportPercentiles(b *testing.B, times []time.Duration) {
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, "p99-ms")
}
