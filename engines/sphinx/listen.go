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

type listener struct {
	options     Options
	args        []string
	dir         string // of the model
	trusted     bool   // it comes from the operator
	hesitations []string
	free        chan *program // those that nobody uses; nil is one that may be started
	life        context.Context
	end         context.CancelFunc
	closing     sync.Once
}

func (l *listener) Info() engines.SpeechModelInfo {
	return engines.SpeechModelInfo{Slots: l.options.Slots, Languages: []string{english}}
}

func (l *listener) Check(o engines.TranscriptionOptions) error {
	var v domain.Violations
	v.Require(o.Language == "" || o.Language == english, "language", "PocketSphinx listens to English only: use en, or another model")
	v.Require(!o.Translate, "task", "PocketSphinx does not translate: use transcribe, or another model")
	v.Require(!o.Diarize, "diarize", "PocketSphinx does not tell speakers apart: leave it out, or use another model")
	v.Require(o.VAD == "", "vad_model", "PocketSphinx has no such models: leave it out, or use another model")
	v.Require(o.Alignment == "", "alignment_model", "PocketSphinx has no such models: leave it out, or use another model")
	v.Require(len(o.Temperature) == 0 || len(o.Temperature) == 1 && o.Temperature[0] == 0, "temperature",
		"PocketSphinx knows none but 0: leave it out, or use another model")
	v.Require(o.Prompt == "" || l.hesitates(o.Prompt), "prompt",
		"PocketSphinx takes a prompt only to write fillers out: put one of %s in it, leave it out, or use another model", strings.Join(l.hesitations, ", "))
	return v.Err()
}

// hesitates tells whether a prompt has a filler that the model knows.
func (l *listener) hesitates(prompt string) bool {
	words := strings.FieldsFunc(strings.ToLower(prompt), func(r rune) bool { return (r < 'a' || r > 'z') && r != '\'' })
	return slices.ContainsFunc(words, func(word string) bool { return slices.Contains(l.hesitations, word) })
}

// longest is how long a stretch may be: long enough for the model to see what
// words stand together, and short enough for a few to be listened to at once.
const longest = 30 * time.Second

// A hearing is what is heard in one stretch.
type hearing struct {
	until float64 // seconds from the start of the recording
	words []engines.Word
	err   error
}

// Transcribe implements engines.Listener. Stretches are listened to side by
// side, as far as programs are free, and handed on in the order of time.
func (l *listener) Transcribe(ctx context.Context, pcm io.Reader, options engines.TranscriptionOptions, emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
	heard := engines.Transcript{Language: english}
	if err := l.Check(options); err != nil {
		return heard, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var queue []<-chan hearing
	defer func() {
		cancel()
		for _, h := range queue {
			<-h
		}
	}()
	fillers := l.hesitates(options.Prompt)
	cutter := sound.NewSplitter(pcm, longest)
	for ended := false; ; {
		for !ended && len(queue) < 2*l.options.Slots {
			stretch, err := cutter.Next()
			if ended = errors.Is(err, io.EOF); err != nil && !ended {
				return heard, err
			}
			if !ended {
				queue = append(queue, l.hear(ctx, stretch))
			}
		}
		if len(queue) == 0 {
			return heard, nil
		}
		next := <-queue[0]
		queue = queue[1:]
		if next.err != nil {
			return heard, next.err
		}
		heard.Duration = next.until
		if err := hand(next, fillers, emit); err != nil {
			return heard, err
		}
	}
}

// hear listens to a stretch while others are listened to.
func (l *listener) hear(ctx context.Context, s sound.Chunk) <-chan hearing {
	answer := make(chan hearing, 1)
	h := hearing{until: s.Start + s.Seconds()}
	if s.Silent {
		answer <- h
		return answer
	}
	go func() {
		dither(s.PCM)
		if h.words, h.err = l.recognize(ctx, s.PCM); h.err == nil {
			place(h.words, s.Start, h.until)
		}
		answer <- h
	}()
	return answer
}

// recognize waits for a program that is free. When that ends by itself another
// one tries once more.
func (l *listener) recognize(ctx context.Context, pcm []byte) (words []engines.Word, err error) {
	var p *program
	select {
	case p = <-l.free:
	case <-l.life.Done():
		return nil, errClosed()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { l.free <- p }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.life, cancel)()
	for range 2 {
		if p == nil {
			if p, err = l.start(); err != nil {
				return nil, err
			}
		}
		if words, err = p.listen(ctx, pcm); err == nil {
			return words, nil
		}
		p.close()
		p = nil
		if l.life.Err() != nil {
			return nil, errClosed()
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !errors.Is(err, errEnded) {
			break
		}
	}
	return nil, domain.Errorf(domain.Internal, "PocketSphinx gave up on a stretch of the recording: %v", err)
}

// Close ends all programs, and waits for those that listen.
func (l *listener) Close() error {
	l.closing.Do(func() {
		l.end()
		for range l.options.Slots {
			if p := <-l.free; p != nil {
				p.close()
			}
		}
	})
	return nil
}

func errClosed() error {
	return domain.Errorf(domain.Unavailable, "the model was unloaded; send the request to another replica")
}
