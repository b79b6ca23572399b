package external

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/internal/testutil"
)

// loadSpeech returns a loaded speech model with the test binary as its server. mode selects a
// behavior of the fake server.
func loadSpeech(t *testing.T, format, mode string, settings domain.SpeechSettings) engines.SpeechModel {
	t.Helper()
	_, rest, _ := strings.Cut(dialects[format].preset.command, " ")
	dir := t.TempDir()
	require.NoError(t, writeSpeechModel(dir))
	transcriber, err := NewTranscriber(Options{Preset: format, Command: os.Args[0] + " " + rest, Dir: t.TempDir(),
		RestartDelay: time.Millisecond, GracePeriod: 5 * time.Second,
		Env: []string{"FAKE_SPEECH=1", "FAKE_SERVER=" + format, "FAKE_MODE=" + mode}})
	require.NoError(t, err)
	settings.Format = format
	m, err := transcriber.LoadSpeech(t.Context(), engines.SpeechFiles{Dir: dir, Settings: settings})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m
}

// samplesOf returns half a second of samples for each letter: l is loud, s is soft, . is silent.
func samplesOf(text string) (pcm []byte) {
	level := map[rune]int16{'l': 16000, 's': 2000, '.': 0}
	for _, r := range text {
		for range engines.SampleRate / 2 {
			pcm = binary.LittleEndian.AppendUint16(pcm, uint16(level[r]))
		}
	}
	return pcm
}

func transcribe(
	t *testing.T, m engines.SpeechModel, pcm []byte, o engines.TranscriptionOptions,
) (engines.Transcript, []engines.Segment, []float64) {
	t.Helper()
	var segments []engines.Segment
	var progress []float64
	transcript, err := m.Transcribe(t.Context(), bytes.NewReader(pcm), o, func(event engines.TranscriptEvent) error {
		progress = append(progress, event.Seconds)
		if event.Segment != nil {
			segments = append(segments, *event.Segment)
		}
		return nil
	})
	require.NoError(t, err)
	require.True(t, slices.IsSorted(progress))
	require.InDelta(t, float64(len(pcm)/2)/engines.SampleRate, transcript.Duration, 1e-9)
	return transcript, segments, progress
}

// TestTranscribe checks that every kind of server returns the same transcript for a recording of
// several chunks.
func TestTranscribe(t *testing.T) {
	for _, format := range Formats() {
		t.Run(format, func(t *testing.T) {
			m := loadSpeech(t, format, "", domain.SpeechSettings{})
			text := strings.Repeat("ls.l..", 100) // five minutes
			transcript, segments, progress := transcribe(t, m, samplesOf(text), engines.TranscriptionOptions{Words: true})
			require.Equal(t, "en", transcript.Language)
			require.Equal(t, 300, len(segments))
			require.Greater(t, len(slices.Compact(progress)), 3)
			n := 0
			for i, letter := range text {
				if letter == '.' {
					continue
				}
				s := segments[n]
				n++
				word := map[rune]string{'l': "loud", 's': "soft"}[letter]
				require.Equal(t, word, s.Text)
				require.InDelta(t, float64(i)/2, s.Start, 1e-6)
				require.Len(t, s.Words, 1)
				require.Equal(t, word, s.Words[0].Text)
				require.InDelta(t, s.Start+0.4, s.Words[0].End, 1e-6)
				require.Equal(t, "en", s.Words[0].Language)
				require.InDelta(t, map[bool]float64{true: 0.8, false: 0.9}[format == domain.SpeechWhisperCPP],
					s.Words[0].Probability, 1e-9)
				require.Positive(t, s.CompressionRatio)
			}
			transcript, segments, progress = transcribe(t, m, make([]byte, 64000),
				engines.TranscriptionOptions{Language: "de"})
			require.Empty(t, segments)
			require.Equal(t, []float64{2}, progress)
			require.Equal(t, "de", transcript.Language)
		})
	}
}

