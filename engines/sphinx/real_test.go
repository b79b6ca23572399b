package sphinx_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/sound"
	"anneal/engines/sphinx"
	"anneal/internal/testutil"
)

const (
	samples  = "/usr/share/pocketsphinx/test/data/"
	librivox = samples + "librivox/"
	alsa     = "/usr/share/sounds/alsa/"
)

// load loads Debian's model.
func load(t testing.TB, o sphinx.Options) engines.SpeechModel {
	t.Helper()
	o.Dir = t.TempDir()
	transcriber, err := sphinx.New(o)
	if err != nil {
		t.Skip(err)
	}
	if _, err := os.Stat(sphinx.DebianModel); err != nil {
		t.Skip("pocketsphinx-en-us is not installed: apt install pocketsphinx-en-us")
	}
	l, err := transcriber.LoadSpeech(t.Context(), engines.SpeechFiles{Dir: sphinx.DebianModel,
		Settings: domain.SpeechSettings{Format: domain.SpeechPocketsphinx}})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		left := testutil.ReadDir(t, o.Dir)
		require.Empty(t, left, "no temporary files are left")
	})
	return l
}

// skipWithout skips the test if neither a file nor a program of that name exists.
func skipWithout(t testing.TB, name, debianPackage string) {
	if _, err := os.Stat(name); err == nil {
		return
	}
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed: apt install %s", name, debianPackage)
	}
}

// A transcript holds an engines.Transcript with its segments and the emitted progress.
type transcript struct {
	engines.Transcript
	segments []engines.Segment
	progress []float64
}

func (h transcript) text() string {
	var all []string
	for _, s := range h.segments {
		all = append(all, s.Text)
	}
	return strings.Join(all, " ")
}

func (h transcript) words() (all []engines.Word) {
	for _, s := range h.segments {
		all = append(all, s.Words...)
	}
	return all
}

// transcribe transcribes a recording and checks the invariants of transcripts.
func transcribe(t testing.TB, l engines.SpeechModel, pcm io.Reader, o engines.TranscriptionOptions) transcript {
	t.Helper()
	var h transcript
	var err error
	h.Transcript, err = l.Transcribe(t.Context(), pcm, o, func(step engines.TranscriptEvent) error {
		h.progress = append(h.progress, step.Seconds)
		if step.Segment != nil {
			h.segments = append(h.segments, *step.Segment)
		}
		return nil
	})
	require.NoError(t, err)
	last, progress := 0.0, 0.0
	for _, seconds := range h.progress {
		require.GreaterOrEqual(t, seconds, progress)
		progress = seconds
	}
	require.InDelta(t, h.Duration, progress, 1e-9)
	for _, s := range h.segments {
		var texts []string
		require.NotEmpty(t, s.Words)
		require.GreaterOrEqual(t, s.Start, last)
		last = s.Start
		for _, w := range s.Words {
			require.Regexp(t, `^[a-z'.-]+$`, w.Text)
			require.GreaterOrEqual(t, w.Start, last, "%v", s)
			require.Greater(t, w.End, w.Start)
			require.LessOrEqual(t, w.End, s.End)
			require.True(t, w.Probability >= 0 && w.Probability <= 1)
			last = w.End
			texts = append(texts, w.Text)
		}
		require.Equal(t, strings.Join(texts, " "), s.Text)
		require.LessOrEqual(t, s.End, h.Duration)
		require.LessOrEqual(t, s.AvgLogprob, 0.0)
		require.Positive(t, s.CompressionRatio)
	}
	return h
}

// recording returns the samples of a file.
func recording(t testing.TB, path string) []byte {
	t.Helper()
	r, err := sound.Opener{}.Open(t.Context(), path, "")
	require.NoError(t, err)
	pcm := testutil.ReadAll(t, r)
	require.NoError(t, r.Close())
	return pcm
}

