package simulated

import (
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"sync/atomic"

	"anneal/domain"
	"anneal/engines"
)

// SpeechFormat is the format of the engine's speech models.
const SpeechFormat = domain.SpeechSimulated

type transcriber struct{ options Options }

func (t transcriber) LoadSpeech(ctx context.Context, _ engines.SpeechFiles) (engines.SpeechModel, error) {
	if err := t.options.fault(LoadModel, 0); err != nil {
		return nil, err
	}
	return &speechModel{options: t.options}, ctx.Err()
}

type speechModel struct {
	options Options
	closed  atomic.Bool
}

func (m *speechModel) Info() engines.SpeechModelInfo {
	return engines.SpeechModelInfo{Slots: m.options.Slots, Languages: []string{"en"}}
}

func (m *speechModel) Check(options engines.TranscriptionOptions) error {
	var v domain.Violations
	v.Require(options.Language == "" || options.Language == "en", "language", "must be en, the only language of the model")
	v.Require(!options.Diarize, "diarize", "is not supported by this model: leave it out")
	return v.Err()
}

const (
	wordSamples  = engines.SampleRate / 2 // a word takes half a second
	segmentWords = 8
	maxSilence   = 1e-4 // maximum root mean square of a half second that counts as silent
	wordSeconds  = float64(wordSamples) / engines.SampleRate
)

// Transcribe implements engines.SpeechModel. It emits a word for each half second that is not
// silent; the position determines the word. Each half second takes Options.TokenTime.
func (m *speechModel) Transcribe(ctx context.Context, pcm io.Reader, _ engines.TranscriptionOptions,
	emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
	transcript := engines.Transcript{Language: "en"}
	source := random(m.options.Seed, "speech")
	var spoken []engines.Word
	flush := func() error {
		step := engines.TranscriptEvent{Seconds: transcript.Duration}
		if len(spoken) > 0 {
			step.Segment, spoken = segmentOf(spoken), nil
		}
		return emit(step)
	}
	half := make([]byte, 2*wordSamples)
	for n := 0; ; n++ {
		if m.closed.Load() {
			return transcript, errClosed()
		}
		if err := m.options.fault(TranscribeWord, n+1); err != nil {
			return transcript, err
		}
		if err := wait(ctx, m.options.tokenTime(n+1)); err != nil {
			return transcript, err
		}
		got, err := io.ReadFull(pcm, half)
		transcript.Duration += float64(got/2) / engines.SampleRate
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return transcript, flush()
		}
		if err != nil {
			return transcript, err
		}
		if word := words[source.IntN(len(words))]; isSpeech(half) {
			start := float64(n) * wordSeconds
			spoken = append(spoken, engines.Word{Text: word, Start: start, End: start + 0.4, Probability: 0.9, Language: "en"})
		}
		if len(spoken) == segmentWords {
			if err := flush(); err != nil {
				return transcript, err
			}
		}
	}
}

func (m *speechModel) Close() error {
	m.closed.Store(true)
	return nil
}

func segmentOf(spoken []engines.Word) *engines.Segment {
	text := make([]string, len(spoken))
	for i, w := range spoken {
		text[i] = w.Text
	}
	return &engines.Segment{Start: spoken[0].Start, End: spoken[len(spoken)-1].End, Text: strings.Join(text, " "),
		Words: spoken, AvgLogprob: math.Log(0.9)}
}

func isSpeech(pcm []byte) bool {
	sum := 0.0
	for i := 0; i < len(pcm); i += 2 {
		x := float64(int16(uint16(pcm[i])|uint16(pcm[i+1])<<8)) / 32768
		sum += x * x
	}
	return math.Sqrt(sum/float64(len(pcm)/2)) > maxSilence
}
