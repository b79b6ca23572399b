package bench

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A backend runs no-op jobs.
type backend interface {
	// create creates a job and returns when it is durable. The number identifies the job.
	create(number int64) error
	// completed returns a channel that is closed when the job has completed. It is called before
	// create.
	completed(number int64) <-chan struct{}
}

// A waiters value closes a channel for each completed job.
type waiters struct {
	mu  sync.Mutex
	all map[int64]chan struct{}
}

func newWaiters() *waiters { return &waiters{all: map[int64]chan struct{}{}} }

func (w *waiters) completed(number int64) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all[number] = make(chan struct{})
	return w.all[number]
}

func (w *waiters) complete(number int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if done := w.all[number]; done != nil {
		close(done)
		delete(w.all, number)
	}
}

// patience is the time in which every job must complete.
const patience = 2 * time.Minute

// A result is the outcome of one load.
type result struct {
	perSecond float64
	latencies []time.Duration // from the request to create a job to its completion, sorted
	created   float64         // creations per second, if all jobs are created first
}

func (r result) quantile(q float64) time.Duration {
	return r.latencies[min(len(r.latencies)-1, int(q*float64(len(r.latencies))))]
}

// run creates n jobs with concurrent clients. In a closed loop each client waits for the completion
// of its job before it creates the next; otherwise it creates jobs as fast as it can.
func run(t testing.TB, b backend, next *atomic.Int64, clients, n int, closed bool) result {
	var left atomic.Int64
	left.Store(int64(n))
	var mu sync.Mutex
	var latencies []time.Duration
	var creators, all sync.WaitGroup
	began := time.Now()
	for range clients {
		creators.Go(func() {
			for left.Add(-1) >= 0 {
				number := next.Add(1)
				done, sent := b.completed(number), time.Now()
				if err := b.create(number); err != nil {
					t.Errorf("create job %d: %v", number, err)
					return
				}
				wait := func() {
					select {
					case <-done:
					case <-time.After(patience):
						t.Errorf("job %d is not complete after %s", number, patience)
					}
					mu.Lock()
					latencies = append(latencies, time.Since(sent))
					mu.Unlock()
				}
				if closed {
					wait()
				} else {
					all.Go(wait)
				}
			}
		})
	}
	creators.Wait()
	created := time.Since(began)
	all.Wait()
	took := time.Since(began)
	require.Len(t, latencies, n)
	slices.SortFunc(latencies, cmp.Compare)
	return result{float64(n) / took.Seconds(), latencies, float64(n) / created.Seconds()}
}

// scale multiplies the number of jobs of each load: ANNEAL_SCALE, 1 by default.
var scale = func() int {
	n, _ := strconv.Atoi(os.Getenv("ANNEAL_SCALE"))
	return max(1, n)
}()

// TestJobs measures jobs per second and latencies of anneal and of River. The two alternate, so
// that both meet the same state of the machine.
func TestJobs(t *testing.T) {
	backends := map[string]backend{"anneal": newAnneal(t), "River": newRiver(t)}
	numbers := map[string]*atomic.Int64{"anneal": {}, "River": {}}
	for name, b := range backends { // connections, prepared statements, caches
		run(t, b, numbers[name], 8, 50, true)
	}
	fmt.Printf("| clients | backend | jobs/s | p50 | p99 |\n|---|---|---|---|---|\n")
	for _, load := range []struct {
		clients, jobs int
		closed        bool
	}{{1, 100 * scale, true}, {16, 500 * scale, true}, {64, 1000 * scale, true}, {64, 1000 * scale, false}} {
		for _, name := range []string{"River", "anneal"} {
			r := run(t, backends[name], numbers[name], load.clients, load.jobs, load.closed)
			clients := fmt.Sprint(load.clients)
			if !load.closed {
				clients = fmt.Sprintf("%d, all at once (%.0f created/s)", load.clients, r.created)
			}
			fmt.Printf("| %s | %s | %.0f | %.1f ms | %.1f ms |\n", clients, name, r.perSecond,
				float64(r.quantile(0.5).Microseconds())/1000, float64(r.quantile(0.99).Microseconds())/1000)
		}
	}
}