// wordErrors returns the edit distance of two texts in words, and the number of words of want.
func wordErrors(want, got string) (wrong, words int) {
	a, b := strings.Fields(want), strings.Fields(got)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range a {
		corner := row[0]
		row[0] = i + 1
		for j := range b {
			best := min(row[j], row[j+1]) + 1
			if same := corner; a[i] == b[j] {
				best = min(best, same)
			} else {
				best = min(best, corner+1)
			}
			corner, row[j+1] = row[j+1], best
		}
	}
	return row[len(b)], len(a)
}

func TestWordErrors(t *testing.T) {
	for _, c := range []struct {
		want, got string
		wrong     int
	}{{"a b c", "a b c", 0}, {"a b c", "a x c", 1}, {"a b c", "a c", 1}, {"a c", "a b c", 1}, {"a b", "", 2},
		{"", "a", 1}, {"a b c d", "b c d e", 2}} {
		wrong, _ := wordErrors(c.want, c.got)
		require.Equal(t, c.wrong, wrong, "%s → %s", c.want, c.got)
	}
}

func TestGoForward(t *testing.T) {
	skipWithout(t, samples+"goforward.raw", "pocketsphinx-testdata")
	raw := testutil.ReadFile(t, samples+"goforward.raw")
	l := load(t, sphinx.Options{})
	h := transcribe(t, l, bytes.NewReader(raw), engines.TranscriptionOptions{Language: "en"})
	require.Equal(t, "go forward ten meters", h.text())
	require.Equal(t, "en", h.Language)
	require.InDelta(t, float64(len(raw)/2)/engines.SampleRate, h.Duration, 1e-9)
}

// TestLibriVox checks that less than 40 % of the words in recordings of a novel are wrong.
func TestLibriVox(t *testing.T) {
	skipWithout(t, librivox+"transcription", "pocketsphinx-testdata")
	l := load(t, sphinx.Options{})
	wrong, words := 0, 0
	for name, want := range expectedTexts(t) {
		h := transcribe(t, l, bytes.NewReader(recording(t, librivox+name+".wav")), engines.TranscriptionOptions{})
		w, n := wordErrors(want, h.text())
		wrong, words = wrong+w, words+n
	}
	rate := float64(wrong) / float64(words)
	t.Logf("%.1f %% of %d words are wrong", 100*rate, words)
	require.Less(t, rate, 0.40)
}

// expectedTexts returns the texts of LibriVox's recordings, by name.
func expectedTexts(t testing.TB) map[string]string {
	file, err := os.Open(librivox + "transcription")
	require.NoError(t, err)
	defer file.Close()
	all := map[string]string{}
	form := regexp.MustCompile(`^<s> (.*) </s> \((.*)\)$`)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if m := form.FindStringSubmatch(strings.TrimSpace(lines.Text())); m != nil {
			all[m[2]] = m[1]
		}
	}
	require.NotEmpty(t, all)
	return all
}

// TestALSARecordings checks that less than half of the words in the loudspeaker tests of alsa-utils
// are wrong.
func TestALSARecordings(t *testing.T) {
	skipWithout(t, alsa+"Front_Center.wav", "alsa-utils")
	skipWithout(t, "ffmpeg", "ffmpeg")
	l := load(t, sphinx.Options{})
	wrong, words := 0, 0
	for _, name := range []string{"Front_Center", "Front_Left", "Front_Right", "Rear_Center", "Rear_Left", "Rear_Right",
		"Side_Left", "Side_Right"} {
		h := transcribe(t, l, bytes.NewReader(recording(t, alsa+name+".wav")), engines.TranscriptionOptions{})
		w, n := wordErrors(strings.ToLower(strings.ReplaceAll(name, "_", " ")), h.text())
		t.Logf("%s: %s", name, h.text())
		wrong, words = wrong+w, words+n
	}
	require.Less(t, float64(wrong)/float64(words), 0.5, "two words without context are hard to recognize")
}

