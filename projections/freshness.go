package projections

import (
	"context"
	"time"

	"anneal/eventlog"
)

// ConfirmEvery is the interval at which KeepConfirming compares the world with the log.
const ConfirmEvery = time.Second

// Confirm returns when the world contains all events that the log had at the time of the call. now is
// that time, which Confirm records for Age.
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

// KeepConfirming requests the end of the log every ConfirmEvery until ctx is done. When the world has
// reached that end, KeepConfirming records the time of the request for Age and requests the end again.
func (w *World) KeepConfirming(ctx context.Context, log eventlog.Log) error {
	begin := time.Now()
	w.confirmed.CompareAndSwap(nil, &begin)
	ticker := time.NewTicker(ConfirmEvery)
	defer ticker.Stop()
	var asked time.Time // when the log ended at end; zero when the world has reached end
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

// endOf requests the position of the last event of the log, and returns the time of the request and
// the position. The time is zero when the log does not respond.
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

// Age returns the time for which the world may have lacked events of the log: the time since the
// last confirmation, or since the start of KeepConfirming. It is 0 before both.
func (w *World) Age(now time.Time) time.Duration {
	if at := w.confirmed.Load(); at != nil {
		return now.Sub(*at)
	}
	return 0
}

// Behind returns since when the world has lacked an event that KeepConfirming has found in the log;
// zero when there is none. While the log does not respond, nothing is known of newer events.
func (w *World) Behind() time.Time {
	if at := w.behind.Load(); at != nil {
		return *at
	}
	return time.Time{}
}
