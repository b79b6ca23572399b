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
	waitingPerSlot = 4                // recordings that may wait for each one that is listened to
	audioPatience  = 20 * time.Second // with a store that does not answer; another replica may reach it
)

// listen tells what is said in a recording; it ends when ctx or the replica
// does. Options are judged first, and the recording is fetched when its turn
// has come.
func (r *replica) listen(ctx context.Context, req engines.Transcription, emit func(engines.TranscriptEvent) error) (heard engines.Transcript, err error) {
	if r.order.Speech == nil {
		return heard, errOtherKind
	}
	leave, err := r.join()
	if err != nil {
		return heard, err
	}
	defer leave()
	err = r.during(ctx, func(ctx context.Context) error {
		if err := r.listener.Check(req.Options); err != nil {
			return err
		}
		done, err := r.turn(ctx)
		if err != nil {
			return err
		}
		defer done()
		heard, err = r.transcribe(ctx, req, emit)
		return err
	})
	return heard, err
}

// turn waits until the listener has room, until done is called. A few may wait.
func (r *replica) turn(ctx context.Context) (done func(), err error) {
	select {
	case r.line <- struct{}{}:
	default:
		return nil, domain.Errorf(domain.ResourceExhausted, "the replica listens to %d recordings and %d more wait: try again later, or raise maxReplicaCount",
			cap(r.turns), cap(r.line)-cap(r.turns))
	}
	select {
	case r.turns <- struct{}{}:
		return func() { <-r.turns; <-r.line }, nil
	case <-ctx.Done():
		<-r.line
		return nil, ctx.Err()
	}
}

// transcribe fetches the recording, and keeps it while it is listened to.
func (r *replica) transcribe(ctx context.Context, req engines.Transcription, emit func(engines.TranscriptEvent) error) (heard engines.Transcript, err error) {
	dir, err := os.MkdirTemp(r.agent.workDir(), "audio-")
	if err != nil {
		return heard, diskFault(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "audio")
	file := protocol.File{Name: "audio", Size: req.Audio.Size, URL: req.Audio.URL}
	if err := persist(ctx, time.Now().Add(audioPatience), func() error { return r.agent.files.get(ctx, file, path) }); err != nil {
		return heard, err
	}
	pcm, err := r.agent.options.Sound(ctx, path, req.Preprocessing)
	if err != nil {
		return heard, err
	}
	defer pcm.Close()
	return r.listener.Transcribe(ctx, pcm, req.Options, emit)
}
