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

// hum is noise of a loudness between 0 and 1.
func hum(source *rand.Rand, seconds, loud float64) []byte {
	var pcm []byte
	for range int(seconds * engines.SampleRate) {
		pcm = binary.LittleEndian.AppendUint16(pcm, uint16(int16(loud*32767*(2*source.Float64()-1))))
	}
	return pcm
}

func stretches(t *testing.T, r io.Reader, longest time.Duration) (all []Chunk) {
	for c := NewSplitter(r, longest); ; {
		s, err := c.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, s)
	}
}

// TestCutsLieInPauses speaks for 1.5 to 4 s at a time, with pauses between them
// that are as noisy as the room, and wants every cut in a pause.
func TestCutsLieInPauses(t *testing.T) {
	for name, room := range map[string]float64{"digital silence": 0, "quiet room": 0.001, "noisy room": 0.03} {
		t.Run(name, func(t *testing.T) {
			source := rand.New(rand.NewPCG(1, 2))
			var pcm []byte
			var pauses [][2]float64
			for len(pcm) < 180*2*engines.SampleRate {
				pcm = append(pcm, hum(source, 1.5+2.5*source.Float64(), 0.1+0.3*source.Float64())...)
				from := float64(len(pcm)/2) / engines.SampleRate
				pcm = append(pcm, hum(source, 0.35+0.3*source.Float64(), room)...)
				pauses = append(pauses, [2]float64{from, float64(len(pcm)/2) / engines.SampleRate})
			}
			all := stretches(t, iotest.HalfReader(bytes.NewReader(pcm)), 30*time.Second)
			var joined []byte
			for i, s := range all {
				require.InDelta(t, float64(len(joined)/2)/engines.SampleRate, s.Start, 1e-9)
				require.LessOrEqual(t, s.Seconds(), 30.0)
				require.False(t, s.Silent)
				joined = append(joined, s.PCM...)
				if i > 0 {
					require.True(t, within(s.Start, pauses), "cut at %.2f s", s.Start)
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

func TestSpeechWithoutAPauseIsCutAllTheSame(t *testing.T) {
	pcm := hum(rand.New(rand.NewPCG(1, 2)), 70, 0.3)
	for _, s := range stretches(t, bytes.NewReader(append(pcm, 1)), 10*time.Second) {
		require.LessOrEqual(t, s.Seconds(), 10.0)
		require.Greater(t, s.Seconds(), 0.1)
	}
}

func TestQuietStretches(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 2))
	for name, c := range map[string]struct {
		pcm   []byte
		quiet bool
	}{
		"digital silence": {make([]byte, 32000), true},
		"the last bits":   {hum(source, 1, 0.0005), true},
		"a click":         {append(make([]byte, 32000), hum(source, 0.02, 0.3)...), false},
		"whispered":       {hum(source, 1, 0.01), false},
	} {
		all := stretches(t, bytes.NewReader(c.pcm), 30*time.Second)
		require.Len(t, all, 1, name)
		require.Equal(t, c.quiet, all[0].Silent, name)
	}
	require.Empty(t, stretches(t, bytes.NewReader(nil), 30*time.Second))
	require.Empty(t, stretches(t, bytes.NewReader([]byte{7}), 30*time.Second), "half a sample is none")
}

func TestACutterTellsWhatBreaks(t *testing.T) {
	broken := errors.New("broken")
	_, err := NewSplitter(io.MultiReader(bytes.NewReader(tones(1)), iotest.ErrReader(broken)), time.Minute).Next()
	require.ErrorIs(t, err, broken)
}

// TestCuttingTakesConstantMemory cuts three hours of noise.
func TestCuttingTakesConstantMemory(t *testing.T) {
	minute := hum(rand.New(rand.NewPCG(1, 2)), 60, 0.3)
	var rounds []io.Reader
	for range 180 {
		rounds = append(rounds, bytes.NewReader(minute))
	}
	c := NewSplitter(io.MultiReader(rounds...), 30*time.Second)
	var most uint64
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
			most = max(most, m.HeapAlloc)
		}
	}
	require.InDelta(t, 180*60, seconds, 1e-6)
	require.Less(t, most, uint64(32<<20))
}
