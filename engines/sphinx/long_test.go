package sphinx_test

import (
	"bytes"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/sandbox"
	"anneal/engines/sphinx"
)

// readers is all that people read in the test data, with pauses between.
func readers(t testing.TB) (pcm []byte) {
	needs(t, librivox+"transcription", "pocketsphinx-testdata")
	for name := range transcripts(t) {
		pcm = append(append(pcm, recording(t, librivox+name+".wav")...), make([]byte, engines.SampleRate)...)
	}
	return pcm
}

// again is a recording that repeats another for some seconds.
func again(pcm []byte, seconds float64) io.Reader {
	var rounds []io.Reader
	for left := int64(seconds*engines.SampleRate) * 2; left > 0; left -= int64(len(pcm)) {
		rounds = append(rounds, bytes.NewReader(pcm[:min(left, int64(len(pcm)))]))
	}
	return io.MultiReader(rounds...)
}

// spent is the time of processors that ended children took, and the memory of
// the largest of them.
func spent(t testing.TB) (cpu time.Duration, mostKiB int64) {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), u.Maxrss
}

// plain starts programs without a sandbox: what they spend is told to us only then.
var plain = sandbox.NewRunner(sandbox.RunnerOptions{Plain: true})

// BenchmarkListen listens to two minutes of people on all processors, with a sandbox and without.
func BenchmarkListen(b *testing.B) {
	b.Run("plain", func(b *testing.B) { benchmarkListen(b, plain) })
	b.Run("confined", func(b *testing.B) { benchmarkListen(b, nil) })
}

func benchmarkListen(b *testing.B, runner *sandbox.Runner) {
	const seconds = 120
	pcm := readers(b)
	began, _ := spent(b)
	l := load(b, sphinx.Options{Runner: runner})
	for b.Loop() {
		_, err := l.Transcribe(b.Context(), again(pcm, seconds), engines.TranscriptionOptions{},
			func(engines.TranscriptEvent) error { return nil })
		require.NoError(b, err)
	}
	b.StopTimer()
	require.NoError(b, l.Close())
	cpu, _ := spent(b)
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/seconds, "s/s-of-sound")
	if runner == plain {
		b.ReportMetric((cpu-began).Seconds()/float64(b.N)/seconds, "cpu-s/s-of-sound")
	}
	b.ReportMetric(0, "ns/op")
}

// TestHours listens to as many hours as ANNEAL_HOURS says, and wants no more
// memory for them than for five minutes.
func TestHours(t *testing.T) {
	hours, err := strconv.ParseFloat(os.Getenv("ANNEAL_HOURS"), 64)
	if err != nil {
		t.Skip("takes long: say how many hours of sound in ANNEAL_HOURS")
	}
	pcm := readers(t)
	hear := func(seconds float64) (cpu time.Duration, programKiB int64, heap uint64) {
		before, _ := spent(t)
		l := load(t, sphinx.Options{Runner: plain})
		steps, told := 0, 0.0
		began := time.Now()
		_, err := l.Transcribe(t.Context(), again(pcm, seconds), engines.TranscriptionOptions{},
			func(step engines.TranscriptEvent) error {
				require.GreaterOrEqual(t, step.Seconds, told)
				if steps++; step.Seconds-told > 0 && steps%100 == 0 {
					var m runtime.MemStats
					runtime.GC()
					runtime.ReadMemStats(&m)
					heap = max(heap, m.HeapAlloc)
					t.Logf("%.0f s of sound in %.0f s, %d MiB in use", step.Seconds, time.Since(began).Seconds(), m.HeapAlloc>>20)
				}
				told = step.Seconds
				return nil
			})
		require.NoError(t, err)
		require.InDelta(t, seconds, told, 1)
		require.NoError(t, l.Close())
		after, most := spent(t)
		return after - before, most, heap
	}
	_, few, _ := hear(300)
	cpu, many, heap := hear(3600 * hours)
	ratio := cpu.Seconds() / (3600 * hours)
	t.Logf("%.2f hours: %.3f s of a processor for a second of sound; programs of %d MiB, after five minutes %d MiB; at "+
		"most %d MiB of ours", hours, ratio, many>>10, few>>10, heap>>20)
	require.Less(t, ratio/2, 0.5, "two processors are to listen twice as fast as one speaks")
	require.Less(t, float64(many), 1.25*float64(few))
	require.Less(t, heap, uint64(64<<20))
}