var sentences = []string{
	"the weather in the mountains changes very quickly",
	"please open the window and close the door",
	"my brother bought a new car last week",
	"there are seven days in every week",
	"the train to london leaves at nine in the morning",
	"she wrote a long letter to her mother",
	"we will meet again after the summer holiday",
	"the children played in the garden all afternoon",
	"he asked the doctor for some good advice",
	"the government announced a new plan for the economy",
}

// synthesize returns a text spoken by flite, and the end times of its phones.
func synthesize(t testing.TB, text string) (pcm []byte, ends []float64) {
	skipWithout(t, "flite", "flite")
	path := filepath.Join(t.TempDir(), "speech.wav")
	out, err := exec.Command("flite", "-voice", "rms", "-psdur", "-t", text, "-o", path).Output()
	require.NoError(t, err)
	for _, phone := range strings.Fields(string(out)) {
		name, end, _ := strings.Cut(phone, ":")
		seconds, err := strconv.ParseFloat(end, 64)
		require.NoError(t, err)
		if name == "pau" && len(ends) > 0 {
			break // the end of the sentence
		}
		ends = append(ends, seconds)
	}
	return recording(t, path), ends
}

// TestWordTimes transcribes ten synthesized sentences, for which the times of the phones are known.
// It checks that less than 15 % of the words are wrong, and that the times of the words are less
// than 0.1 s off in the sentences without a wrong word.
func TestWordTimes(t *testing.T) {
	l := load(t, sphinx.Options{})
	wrong, words, timed, maxOff := 0, 0, 0, 0.0
	for _, sentence := range sentences {
		pcm, ends := synthesize(t, sentence)
		h := transcribe(t, l, bytes.NewReader(pcm), engines.TranscriptionOptions{Words: true})
		w, n := wordErrors(sentence, h.text())
		wrong, words = wrong+w, words+n
		if w > 0 {
			continue
		}
		at := 0 // the phone before the word; the first one is the pause at the start
		for i, word := range strings.Fields(sentence) {
			_, phones := synthesize(t, word)
			from := ends[at]
			at += len(phones) - 1
			require.Less(t, at, len(ends), "%s has more phones alone than in %q", word, sentence)
			off := max(math.Abs(h.words()[i].Start-from), math.Abs(h.words()[i].End-ends[at]))
			maxOff = max(maxOff, off)
			timed++
			require.Less(t, off, 0.1, "%s in %q: %v, not %.3f to %.3f", word, sentence, h.words()[i], from, ends[at])
		}
		require.Equal(t, len(ends)-1, at, "the phones of the words of %q are those of the sentence", sentence)
	}
	t.Logf("%d of %d words are wrong; the times of %d are at most %.0f ms off", wrong, words, timed, 1000*maxOff)
	require.Less(t, float64(wrong)/float64(words), 0.15)
	require.Greater(t, timed, 40)
}

// TestSeveralChunks transcribes all sentences as one recording, with pauses of different lengths,
// and checks the start times of the sentences.
func TestSeveralChunks(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute of CPU time")
	}
	l := load(t, sphinx.Options{Slots: 2})
	var pcm []byte
	var starts []float64
	var texts []string
	for i := range len(sentences) {
		one, _ := synthesize(t, sentences[i])
		starts = append(starts, float64(len(pcm)/2)/engines.SampleRate)
		texts = append(texts, sentences[i])
		pcm = append(append(pcm, one...), make([]byte, 2*engines.SampleRate*(i%3)/4)...)
	}
	h := transcribe(t, l, bytes.NewReader(pcm), engines.TranscriptionOptions{})
	wrong, words := wordErrors(strings.Join(texts, " "), h.text())
	t.Logf("%d of %d words are wrong in %.0f s", wrong, words, h.Duration)
	require.Less(t, float64(wrong)/float64(words), 0.15)
	found := 0
	for _, start := range starts {
		for _, w := range h.words() {
			if w.Start-start > 0 && w.Start-start < 0.4 {
				found++
				break
			}
		}
	}
	require.Equal(t, len(starts), found, "a word starts at the start of each sentence")
	require.Greater(t, len(h.progress), 1)
	again := transcribe(t, load(t, sphinx.Options{Slots: 1}), bytes.NewReader(pcm), engines.TranscriptionOptions{})
	require.Equal(t, h.segments, again.segments, "the transcript does not depend on the number of processes")
}

