package agent

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

const (
	queuedPerSlot = 4                // maximum number of audio files that wait, for each slot of the speech model
	audioTimeout  = 20 * time.Second // how long the download of an audio file is retried
)

// transcribe transcribes an audio file until ctx is done or the replica ends. It first validates
// the options, and downloads the file when a slot is free.
func (r *replica) transcribe(
	ctx context.Context, req engines.TranscriptionRequest, emit func(engines.TranscriptEvent) error,
) (transcript engines.Transcript, err error) {
	if r.assignment.Speech == nil {
		return transcript, errModelKind
	}
	leave, err := r.enter()
	if err != nil {
		return transcript, err
	}
	defer leave()
	err = r.use(ctx, func(ctx context.Context) error {
		if err := r.speech.Check(req.Options); err != nil {
			return err
		}
		release, err := r.acquireSlot(ctx)
		if err != nil {
			return err
		}
		defer release()
		transcript, err = r.transcribeInSlot(ctx, req, emit)
		return err
	})
	return transcript, err
}

// acquireSlot waits for a slot of the speech model. release frees the slot. It returns an error
// when the queue is full.
func (r *replica) acquireSlot(ctx context.Context) (release func(), err error) {
	select {
	case r.queue <- struct{}{}:
	default:
		return nil, domain.Errorf(domain.ResourceExhausted, "the replica is transcribing %d recordings and has %d in "+
			"its queue: try again later, or raise maxReplicaCount",
			cap(r.slots), cap(r.queue)-cap(r.slots))
	}
	select {
	case r.slots <- struct{}{}:
		return func() { <-r.slots; <-r.queue }, nil
	case <-ctx.Done():
		<-r.queue
		return nil, ctx.Err()
	}
}

func (r *replica) transcribeInSlot(
	ctx context.Context, req engines.TranscriptionRequest, emit func(engines.TranscriptEvent) error,
) (transcript engines.Transcript, err error) {
	dir, err := os.MkdirTemp(r.agent.workDir(), "audio-")
	if err != nil {
		return transcript, diskError(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "audio")
	file := protocol.File{Name: "audio", Size: req.Audio.Size, URL: req.Audio.URL}
	if err := retry(ctx, time.Now().Add(audioTimeout), func() error {
		return r.agent.files.get(ctx, file,
			path)
	}); err != nil {
		return transcript, err
	}
	pcm, err := r.agent.options.Sound(ctx, path, req.Preprocessing)
	if err != nil {
		return transcript, err
	}
	defer pcm.Close()
	return callEngine(ctx, r, func(ctx context.Context) (engines.Transcript, error) {
		return r.speech.Transcribe(ctx, pcm, req.Options, emit)
	})
}
