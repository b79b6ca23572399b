package sound

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"image"
	"image/png"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/internal/testutil"
)

// tones returns two sines, one low and one high, with a varying amplitude.
func tones(seconds float64) []byte {
	n := int(seconds * engines.SampleRate)
	pcm := make([]byte, 0, 2*n)
	for i := range n {
		t := float64(i) / engines.SampleRate
		amplitude := 0.02 + 0.2*math.Pow(math.Sin(math.Pi*t/8), 2)
		x := amplitude * (math.Sin(2*math.Pi*110*t) + math.Sin(2*math.Pi*1500*t)) / 2
		pcm = binary.LittleEndian.AppendUint16(pcm, uint16(int16(x*32767)))
	}
	return pcm
}

// file writes content to a file and returns its path.
func file(t testing.TB, name string, content []byte) string {
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

func decodeFile(t testing.TB, path, preprocessing string) ([]byte, error) {
	r, err := Opener{}.Open(t.Context(), path, preprocessing)
	if err != nil {
		return nil, err
	}
	pcm, err := io.ReadAll(r)
	require.NoError(t, r.Close())
	return pcm, err
}

func skipWithout(t testing.TB, programs ...string) {
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: apt install %s", program, program)
		}
	}
}

// convert encodes samples with ffmpeg in the format of a file name and returns the file's path.
func convert(t testing.TB, pcm []byte, name string, options ...string) string {
	skipWithout(t, ffmpeg)
	from, to := file(t, "from.wav", plainWAV(pcm)), filepath.Join(t.TempDir(), name)
	args := append([]string{"-loglevel", "error", "-i", from}, options...)
	out, err := exec.Command(ffmpeg, append(args, to)...).CombinedOutput()
	require.NoError(t, err, string(out))
	return to
}

func TestFormatsAreDecoded(t *testing.T) {
	pcm := tones(8)
	for name, options := range map[string][]string{
		"a.mp3": nil, "a.ogg": nil, "a.flac": nil, "a.m4a": nil, "a.webm": nil, "a.aiff": nil, "a.mka": nil, "a.opus": nil,
		"low.wav": {"-ar", "8000"}, "stereo.wav": {"-ac", "2"}, "float.wav": {"-c:a", "pcm_f32le"},
		"mulaw.au": {"-c:a", "pcm_mulaw"},
		"film.mp4": {"-f", "lavfi", "-i", "testsrc=d=2:s=64x64", "-map", "0:a", "-map", "1:v"},
		"film.mkv": {"-f", "lavfi", "-i", "testsrc=d=2:s=64x64", "-map", "1:v", "-map", "0:a"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decodeFile(t, convert(t, pcm, name, options...), "")
			require.NoError(t, err)
			require.InDelta(t, len(pcm), len(got), 0.1*2*engines.SampleRate)
			require.InDelta(t, loudness(pcm), loudness(got), 3.5) // stereo may be mixed down by adding
		})
	}
}

// bassLevel returns the loudness of a recording after a two-pole low-pass filter at 200 Hz.
func bassLevel(pcm []byte) float64 {
	a := 1 - math.Exp(-2*math.Pi*200/engines.SampleRate)
	low := make([]byte, len(pcm))
	one, two := 0.0, 0.0
	for i := 0; i+1 < len(pcm); i += 2 {
		one += a * (float64(int16(binary.LittleEndian.Uint16(pcm[i:]))) - one)
		two += a * (one - two)
		binary.LittleEndian.PutUint16(low[i:], uint16(int16(two)))
	}
	return loudness(low)
}

func peak(pcm []byte) (level int) {
	for i := 0; i+1 < len(pcm); i += 2 {
		level = max(level, int(math.Abs(float64(int16(binary.LittleEndian.Uint16(pcm[i:]))))))
	}
	return level
}

// halfDifference returns the loudness of the middle of a recording's second half minus the loudness
// of the middle of its first half, in decibels.
func halfDifference(pcm []byte) float64 {
	eighth := len(pcm) / 16 * 2
	return loudness(pcm[5*eighth:7*eighth]) - loudness(pcm[eighth:3*eighth])
}

