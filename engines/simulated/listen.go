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

// SpeechFormat is the format of the speech models that the engine listens with.
const SpeechFormat = domain.SpeechSimulated

type transcriber struct{ options Options }

func (t transcriber) LoadSpeech(ctx context.Context, _ engines.SpeechFiles) (engines.Listener, error) {
	if err := t.options.fault(LoadModel, 0); err != nil {
		return nil, err
	}
	return &listener{options: t.options}, ctx.Err()
}

type listener struct {
	options Options
	closed  atomic.Bool
}

func (l *listener) Info() engines.ListenerInfo {
	return engines.ListenerInfo{Slots: l.options.Slots, Languages: []string{"en"}}
}

func (l *listener) Check(options engines.TranscribeOptions) error {
	var v domain.Violations
	v.Require(options.Language == "" || options.Language == "en", "language", "must be en: the model knows no other")
	v.Require(!options.Diarize, "diarize", "is not offered by this model: leave it out")
	return v.Err()
}

const (
	wordSamples  = engines.SampleRate / 2 // each word takes half a second
	wordsOfOne   = 8                      // words of one segment
	silentBelow  = 1e-4                   // root mean square of half a second in which nothing is said
	secondsAWord = float64(wordSamples) / engines.SampleRate
)

// Transcribe hears one word in each half second that is not silent; which one
// depends on the place alone. Each takes Options.TokenTime.
func (l *listener) Transcribe(ctx context.Context, pcm io.Reader, _ engines.TranscribeOptions, emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
	heard := engines.Transcript{Language: "en"}
	source := random(l.options.Seed, "speech")
	var said []engines.Word
	flush := func() error {
		step := engines.TranscriptEvent{Seconds: heard.Duration}
		if len(said) > 0 {
			step.Segment, said = segmentOf(said), nil
		}
		return emit(step)
	}
	half := make([]byte, 2*wordSamples)
	for n := 0; ; n++ {
		if l.closed.Load() {
			return heard, errClosed()
		}
		if err := l.options.fault(ListenWord, n+1); err != nil {
			return heard, err
		}
		if err := wait(ctx, l.options.tokenTime(n+1)); err != nil {
			return heard, err
		}
		got, err := io.ReadFull(pcm, half)
		heard.Duration += float64(got/2) / engines.SampleRate
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return heard, flush()
		}
		if err != nil {
			return heard, err
		}
		if word := words[source.IntN(len(words))]; loud(half) {
			start := float64(n) * secondsAWord
			said = append(said, engines.Word{Text: word, Start: start, End: start + 0.4, Probability: 0.9, Language: "en"})
		}
		if len(said) == wordsOfOne {
			if err := flush(); err != nil {
				return heard, err
			}
		}
	}
}

func (l *listener) Close() error {
	l.closed.Store(true)
	return nil
}

func segmentOf(said []engines.Word) *engines.Segment {
	text := make([]string, len(said))
	for i, w := range said {
		text[i] = w.Text
	}
	return &engines.Segment{Start: said[0].Start, End: said[len(said)-1].End, Text: strings.Join(text, " "), Words: said, AvgLogprob: math.Log(0.9)}
}

func loud(pcm []byte) bool {
	sum := 0.0
	for i := 0; i < len(pcm); i += 2 {
		x := float64(int16(uint16(pcm[i])|uint16(pcm[i+1])<<8)) / 32768
		sum += x * x
	}
	return math.Sqrt(sum/float64(len(pcm)/2)) > silentBelow
}
