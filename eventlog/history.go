package eventlog

import (
	"context"
	"fmt"
	"sync"
	"time"

	"anneal/domain"
	"anneal/eventlog/integrity"
)

// A history records the newest event that this process has received or appended. It detects that
// the log was set back: that the log's stream was restored from an older backup or recreated while
// the process runs. The log then lacks the newest event and does not match the state in memory, so
// the process stops reading and appending.
type history struct {
	mu     sync.Mutex
	newest Checkpoint
	err    error
	failed chan struct{} // closed when err is set; created when done is first called
}

// saw records the position and ID of an event that this process has received or appended.
func (h *history) saw(position uint64, id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if position > h.newest.Position {
		h.newest = Checkpoint{Position: position, EventID: id}
	}
}

func (h *history) last() Checkpoint {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newest
}

// failure returns the DataLoss error that fail recorded; nil when the log was not set back.
func (h *history) failure() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// fail records that the log was set back, and returns the DataLoss error. The arguments describe
// what the log has instead of the expected event. A repeated call returns the first error.
func (h *history) fail(format string, args ...any) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return h.err
	}
	f := domain.Errorf(domain.DataLoss,
		"the event log was set back while this process ran (%s): its stream was restored from an older backup or "+
			"recreated. Stop all control planes, restore the newest backup or run 'anneal log repair --data DIR', then start "+
			"again",
		fmt.Sprintf(format, args...))
	f.Reason = integrity.ReasonDamaged
	h.err = f
	if h.failed == nil {
		h.failed = make(chan struct{})
	}
	close(h.failed)
	return h.err
}

// done returns a channel that is closed when fail is called.
func (h *history) done() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed == nil {
		h.failed = make(chan struct{})
	}
	return h.failed
}

// checkEvery is the interval at which a follower calls checkHistory. The interval is needed because
// a consumer whose position is beyond the end of its stream waits without an error.
const checkEvery = 2 * time.Second

// absentFor is how long a replicated log must lack an event until it counts as set back. A leader
// of the stream that a network partition separates from the other servers lacks the newest events
// but still responds. Such a leader steps down after at most 20 s, when it notices that it has no
// quorum, or when it can reach the other servers and one of them leads.
const absentFor = 30 * time.Second

// absentInElection is how long the log must lack an event until it counts as set back, if its
// stream has only one server. See absentFor.
const absentInElection = 400 * time.Millisecond

// checkHistory returns a DataLoss error when the log no longer has the newest event that this
// process has seen, and another error when the log cannot be read.
func (l *JetStream) checkHistory(ctx context.Context) error {
	seen := l.history.last()
	if seen.Position == 0 {
		return l.history.failure()
	}
	for began := time.Now(); ; {
		e, err := l.At(ctx, seen.Position)
		switch {
		case err == nil && e.ID == seen.EventID:
			return nil
		case err == nil:
			return l.history.fail("the log has event %s at position %d, but this process has seen event %s "+
				"there", e.ID, seen.Position,
				seen.EventID)
		case domain.CodeOf(err) != domain.NotFound:
			return err
		case l.filtered:
			return nil // a mirror that was created again has not received the event yet
		case time.Since(began) >= absentFor, time.Since(began) >= absentInElection && onOneServer(ctx, l):
			return l.history.fail("the log has no event at position %d, but this process has seen event %s "+
				"there", seen.Position, seen.EventID)
		case !Sleep(ctx, 100*time.Millisecond):
			return ctx.Err()
		}
	}
}

// onOneServer reports whether the stream is known to have one replica. It is false when the NATS
// server does not reply.
func onOneServer(ctx context.Context, l *JetStream) bool {
	ctx, cancel := context.WithTimeout(ctx, l.ackWait)
	defer cancel()
	stream, err := l.js.Stream(ctx, Stream)
	return err == nil && stream.CachedInfo().Config.Replicas == 1 && !l.replicated
}

// watchHistory calls checkHistory every checkEvery until ctx is done. It calls cancel when the log
// was set back.
func (l *JetStream) watchHistory(ctx context.Context, cancel context.CancelFunc) {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.history.done():
			cancel()
			return
		case <-ticker.C:
			// checkHistory records that the log was set back; errors of reading are reported by the follower
			_ = l.checkHistory(ctx)
		}
	}
}
