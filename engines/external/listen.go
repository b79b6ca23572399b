package external

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/sound"
)

// stretchLength is how long a stretch is that a server is asked for at once:
// long enough for it to keep its own context, short enough to be held.
const stretchLength = 2 * time.Minute

// Transcribe implements engines.Listener: a server hears stretch after stretch.
// Who tells speakers apart has to hear the whole first, which lies on disk
// meanwhile.
func (l *listener) Transcribe(ctx context.Context, pcm io.Reader, o engines.TranscriptionOptions, emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
	heard := engines.Transcript{Language: o.Language}
	if err := l.Check(o); err != nil {
		return heard, err
	}
	o.Words = o.Words || o.Diarize // whose they are is told of words
	var speakers []turn
	if o.Diarize {
		whole, err := l.keep(pcm)
		if err != nil {
			return heard, err
		}
		defer whole.Close()
		if speakers, err = l.speakers(ctx, whole); err != nil {
			return heard, err
		}
		if _, err := whole.Seek(0, io.SeekStart); err != nil {
			return heard, err
		}
		pcm = whole
	}
	cutter := sound.NewSplitter(pcm, stretchLength)
	last := 0.0
	for {
		stretch, err := cutter.Next()
		if errors.Is(err, io.EOF) {
			return heard, nil
		}
		if err != nil {
			return heard, err
		}
		heard.Duration = stretch.Start + stretch.Seconds()
		var said spoken
		if !stretch.Silent {
			if said, err = l.hear(ctx, stretch, o); err != nil {
				return heard, err
			}
		}
		heard.Language = cmp.Or(heard.Language, said.language)
		for i := range said.segments {
			s := &said.segments[i]
			placeAt(s, stretch.Start, last, heard.Duration)
			last = s.Start
			label(s, speakers)
			if err := emit(engines.TranscriptEvent{Seconds: s.End, Segment: s}); err != nil {
				return heard, err
			}
		}
		if err := emit(engines.TranscriptEvent{Seconds: heard.Duration}); err != nil {
			return heard, err
		}
	}
}

// keep writes sound to a file of its own, which goes when it is closed.
func (l *listener) keep(pcm io.Reader) (*os.File, error) {
	file, err := os.CreateTemp(l.own, "sound-*")
	if err != nil {
		return nil, err
	}
	err = os.Remove(file.Name())
	if err == nil {
		_, err = io.Copy(file, pcm)
	}
	if err != nil {
		_ = file.Close() // the first error is told
		return nil, err
	}
	return file, nil
}

// hear asks for one stretch: with each temperature in turn where the server
// takes but one, until what is heard can be believed.
func (l *listener) hear(ctx context.Context, s sound.Chunk, o engines.TranscriptionOptions) (said spoken, err error) {
	path := transcriptions
	if o.Translate && l.dialect.translation != "" {
		path = l.dialect.translation
	}
	tries := [][]float64{o.Temperature}
	if !l.dialect.climbs && len(o.Temperature) > 1 {
		tries = nil
		for _, t := range o.Temperature {
			tries = append(tries, []float64{t})
		}
	}
	for _, one := range tries {
		asked := o
		asked.Temperature = one
		f := newForm()
		if l.dialect.model != "" {
			f.add("model", l.dialect.model)
		}
		f.add("response_format", "verbose_json")
		l.dialect.fields(f, l.settings, asked)
		var answer verbose
		if err := l.post(ctx, path, f, s.PCM, &answer); err != nil {
			return said, err
		}
		if said, err = answer.spoken(s.Seconds(), l.dialect.tokens, o); err != nil {
			return said, err
		}
		if said.believable() {
			break
		}
	}
	return said, nil
}

// post waits for a turn, and sends a form with sound.
func (l *listener) post(ctx context.Context, path string, f *form, pcm []byte, out any) error {
	select {
	case l.turns <- struct{}{}:
		defer func() { <-l.turns }()
	case <-ctx.Done():
		return ctx.Err()
	}
	url, err := l.server.at()
	if err != nil {
		return err
	}
	request, err := f.request(ctx, url+path, pcm)
	if err != nil {
		return err
	}
	response, err := l.server.do(request)
	if err != nil {
		return err
	}
	return l.server.read(ctx, path, response, out)
}

// errNoWords says that the server is none for times of words.
func errNoWords() error {
	return domain.Errorf(domain.FailedPrecondition, "timestamp_granularities: the model's server tells no times of words: ask for segments, or use another model")
}