// TestTranscriptionRequests checks the path and all fields of the requests to each kind of server.
func TestTranscriptionRequests(t *testing.T) {
	settings := domain.SpeechSettings{VADModels: map[string]string{"silero": "silero.vad.bin"}}
	all := engines.TranscriptionOptions{Language: "de", Prompt: "Um, so", Temperature: []float64{0.4}, VAD: "silero"}
	translate := engines.TranscriptionOptions{Language: "de", Translate: true}
	for format, want := range map[string][3]string{
		domain.SpeechFasterWhisper: {
			"/v1/audio/transcriptions model=anneal/model response_format=verbose_json timestamp_granularities[]=segment",
			"/v1/audio/transcriptions language=de model=anneal/model prompt=Um, so response_format=verbose_json " +
				"temperature=0.4 timestamp_granularities[]=segment vad_filter=true vad_model=silero.vad.bin",
			"/v1/audio/translations model=anneal/model response_format=verbose_json",
		},
		domain.SpeechWhisperCPP: {
			"/v1/audio/transcriptions language=auto no_language_probabilities=true response_format=verbose_json",
			"/v1/audio/transcriptions language=de no_language_probabilities=true prompt=Um, so response_format=verbose_json " +
				"temperature=0.4 temperature_inc=0 vad=true",
			"/v1/audio/transcriptions language=de no_language_probabilities=true response_format=verbose_json translate=true",
		},
		domain.SpeechOpenAI: {
			"/v1/audio/transcriptions model=model response_format=verbose_json timestamp_granularities[]=segment",
			"/v1/audio/transcriptions language=de model=model prompt=Um, so response_format=verbose_json temperature=0.4 " +
				"timestamp_granularities[]=segment vad_model=silero.vad.bin",
			"/v1/audio/translations model=model response_format=verbose_json",
		},
	} {
		t.Run(format, func(t *testing.T) {
			m := loadSpeech(t, format, "echo", settings)
			for i, o := range []engines.TranscriptionOptions{{}, all, translate} {
				_, segments, _ := transcribe(t, m, samplesOf("l"), o)
				require.Equal(t, want[i], segments[0].Text)
			}
		})
	}
	m := loadSpeech(t, domain.SpeechWhisperCPP, "echo", settings)
	_, segments, _ := transcribe(t, m, samplesOf("l"),
		engines.TranscriptionOptions{Temperature: []float64{0, 0.2, 0.4, 0.6,
			0.8, 1}})
	require.Contains(t, segments[0].Text, "temperature=0 temperature_inc=0.2")
}

// TestTemperatureFallback checks that a transcription with a low logprob is retried with the
// next temperature.
func TestTemperatureFallback(t *testing.T) {
	m := loadSpeech(t, domain.SpeechOpenAI, "lowLogprob", domain.SpeechSettings{})
	for want, list := range map[float64][]float64{0: {0}, 0.2: {0, 0.2, 0.4}} {
		_, segments, _ := transcribe(t, m, samplesOf("l"), engines.TranscriptionOptions{Temperature: list})
		require.InDelta(t, want, segments[0].Temperature, 1e-9)
		require.Equal(t, want == 0, segments[0].AvgLogprob < -1, "the last attempt is the result in any case")
	}
}

func TestDiarization(t *testing.T) {
	m := loadSpeech(t, domain.SpeechFasterWhisper, "", domain.SpeechSettings{DiarizationModel: "pyannote"})
	_, segments, _ := transcribe(t, m, samplesOf(strings.Repeat("ls.", 100)), engines.TranscriptionOptions{Diarize: true,
		MinSpeakers: 1})
	require.Equal(t, 200, len(segments))
	for _, s := range segments {
		want := map[string]string{"loud": "SPEAKER_00", "soft": "SPEAKER_01"}[s.Text]
		require.Equal(t, want, s.Speaker)
		require.Equal(t, want, s.Words[0].Speaker)
	}
	turns := []turn{{0, 1, "a"}, {0.5, 2, "b"}, {3, 3.4, "a"}, {3.4, 3.7, "b"}, {3.7, 4, "a"}}
	for _, c := range []struct {
		from, until float64
		want        string
	}{{0, 0.4, "a"}, {0.8, 1.6, "b"}, {0.5, 1, "a"}, {2.1, 2.9, ""}, {3, 4, "a"}} {
		require.Equal(t, c.want, mainSpeaker(c.from, c.until, turns), "%v", c)
	}
}

func TestCheckRejectsUnsupportedOptions(t *testing.T) {
	bare := &speechModel{dialect: dialects[domain.SpeechOpenAI], settings: domain.SpeechSettings{Languages: []string{"en",
		"de"}}}
	err := bare.Check(engines.TranscriptionOptions{Language: "fr", VAD: "silero", Alignment: "mms_fa", Diarize: true,
		MinSpeakers: 2, MaxSpeakers: 3})
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	for _, field := range []string{"language", "vad_model", "alignment_model", "diarize", "min_speakers", "max_speakers"} {
		require.ErrorContains(t, err, field+": ")
	}
	for format, rejected := range map[string]bool{
		domain.SpeechOpenAI: true, domain.SpeechFasterWhisper: true, domain.SpeechWhisperCPP: false,
	} {
		m := &speechModel{dialect: dialects[format]}
		err := m.Check(engines.TranscriptionOptions{Translate: true, Words: true})
		require.Equal(t, rejected, err != nil, format)
	}
	whisper := &speechModel{dialect: dialects[domain.SpeechWhisperCPP]}
	for _, list := range [][]float64{{0, 0.2}, {0, 0.2, 0.6, 1}, {1, 0.5, 0}, {0.2, 0.2}} {
		require.ErrorContains(t, whisper.Check(engines.TranscriptionOptions{Temperature: list}), "temperature: ", "%v", list)
	}
	for _, list := range [][]float64{nil, {0.3}, {0, 1}, {0, 0.5, 1}, {0, 0.2, 0.4, 0.6, 0.8, 1}} {
		require.NoError(t, whisper.Check(engines.TranscriptionOptions{Temperature: list}), "%v", list)
	}
	m := loadSpeech(t, domain.SpeechOpenAI, "noWords", domain.SpeechSettings{})
	_, err = m.Transcribe(t.Context(), bytes.NewReader(samplesOf("l")), engines.TranscriptionOptions{Words: true},
		func(engines.TranscriptEvent) error { return nil })
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "timestamp_granularities")
}