func TestPreprocessing(t *testing.T) {
	skipWithout(t, ffmpeg)
	pcm := append(tones(32), tones(32)...)
	for i := 0; i < len(pcm)/2; i += 2 { // make the first half 12 decibels softer
		binary.LittleEndian.PutUint16(pcm[i:], uint16(int16(binary.LittleEndian.Uint16(pcm[i:]))/4))
	}
	path := file(t, "a.wav", plainWAV(pcm))
	processed := map[string][]byte{}
	for _, preset := range []string{"", engines.PreprocessNone, engines.PreprocessDynamic,
		engines.PreprocessSoftDynamic, engines.PreprocessBassDynamic} {
		got, err := decodeFile(t, path, preset)
		require.NoError(t, err)
		require.InDelta(t, len(pcm), len(got), 0.1*2*engines.SampleRate, preset)
		processed[preset] = got
	}
	require.Equal(t, pcm, processed[""])
	require.Equal(t, pcm, processed[engines.PreprocessNone])
	for _, preset := range []string{engines.PreprocessDynamic, engines.PreprocessSoftDynamic,
		engines.PreprocessBassDynamic} {
		require.Greater(t, loudness(processed[preset]), loudness(pcm)+3, preset)
		require.Greater(t, peak(processed[preset]), peak(pcm), preset)
		require.Less(t, peak(processed[preset]), 32767, "%s must not clip", preset)
		require.Less(t, halfDifference(processed[preset]), halfDifference(pcm)-3, "%s must reduce the dynamic range", preset)
	}
	share := func(preset string) float64 { return bassLevel(processed[preset]) - loudness(processed[preset]) }
	require.InDelta(t, share(""), share(engines.PreprocessDynamic), 0.5)
	require.Greater(t, share(engines.PreprocessBassDynamic), share(engines.PreprocessDynamic)+0.7)
	_, err := decodeFile(t, path, "loud")
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
}

func TestSilentAndEmptyRecordings(t *testing.T) {
	for name, pcm := range map[string][]byte{"silent": make([]byte, 2*engines.SampleRate), "empty": {}} {
		got, err := decodeFile(t, file(t, "a.wav", plainWAV(pcm)), "")
		require.NoError(t, err)
		require.Equal(t, len(pcm), len(got), name)
		skipWithout(t, ffmpeg)
		got, err = decodeFile(t, file(t, "a.wav", plainWAV(pcm)), engines.PreprocessDynamic)
		require.NoError(t, err)
		require.InDelta(t, len(pcm), len(got), 4000, name)
	}
}

func TestImagesAreRejected(t *testing.T) {
	skipWithout(t, ffmpeg)
	var picture bytes.Buffer
	require.NoError(t, png.Encode(&picture, image.NewGray(image.Rect(0, 0, 8, 8))))
	for _, name := range []string{"a.png", "a.wav"} {
		_, err := decodeFile(t, file(t, name, picture.Bytes()), "")
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
		require.ErrorContains(t, err, "another file that is not a recording: send a format")
	}
}

func TestWithoutFFmpeg(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	pcm := tones(1)
	got, err := decodeFile(t, file(t, "a.wav", plainWAV(pcm)), "")
	require.NoError(t, err)
	require.Equal(t, pcm, got)
	for _, preset := range []string{"", engines.PreprocessDynamic} {
		content := []byte("ID3 is not WAV")
		if preset != "" {
			content = plainWAV(pcm)
		}
		_, err = decodeFile(t, file(t, "a.mp3", content), preset)
		require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
		require.ErrorContains(t, err, "apt install ffmpeg")
	}
}

