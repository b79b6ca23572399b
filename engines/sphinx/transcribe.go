package sphinx

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/sound"
)

type speechModel struct {
	options Options
	args    []string
	dir     string // directory of the model
	trusted bool   // the operator, not another account, provides the model
	fillers []string
	free    chan *program // idle processes; nil stands for a process that is not started yet
	life    context.Context
	end     context.CancelFunc
	closing sync.Once
}

func (m *speechModel) Info() engines.SpeechModelInfo {
	return engines.SpeechModelInfo{Slots: m.options.Slots, Languages: []string{english}}
}

func (m *speechModel) Check(o engines.TranscriptionOptions) error {
	var v domain.Violations
	v.Require(o.Language == "" || o.Language == english, "language",
		"PocketSphinx supports only English: use en, or another model")
	v.Require(!o.Translate, "task", "PocketSphinx does not translate: use transcribe, or another model")
	v.Require(!o.Diarize, "diarize", "PocketSphinx has no diarization: leave it out, or use another model")
	v.Require(o.VAD == "", "vad_model", "PocketSphinx has no VAD models: leave it out, or use another model")
	v.Require(o.Alignment == "", "alignment_model",
		"PocketSphinx has no alignment models: leave it out, or use another model")
	v.Require(len(o.Temperature) == 0 || len(o.Temperature) == 1 && o.Temperature[0] == 0, "temperature",
		"PocketSphinx supports only the temperature 0: leave it out, or use another model")
	v.Require(o.Prompt == "" || m.hasFiller(o.Prompt), "prompt",
		"PocketSphinx uses a prompt only to transcribe fillers: include one of %s, leave it out, or use another model",
		strings.Join(m.fillers, ", "))
	return v.Err()
}

// hasFiller reports whether a prompt contains a filler that the model knows.
func (m *speechModel) hasFiller(prompt string) bool {
	separates := func(r rune) bool { return (r < 'a' || r > 'z') && r != '\'' }
	words := strings.FieldsFunc(strings.ToLower(prompt), separates)
	return slices.ContainsFunc(words, func(word string) bool { return slices.Contains(m.fillers, word) })
}

// maxChunk is the maximum duration of a chunk: long enough for the context of the language model,
// and short enough that several chunks are transcribed concurrently.
const maxChunk = 30 * time.Second

// A result is the transcript of a chunk.
type result struct {
	until float64 // end of the chunk, in seconds from the beginning of the recording
	words []engines.Word
	err   error
}

// Transcribe implements engines.SpeechModel. It transcribes chunks concurrently in idle processes,
// and emits their segments in the order of their times.
func (m *speechModel) Transcribe(ctx context.Context, pcm io.Reader, options engines.TranscriptionOptions,
	emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
	transcript := engines.Transcript{Language: english}
	if err := m.Check(options); err != nil {
		return transcript, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var queue []<-chan result
	defer func() {
		cancel()
		for _, h := range queue {
			<-h
		}
	}()
	fillers := m.hasFiller(options.Prompt)
	chunks := sound.NewSplitter(pcm, maxChunk)
	for ended := false; ; {
		for !ended && len(queue) < 2*m.options.Slots {
			chunk, err := chunks.Next()
			if ended = errors.Is(err, io.EOF); err != nil && !ended {
				return transcript, err
			}
			if !ended {
				queue = append(queue, m.start(ctx, chunk))
			}
		}
		if len(queue) == 0 {
			return transcript, nil
		}
		next := <-queue[0]
		queue = queue[1:]
		if next.err != nil {
			return transcript, next.err
		}
		transcript.Duration = next.until
		if err := emitSegments(next, fillers, emit); err != nil {
			return transcript, err
		}
	}
}

// start transcribes a chunk in another goroutine, which sends the result to the returned channel.
func (m *speechModel) start(ctx context.Context, c sound.Chunk) <-chan result {
	done := make(chan result, 1)
	r := result{until: c.Start + c.Seconds()}
	if c.Silent {
		done <- r
		return done
	}
	go func() {
		dither(c.PCM)
		if r.words, r.err = m.recognize(ctx, c.PCM); r.err == nil {
			place(r.words, c.Start, r.until)
		}
		done <- r
	}()
	return done
}

// recognize waits for an idle process, and returns the words of the samples. If the process exits,
// recognize tries once more with another process.
func (m *speechModel) recognize(ctx context.Context, pcm []byte) (words []engines.Word, err error) {
	var p *program
	select {
	case p = <-m.free:
	case <-m.life.Done():
		return nil, errClosed()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { m.free <- p }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.life, cancel)()
	for range 2 {
		if p == nil {
			if p, err = m.startProgram(); err != nil {
				return nil, err
			}
		}
		if words, err = p.transcribe(ctx, pcm); err == nil {
			return words, nil
		}
		p.close()
		p = nil
		if m.life.Err() != nil {
			return nil, errClosed()
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !errors.Is(err, errEnded) {
			break
		}
	}
	return nil, domain.Errorf(domain.Internal, "PocketSphinx failed on a part of the recording: %v", err)
}

// Close stops all processes, after it has waited for the busy ones.
func (m *speechModel) Close() error {
	m.closing.Do(func() {
		m.end()
		for range m.options.Slots {
			if p := <-m.free; p != nil {
				p.close()
			}
		}
	})
	return nil
}

func errClosed() error {
	return domain.Errorf(domain.Unavailable, "the model was unloaded; send the request to another replica")
}
