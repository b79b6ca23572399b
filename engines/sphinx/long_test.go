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

// allRecordings returns all recordings of the test data, with pauses between them.
func allRecordings(t testing.TB) (pcm []byte) {
	skipWithout(t, librivox+"transcription", "pocketsphinx-testdata")
	for name := range expectedTexts(t) {
		pcm = append(append(pcm, recording(t, librivox+name+".wav")...), make([]byte, engines.SampleRate)...)
	}
	return pcm
}

// repeat repeats a recording for some seconds.
func repeat(pcm []byte, seconds float64) io.Reader {
	var rounds []io.Reader
	for left := int64(seconds*engines.SampleRate) * 2; left > 0; left -= int64(len(pcm)) {
		rounds = append(rounds, bytes.NewReader(pcm[:min(left, int64(len(pcm)))]))
	}
	return io.MultiReader(rounds...)
}

// childUsage returns the total CPU time of exited child processes, and the maximum memory of one.
func childUsage(t testing.TB) (cpu time.Duration, maxKiB int64) {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), u.Maxrss
}

// plain starts programs without a sandbox, because only then they are children of this process,
// whose usage childUsage returns.
var plain = sandbox.NewRunner(sandbox.RunnerOptions{Plain: true})

// BenchmarkTranscribe transcribes two minutes of speech on all cores, with and without a sandbox.
func BenchmarkTranscribe(b *testing.B) {
	b.Run("plain", func(b *testing.B) { benchmarkTranscribe(b, plain) })
	b.Run("confined", func(b *testing.B) { benchmarkTranscribe(b, nil) })
}

func benchmarkTranscribe(b *testing.B, runner *sandbox.Runner) {
	const seconds = 120
	pcm := allRecordings(b)
	began, _ := childUsage(b)
	l := load(b, sphinx.Options{Runner: runner})
	for b.Loop() {
		_, err := l.Transcribe(b.Context(), repeat(pcm, seconds), engines.TranscriptionOptions{},
			func(engines.TranscriptEvent) error { return nil })
		require.NoError(b, err)
	}
	b.StopTimer()
	require.NoError(b, l.Close())
	cpu, _ := childUsage(b)
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/seconds, "s/s-of-audio")
	if runner == plain {
		b.ReportMetric((cpu-began).Seconds()/float64(b.N)/seconds, "cpu-s/s-of-audio")
	}
	b.ReportMetric(0, "ns/op")
}

// TestLongRecording checks that transcribing ANNEAL_HOURS hours of audio takes no more memory than
// transcribing five minutes.
func TestLongRecording(t *testing.T) {
	hours, err := strconv.ParseFloat(os.Getenv("ANNEAL_HOURS"), 64)
	if err != nil {
		t.Skip("takes long: set ANNEAL_HOURS to the hours of audio to transcribe")
	}
	pcm := allRecordings(t)
	measure := func(seconds float64) (cpu time.Duration, programKiB int64, heap uint64) {
		before, _ := childUsage(t)
		l := load(t, sphinx.Options{Runner: plain})
		steps, last := 0, 0.0
		began := time.Now()
		_, err := l.Transcribe(t.Context(), repeat(pcm, seconds), engines.TranscriptionOptions{},
			func(step engines.TranscriptEvent) error {
				require.GreaterOrEqual(t, step.Seconds, last)
				if steps++; step.Seconds-last > 0 && steps%100 == 0 {
					var m runtime.MemStats
					runtime.GC()
					runtime.ReadMemStats(&m)
					heap = max(heap, m.HeapAlloc)
					t.Logf("%.0f s of audio in %.0f s, %d MiB in use", step.Seconds, time.Since(began).Seconds(), m.HeapAlloc>>20)
				}
				last = step.Seconds
				return nil
			})
		require.NoError(t, err)
		require.InDelta(t, seconds, last, 1)
		require.NoError(t, l.Close())
		after, maxKiB := childUsage(t)
		return after - before, maxKiB, heap
	}
	_, shortKiB, _ := measure(300)
	cpu, longKiB, heap := measure(3600 * hours)
	ratio := cpu.Seconds() / (3600 * hours)
	t.Logf("%.2f hours: %.3f CPU seconds per second of audio; PocketSphinx uses %d MiB, for five minutes %d MiB; "+
		"the heap at most %d MiB", hours, ratio, longKiB>>10, shortKiB>>10, heap>>20)
	require.Less(t, ratio/2, 0.5, "two cores transcribe at least twice as fast as real time")
	require.Less(t, float64(longKiB), 1.25*float64(shortKiB))
	require.Less(t, heap, uint64(64<<20))
}