// TestReferencedFilesAreNotOpened checks that ffmpeg does not open the files and URLs that a
// recording refers to, as it would by default.
func TestReferencedFilesAreNotOpened(t *testing.T) {
	skipWithout(t, ffmpeg)
	var requests atomic.Int32
	site := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer site.Close()
	secret := convert(t, tones(3), "secret.mp3")
	for name, content := range map[string]string{
		"concat": "ffconcat version 1.0\nfile '%s'\n",
		"hls":    "#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXT-X-MEDIA-SEQUENCE:0\n#EXTINF:3.0,\n%s\n#EXT-X-ENDLIST\n",
		"dash": `<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" ` +
			`mediaPresentationDuration="PT3S"><Period><AdaptationSet mimeType="audio/wav">` +
			`<Representation id="0" bandwidth="1"><BaseURL>%s</BaseURL></Representation></AdaptationSet></Period></MPD>`,
		"sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\na=control:%s\n",
		"m3u": "%s\n",
		"imf": `<?xml version="1.0"?><CompositionPlaylist xmlns="http://www.smpte-ra.org/schemas/2067-3/2016">` +
			`<a>%s</a></CompositionPlaylist>`,
		"avisynth":   `WavSource("%s")`,
		"passwd":     "/etc/passwd%.0s",
		"metadata":   ";FFMETADATA1\ntitle=%s\n",
		"asf stream": "[Reference]\nRef1=%s\n",
	} {
		for _, target := range []string{secret, "file:" + secret, site.URL + "/a.wav", "/etc/passwd"} {
			for _, ending := range []string{".wav", ".m3u8"} {
				got, err := decodeFile(t, file(t, "a"+ending, fmt.Appendf(nil, content, target)), "")
				require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%s of %s: %v", name, target, err)
				require.Empty(t, got)
				require.NotContains(t, err.Error(), secret)
				require.NotContains(t, err.Error(), "/dev/")
				require.NotContains(t, err.Error(), "passwd")
			}
		}
	}
	require.Zero(t, requests.Load())
}

// TestDamagedFiles checks that a randomly damaged recording is decoded, or rejected with a clear
// error, within a bounded time.
func TestDamagedFiles(t *testing.T) {
	pcm := tones(2)
	originals := [][]byte{plainWAV(pcm)}
	for _, name := range []string{"a.mp3", "a.ogg", "a.flac", "a.m4a"} {
		content := testutil.ReadFile(t, convert(t, pcm, name))
		originals = append(originals, content)
	}
	source := rand.New(rand.NewPCG(5, 2026))
	rejected := 0
	for n := range 100 {
		broken := bytes.Clone(originals[n%len(originals)])
		switch source.IntN(4) {
		case 0:
			broken = broken[:source.IntN(len(broken))]
		case 1: // damage only the header
			for range 8 {
				broken[source.IntN(min(64, len(broken)))] = byte(source.UintN(256))
			}
		case 2:
			for range len(broken) / 50 {
				broken[source.IntN(len(broken))] = byte(source.UintN(256))
			}
		default:
			at := source.IntN(len(broken))
			broken = append(broken[:at:at], broken[min(len(broken), at+source.IntN(4096)):]...)
		}
		began := time.Now()
		got, err := decodeFile(t, file(t, "broken", broken), "")
		require.Less(t, time.Since(began), 30*time.Second)
		require.Less(t, len(got), 64<<20)
		if err != nil {
			rejected++
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), err)
			require.Regexp(t, `^file: \S.{5,340}$`, err.Error())
			require.NotContains(t, err.Error(), "/dev/")
			require.NotContains(t, err.Error(), os.TempDir())
		}
	}
	require.Positive(t, rejected)
	require.Less(t, rejected, 100)
}

func TestMaxDuration(t *testing.T) {
	r, err := Opener{}.open(t.Context(), file(t, "a.wav", plainWAV(tones(3))), "", 2*time.Second)
	require.NoError(t, err)
	defer r.Close()
	_, err = io.ReadAll(r)
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	require.ErrorContains(t, err, "file: the recording is longer than 2s")
}

// TestCancelStopsDecoding checks that canceling the context ends the decoding of an hour of audio.
func TestCancelStopsDecoding(t *testing.T) {
	skipWithout(t, ffmpeg)
	path := convert(t, tones(1), "a.flac", "-af", "aloop=loop=3600:size=16000")
	ctx, cancel := context.WithCancel(t.Context())
	r, err := Opener{}.Open(ctx, path, "")
	require.NoError(t, err)
	_, err = io.ReadFull(r, make([]byte, 1000))
	require.NoError(t, err)
	program := r.(*bounded).ReadCloser.(*decoder).program
	cancel()
	<-program.Done()
	_, err = io.Copy(io.Discard, r)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, r.Close())
}

func TestMissingFile(t *testing.T) {
	_, err := Opener{}.Open(t.Context(), filepath.Join(t.TempDir(), "none"), "")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.False(t, strings.Contains(err.Error(), t.TempDir()))
}
