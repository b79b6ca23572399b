package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"anneal/api/rest"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/internal/testutil"
	"anneal/projections"
)

const writesPerSecond = 500 // writes while lists are measured, unless $ANNEAL_LIST_WRITES says otherwise

// BenchmarkLists measures whole requests, without a connection, in an account with n datasets,
// while a writer updates and creates datasets. The requests read one dataset, or pages of 50
// datasets with an exact total. For comparison, it measures a lower bound of each request in the
// same world: encoding the same response or, where every row must be read, one pass over the rows
// that compares a field. cpu-ms is the CPU time of the whole process during a request, on all
// cores, including the writer. It is more reliable than wall time on a shared machine.
// bytes/resource is the memory of a dataset with its index entries.
func BenchmarkLists(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			before := heapBytes()
			s, key := serverWithDatasets(b, n)
			defer s.Close()
			held := float64(heapBytes()-before) / float64(n)
			get := func(path string) []byte {
				r := httptest.NewRequest(http.MethodGet, "/v1/accounts/acme/datasets"+path, nil)
				r.Header.Set("Authorization", "Bearer "+key)
				w := httptest.NewRecorder()
				if s.ServeHTTP(w, r); w.Code != http.StatusOK {
					b.Fatalf("%d %s", w.Code, w.Body)
				}
				return w.Body.Bytes()
			}
			var rows []*projections.Row[domain.Dataset]
			for row := range s.World.View().Datasets.In("acme") {
				rows = append(rows, row)
			}
			passed := 0
			pass := func() {
				for _, row := range rows {
					if row.State.ExampleCount > 1000 {
						passed++
					}
				}
			}
			stop := writeOn(b, s.World, n)
			defer stop()
			for _, c := range []struct {
				name, path string
				limit      func()
			}{
				{"get", fmt.Sprintf("/d%07d", n/2), encoding[rest.Dataset](b, get(fmt.Sprintf("/d%07d", n/2)))},
				{"by name", "", encoding[datasetPage](b, get(""))},
				{"newest first", "?orderBy=createTime%20desc", encoding[datasetPage](b, get("?orderBy=createTime%20desc"))},
				{"filtered", "?filter=displayName=42%20AND%20exampleCount%3E1000", pass},
				{"ordered", "?orderBy=exampleCount%20desc", pass},
				{"filtered and ordered", "?filter=displayName:4&orderBy=displayName,exampleCount%20desc", pass},
				{"a field computed for responses", "?filter=format=FORMAT_UNSPECIFIED", pass},
				{"a word", "?filter=%2242%22", pass},
				{"a word of a name", "?filter=%22sets/d01%22", pass},
				{"a word that no dataset has", "?filter=zebra", pass},
				{"a word with a star", "?filter=%224*2%22", pass},
				{"created by", "?filter=createdBy=%22admin@acme.example%22", pass},
				{"ordered by creator", "?orderBy=createdBy%20desc", pass},
				{"status", "?filter=status.code=OK%20AND%20exampleCount%3C100", pass},
				{"a field that is set", "?filter=userUploaded:*", pass},
				{"eight fields", "?filter=state=UPLOADING%20AND%20displayName:4%20AND%20exampleCount%3E9%20AND%20" +
					"estimatedTokenCount=0%20AND%20rowShape=%22%22%20AND%20averageTurnCount=0%20AND%20" +
					"createdBy:acme%20AND%20status.message!=x", pass},
			} {
				b.Run(c.name, func(b *testing.B) {
					get(c.path) // builds what later lists read
					var took, limits []time.Duration
					var cpu time.Duration
					for b.Loop() {
						spent := cpuTime()
						took = append(took, timed(func() { get(c.path) }))
						cpu += cpuTime() - spent
						limits = append(limits, timed(c.limit))
					}
					slices.Sort(took)
					slices.Sort(limits)
					p50 := took[len(took)/2]
					b.ReportMetric(float64(p50.Microseconds())/1e3, "p50-ms")
					b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1e3, "p99-ms")
					b.ReportMetric(float64(cpu.Microseconds())/1e3/float64(len(took)), "cpu-ms")
					b.ReportMetric(float64(p50)/float64(limits[len(limits)/2]), "x-limit")
					b.ReportMetric(held, "B/resource")
					b.ReportMetric(residentMiB(), "RSS-MiB")
					b.ReportMetric(0, "ns/op") // hides the sum of both measurements, which is meaningless
				})
			}
			runtime.KeepAlive(passed)
			b.Logf("%.0f B/resource with what the lists have built", float64(heapBytes()-before)/float64(n))
		})
	}
}

// datasetPage is the response of a list of datasets.
type datasetPage struct {
	Datasets      []rest.Dataset `json:"datasets"`
	NextPageToken string         `json:"nextPageToken"`
	TotalSize     int            `json:"totalSize"`
}

// encoding returns a function that encodes the value of type T in a response, to measure the
// encoding alone.
func encoding[T any](b *testing.B, response []byte) func() {
	var v T
	require.NoError(b, json.Unmarshal(response, &v))
	return func() {
		if _, err := json.Marshal(v); err != nil {
			b.Error(err)
		}
	}
}

func timed(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

// writeOn updates one of n datasets and creates a dataset, in turns, until stop is called.
func writeOn(b *testing.B, world *projections.World, n int) (stop func()) {
	const at = 4 // writes per batch
	rate := testutil.Variable(b, "ANNEAL_LIST_WRITES", writesPerSecond)
	if rate == 0 {
		return func() {}
	}
	done, stopped := make(chan struct{}), make(chan struct{})
	ticks := time.NewTicker(at * time.Second / time.Duration(rate))
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			if i%at == 0 {
				select {
				case <-done:
					return
				case <-ticks.C:
				}
			}
			name := domain.NewName("acme", domain.Datasets.Collection, fmt.Sprintf("d%07d", i*7919%n))
			var command domain.Command[domain.Dataset] = domain.UpdateDataset{
				DatasetSpec: domain.DatasetSpec{DisplayName: fmt.Sprint("w", i), ExampleCount: domain.Count(i)}}
			if i%2 == 0 {
				name = domain.NewName("acme", domain.Datasets.Collection, fmt.Sprintf("w%07d-%d", i*7919%n, i))
				command = domain.CreateDataset{DatasetSpec: domain.DatasetSpec{DisplayName: fmt.Sprint(i % 97)}}
			}
			intent := domain.Intend(domain.Datasets, name, command)
			state, _ := world.Row(name)
			record, err := intent.Decide(state, epoch)
			if err == nil {
				err = world.Apply(eventlog.Event{Record: record, Position: world.Position() + 1, ID: "x", Name: name,
					Time: epoch.Add(time.Duration(i) * time.Second)})
			}
			if err != nil {
				b.Error(err)
				<-done
				return
			}
		}
	}()
	return func() { close(done); <-stopped; ticks.Stop() }
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// cpuTime returns the CPU time of the process so far, on all cores.
func cpuTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// residentMiB returns the resident memory of the process in MiB, or 0 when it is not known.
func residentMiB() float64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, resident int
	if _, err := fmt.Sscan(string(data), &size, &resident); err != nil {
		return 0
	}
	return float64(resident*os.Getpagesize()) / (1 << 20)
}