func TestSilenceHasNoWords(t *testing.T) {
	l := load(t, sphinx.Options{Slots: 1})
	for name, pcm := range map[string][]byte{
		"nothing": nil, "half a sample": {1}, "one sample": {0, 16}, "a second": make([]byte, 32000),
		"forty seconds":      make([]byte, 40*32000),
		"a click in silence": append(append(make([]byte, 32000), 0, 64), make([]byte, 32000)...),
	} {
		h := transcribe(t, l, bytes.NewReader(pcm), engines.TranscriptionOptions{})
		require.Empty(t, h.text(), name)
		require.InDelta(t, float64(len(pcm)/2)/engines.SampleRate, h.Duration, 1e-9)
	}
}

// TestConcurrentRequests checks the transcripts of more concurrent recordings than there are
// processes.
func TestConcurrentRequests(t *testing.T) {
	l := load(t, sphinx.Options{Slots: 2})
	pcm, _ := synthesize(t, sentences[3])
	failed := make(chan error)
	for range 4 {
		go func() {
			text := ""
			_, err := l.Transcribe(t.Context(), bytes.NewReader(pcm), engines.TranscriptionOptions{},
				func(step engines.TranscriptEvent) error {
					if step.Segment != nil {
						text += step.Segment.Text
					}
					return nil
				})
			if err == nil && text != sentences[3] {
				err = fmt.Errorf("the transcript is %q", text)
			}
			failed <- err
		}()
	}
	for range 4 {
		require.NoError(t, <-failed)
	}
}

// A signal is a reader whose first Read closes the channel read.
type signal struct {
	io.Reader
	read chan struct{}
}

func (s signal) Read(p []byte) (int, error) {
	select {
	case <-s.read:
	default:
		close(s.read)
	}
	return s.Reader.Read(p)
}

// TestStopDuringTranscription checks the errors of a transcription whose context is canceled, whose
// emit fails, or whose model is closed, and that other requests are not affected.
func TestStopDuringTranscription(t *testing.T) {
	pcm, _ := synthesize(t, sentences[0])
	half := bytes.Repeat(pcm, 16*2*engines.SampleRate/len(pcm))
	hour := func(read chan struct{}) io.Reader {
		rounds := []io.Reader{bytes.NewReader(half), bytes.NewReader(half), signal{bytes.NewReader(half), read}}
		for range 3600 / 15 {
			rounds = append(rounds, bytes.NewReader(half))
		}
		return io.MultiReader(rounds...)
	}
	l := load(t, sphinx.Options{Slots: 1})
	nothing := func(engines.TranscriptEvent) error { return nil }

	ctx, cancel := context.WithCancel(t.Context())
	read := make(chan struct{})
	go func() { <-read; cancel() }()
	_, err := l.Transcribe(ctx, hour(read), engines.TranscriptionOptions{}, nothing)
	require.ErrorIs(t, err, context.Canceled)

	emitErr := fmt.Errorf("the client has disconnected")
	_, err = l.Transcribe(t.Context(), bytes.NewReader(make([]byte, 1<<20)), engines.TranscriptionOptions{},
		func(engines.TranscriptEvent) error { return emitErr })
	require.ErrorIs(t, err, emitErr)

	h := transcribe(t, l, bytes.NewReader(pcm), engines.TranscriptionOptions{})
	require.Equal(t, sentences[0], h.text(), "later requests are not affected")

	read = make(chan struct{})
	go func() { <-read; _ = l.Close() }()
	_, err = l.Transcribe(t.Context(), hour(read), engines.TranscriptionOptions{}, nothing)
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	_, err = l.Transcribe(t.Context(), bytes.NewReader(pcm), engines.TranscriptionOptions{}, nothing)
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
}
