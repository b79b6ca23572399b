package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestProfile runs jobs of anneal only, and prints what a job costs: CPU time of the process (with
// the clients, the control plane and the agents) and events. ANNEAL_LOADS lists the loads as
// CLIENTSxJOBS, or CLIENTSxJOBSopen for clients that do not wait for the completion of a job before
// they create the next. Use it with -cpuprofile, or below "strace -f -c" to count fsync calls.
func TestProfile(t *testing.T) {
	loads := os.Getenv("ANNEAL_LOADS")
	if loads == "" {
		loads = "16x300"
	}
	a, numbers := newAnneal(t), &atomic.Int64{}
	for _, load := range strings.Fields(loads) {
		left, right, _ := strings.Cut(load, "x")
		clients, err := strconv.Atoi(left)
		require.NoError(t, err)
		right, open := strings.CutSuffix(right, "open")
		jobs, err := strconv.Atoi(right)
		require.NoError(t, err)
		events, used := a.world.Position(), cpuTime(t)
		r := run(t, a, numbers, clients, jobs, !open)
		spent := cpuTime(t) - used
		fmt.Printf("%s: %.0f jobs/s, p50 %s, p99 %s, %.2f ms of CPU time and %.1f events a job\n", load,
			r.perSecond, r.quantile(0.5).Round(time.Millisecond), r.quantile(0.99).Round(time.Millisecond),
			float64(spent.Microseconds())/1000/float64(jobs), float64(a.world.Position()-events)/float64(jobs))
	}
}

// cpuTime returns the CPU time that the process has used.
func cpuTime(t *testing.T) time.Duration {
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
