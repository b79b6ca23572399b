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

// maxChunk is the maximum duration of the audio in a request: long enough for the context of the
// model, and short enough for the memory.
const maxChunk = 2 * time.Minute

// Transcribe implements engines.SpeechModel. It sends the chunks of a recording to the server one
// after the other. Diarization needs the whole recording first, so Transcribe then stores the
// samples on disk.
func (m *speechModel) Transcribe(ctx context.Context, pcm io.Reader, o engines.TranscriptionOptions,
	emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
	result := engines.Transcript{Language: o.Language}
	if err := m.Check(o); err != nil {
		return result, err
	}
	o.Words = o.Words || o.Diarize // diarization needs words, to which it assigns the speakers
	var turns []turn
	if o.Diarize {
		buffer, err := m.bufferAudio(pcm)
		if err != nil {
			return result, err
		}
		defer buffer.Close()
		if turns, err = m.diarize(ctx, buffer); err != nil {
			return result, err
		}
		if _, err := buffer.Seek(0, io.SeekStart); err != nil {
			return result, err
		}
		pcm = buffer
	}
	chunks := sound.NewSplitter(pcm, maxChunk)
	last := 0.0
	for {
		chunk, err := chunks.Next()
		if errors.Is(err, io.EOF) {
			return result, nil
		}
		if err != nil {
			return result, err
		}
		result.Duration = chunk.Start + chunk.Seconds()
		var t transcript
		if !chunk.Silent {
			if t, err = m.transcribe(ctx, chunk, o); err != nil {
				return result, err
			}
		}
		result.Language = cmp.Or(result.Language, t.language)
		for i := range t.segments {
			s := &t.segments[i]
			placeAt(s, chunk.Start, last, result.Duration)
			last = s.Start
			label(s, turns)
			if err := emit(engines.TranscriptEvent{Seconds: s.End, Segment: s}); err != nil {
				return result, err
			}
		}
		if err := emit(engines.TranscriptEvent{Seconds: result.Duration}); err != nil {
			return result, err
		}
	}
}

// bufferAudio stores the samples in a file without a name, which the system deletes when the file
// is closed.
func (m *speechModel) bufferAudio(pcm io.Reader) (*os.File, error) {
	file, err := os.CreateTemp(m.own, "sound-*")
	if err != nil {
		return nil, err
	}
	err = os.Remove(file.Name())
	if err == nil {
		_, err = io.Copy(file, pcm)
	}
	if err != nil {
		_ = file.Close() // the earlier error is returned instead
		return nil, err
	}
	return file, nil
}

// transcribe returns the transcript of a chunk. If the server takes only one temperature in a
// request, it tries each temperature in order until a transcript is acceptable, and otherwise
// returns the last one.
func (m *speechModel) transcribe(
	ctx context.Context, s sound.Chunk, o engines.TranscriptionOptions,
) (t transcript, err error) {
	path := transcriptions
	if o.Translate && m.dialect.translation != "" {
		path = m.dialect.translation
	}
	attempts := [][]float64{o.Temperature}
	if !m.dialect.increments && len(o.Temperature) > 1 {
		attempts = nil
		for _, temperature := range o.Temperature {
			attempts = append(attempts, []float64{temperature})
		}
	}
	for _, temperature := range attempts {
		options := o
		options.Temperature = temperature
		f := newForm()
		if m.dialect.model != "" {
			f.add("model", m.dialect.model)
		}
		f.add("response_format", "verbose_json")
		m.dialect.fields(f, m.settings, options)
		var response verboseJSON
		if err := m.post(ctx, path, f, s.PCM, &response); err != nil {
			return t, err
		}
		if t, err = response.transcript(s.Seconds(), m.dialect.tokens, o); err != nil {
			return t, err
		}
		if t.acceptable() {
			break
		}
	}
	return t, nil
}

// post waits until the server has a free slot, sends a form with samples, and decodes the response
// into out.
func (m *speechModel) post(ctx context.Context, path string, f *form, pcm []byte, out any) error {
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	url, err := m.server.address()
	if err != nil {
		return err
	}
	request, err := f.request(ctx, url+path, pcm)
	if err != nil {
		return err
	}
	response, err := m.server.do(request)
	if err != nil {
		return err
	}
	return m.server.read(ctx, path, response, out)
}

// errNoWords returns the error for a server that returns no word timestamps.
func errNoWords() error {
	return domain.Errorf(domain.FailedPrecondition,
		"timestamp_granularities: the model server returns no word timestamps: use segment, or another model")
}
