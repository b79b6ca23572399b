package sound

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// noiseOf returns white noise. loud is its peak amplitude, from 0 to 1.
func noiseOf(source *rand.Rand, seconds, loud float64) []byte {
	var pcm []byte
	for range int(seconds * engines.SampleRate) {
		pcm = binary.LittleEndian.AppendUint16(pcm, uint16(int16(loud*32767*(2*source.Float64()-1))))
	}
	return pcm
}

func splitAll(t *testing.T, r io.Reader, longest time.Duration) (all []Chunk) {
	for c := NewSplitter(r, longest); ; {
		s, err := c.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, s)
	}
}

// TestSplitsAtPauses splits noise of 1.5 to 4 s that alternates with pauses of background noise,
// and checks that all splits are in pauses.
func TestSplitsAtPauses(t *testing.T) {
	for name, background := range map[string]float64{"digital silence": 0, "quiet": 0.001, "noisy": 0.03} {
		t.Run(name, func(t *testing.T) {
			source := rand.New(rand.NewPCG(1, 2))
			var pcm []byte
			var pauses [][2]float64
			for len(pcm) < 180*2*engines.SampleRate {
				pcm = append(pcm, noiseOf(source, 1.5+2.5*source.Float64(), 0.1+0.3*source.Float64())...)
				from := float64(len(pcm)/2) / engines.SampleRate
				pcm = append(pcm, noiseOf(source, 0.35+0.3*source.Float64(), background)...)
				pauses = append(pauses, [2]float64{from, float64(len(pcm)/2) / engines.SampleRate})
			}
			all := splitAll(t, iotest.HalfReader(bytes.NewReader(pcm)), 30*time.Second)
			var joined []byte
			for i, s := range all {
				require.InDelta(t, float64(len(joined)/2)/engines.SampleRate, s.Start, 1e-9)
				require.LessOrEqual(t, s.Seconds(), 30.0)
				require.False(t, s.Silent)
				joined = append(joined, s.PCM...)
				if i > 0 {
					require.True(t, within(s.Start, pauses), "split at %.2f s", s.Start)
					require.Greater(t, all[i-1].Seconds(), 20.0, "late pauses are preferred")
				}
			}
			require.Equal(t, pcm, joined)
		})
	}
}

func within(at float64, pauses [][2]float64) bool {
	for _, p := range pauses {
		if at >= p[0] && at <= p[1] {
			return true
		}
	}
	return false
}

func TestSplitsWithoutPauses(t *testing.T) {
	pcm := noiseOf(rand.New(rand.NewPCG(1, 2)), 70, 0.3)
	for _, s := range splitAll(t, bytes.NewReader(append(pcm, 1)), 10*time.Second) {
		require.LessOrEqual(t, s.Seconds(), 10.0)
		require.Greater(t, s.Seconds(), 0.1)
	}
}

func TestSilentChunks(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 2))
	for name, c := range map[string]struct {
		pcm    []byte
		silent bool
	}{
		"digital silence": {make([]byte, 32000), true},
		"one bit":         {noiseOf(source, 1, 0.0005), true},
		"a click":         {append(make([]byte, 32000), noiseOf(source, 0.02, 0.3)...), false},
		"whispering":      {noiseOf(source, 1, 0.01), false},
	} {
		all := splitAll(t, bytes.NewReader(c.pcm), 30*time.Second)
		require.Len(t, all, 1, name)
		require.Equal(t, c.silent, all[0].Silent, name)
	}
	require.Empty(t, splitAll(t, bytes.NewReader(nil), 30*time.Second))
	require.Empty(t, splitAll(t, bytes.NewReader([]byte{7}), 30*time.Second), "an incomplete sample is dropped")
}

func TestSplitterReturnsReadErrors(t *testing.T) {
	broken := errors.New("broken")
	_, err := NewSplitter(io.MultiReader(bytes.NewReader(tones(1)), iotest.ErrReader(broken)), time.Minute).Next()
	require.ErrorIs(t, err, broken)
}

// TestSplitterMemoryIsConstant checks that the memory for splitting three hours of noise is
// bounded.
func TestSplitterMemoryIsConstant(t *testing.T) {
	minute := noiseOf(rand.New(rand.NewPCG(1, 2)), 60, 0.3)
	var rounds []io.Reader
	for range 180 {
		rounds = append(rounds, bytes.NewReader(minute))
	}
	c := NewSplitter(io.MultiReader(rounds...), 30*time.Second)
	var maxHeap uint64
	seconds := 0.0
	for n := 0; ; n++ {
		s, err := c.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		seconds += s.Seconds()
		if n%50 == 0 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			maxHeap = max(maxHeap, m.HeapAlloc)
		}
	}
	require.InDelta(t, 180*60, seconds, 1e-6)
	require.Less(t, maxHeap, uint64(32<<20))
}