// TestServerCrashDuringTranscription checks that a crash of the server fails the running
// request, and that later requests succeed.
func TestServerCrashDuringTranscription(t *testing.T) {
	m := loadSpeech(t, domain.SpeechOpenAI, "", domain.SpeechSettings{})
	_, err := m.Transcribe(t.Context(), bytes.NewReader(samplesOf("l")), engines.TranscriptionOptions{Prompt: "die"},
		func(engines.TranscriptEvent) error { return nil })
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	require.Eventually(t, func() bool {
		_, err := m.Transcribe(t.Context(), bytes.NewReader(samplesOf("l")), engines.TranscriptionOptions{},
			func(engines.TranscriptEvent) error { return nil })
		return err == nil
	}, 20*time.Second, 10*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = m.Transcribe(ctx, bytes.NewReader(samplesOf("l")), engines.TranscriptionOptions{},
		func(engines.TranscriptEvent) error { return nil })
	require.ErrorIs(t, err, context.Canceled)
}

func TestInvalidSpeechModels(t *testing.T) {
	_, err := NewTranscriber(Options{Preset: "loud"})
	require.ErrorContains(t, err, "faster-whisper, whisper.cpp, openai")
	command := os.Args[0] + " -m {file} --port {port}"
	whisper, err := NewTranscriber(Options{Preset: domain.SpeechWhisperCPP, Command: command})
	require.NoError(t, err)
	_, err = whisper.LoadSpeech(t.Context(), engines.SpeechFiles{Dir: t.TempDir()})
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "has 0 files")
	_, err = whisper.LoadSpeech(t.Context(), engines.SpeechFiles{Dir: t.TempDir(), Settings: domain.SpeechSettings{
		VADModels: map[string]string{"silero": "../x"}, AlignmentModels: map[string]string{"mms_fa": "x"},
		DiarizationModel: "x"}})
	for _, field := range []string{"vadModels", "alignmentModels", "diarizationModel"} {
		require.ErrorContains(t, err, field)
	}
}

func TestWriteHubCache(t *testing.T) {
	own, dir := t.TempDir(), t.TempDir()
	require.NoError(t, writeSpeechModel(dir))
	env, err := writeHubCache(own, dir)
	require.NoError(t, err)
	require.Equal(t, []string{"HF_HUB_CACHE=" + own}, env)
	revision := testutil.ReadFile(t, filepath.Join(own, "models--anneal--model", "refs", "main"))
	content := testutil.ReadFile(t, filepath.Join(own, "models--anneal--model", "snapshots", string(revision),
		"ggml-tiny.bin"))
	require.Equal(t, "weights", string(content))
}

func TestJoinTokens(t *testing.T) {
	for _, c := range []struct{ tokens, words string }{
		{" he|llo| wor|ld|.", " hello| world."}, {"今|日|は", "今|日|は"}, {"Hi", "Hi"}, {"", ""},
	} {
		var tokens []wordJSON
		for _, t := range strings.Split(c.tokens, "|") {
			if t != "" {
				tokens = append(tokens, wordJSON{Word: t})
			}
		}
		var words []string
		for _, w := range joinTokens(tokens) {
			words = append(words, w.Word)
		}
		require.Equal(t, c.words, strings.Join(words, "|"))
	}
}

func TestPlaceAtClampsTimes(t *testing.T) {
	s := engines.Segment{Start: -1, End: 99, Words: []engines.Word{{Start: 2, End: 1}, {Start: 0, End: 70}}}
	placeAt(&s, 10, 11, 20)
	require.Equal(t, engines.Segment{Start: 11, End: 20, Words: []engines.Word{{Start: 12, End: 12}, {Start: 12,
		End: 20}}}, s)
}
