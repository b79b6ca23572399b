package projections

import (
	"context"
	"time"

	"anneal/eventlog"
)

// ConfirmEvery is the interval at which KeepConfirming compares the position of the world with the
// end of the log.
const ConfirmEvery = time.Second

// Confirm returns when the world has folded all events that the log had at the time of the call.
// now is this time, which Confirm records for Age.
func (w *World) Confirm(ctx context.Context, log eventlog.Log, now time.Time) error {
	last, err := log.Last(ctx)
	if err == nil {
		err = w.WaitFor(ctx, last.Position)
	}
	if err == nil {
		w.confirmed.Store(&now)
	}
	return err
}

// KeepConfirming requests the position of the log's last event every ConfirmEvery until ctx is
// done. When the world has reached this position, KeepConfirming records the time of the request
// for Age and requests the position again.
func (w *World) KeepConfirming(ctx context.Context, log eventlog.Log) error {
	begin := time.Now()
	w.confirmed.CompareAndSwap(nil, &begin)
	ticker := time.NewTicker(ConfirmEvery)
	defer ticker.Stop()
	// time of the request that returned end, the last position of the log; zero once the world has
	// reached it
	var asked time.Time
	var end uint64
	for {
		if asked.IsZero() {
			asked, end = endOf(ctx, log)
		}
		switch {
		case asked.IsZero():
		case w.Position() >= end:
			w.confirmed.Store(new(asked))
			w.behind.Store(nil)
			asked = time.Time{}
		case w.behind.Load() == nil:
			w.behind.Store(new(asked))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// endOf requests the position of the log's last event. It returns the time of the request and the
// position; a zero time when the log does not respond.
func endOf(ctx context.Context, log eventlog.Log) (asked time.Time, end uint64) {
	ctx, cancel := context.WithTimeout(ctx, 2*ConfirmEvery)
	defer cancel()
	now := time.Now()
	last, err := log.Last(ctx)
	if err != nil {
		return time.Time{}, 0
	}
	return now, last.Position
}

// Age returns how old the state of the world may be: the time since Confirm or KeepConfirming last
// found that the world had all events of the log, or since KeepConfirming started. It returns 0
// before the first call of either.
func (w *World) Age(now time.Time) time.Duration {
	if at := w.confirmed.Load(); at != nil {
		return now.Sub(*at)
	}
	return 0
}

// Behind returns since when the world has lacked an event that KeepConfirming has found in the log;
// zero when it lacks none. Events that are recorded while the log does not respond are not found.
func (w *World) Behind() time.Time {
	if at := w.behind.Load(); at != nil {
		return *at
	}
	return time.Time{}
}
