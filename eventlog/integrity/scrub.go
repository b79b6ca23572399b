package integrity

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"
)

// scrubRate limits the speed at which Scrub reads files, so that it does not slow down the running
// server.
const scrubRate = 64 << 20 // bytes per second

// Scrub reads all block files of the log once while the server runs, except the newest, to which
// the server writes. When it finds damage, it logs an error and records the damage in the
// high-water mark: the next start then reads all of the log and fails until the log is repaired.
// The running server continues, because the state in its memory was computed from complete events.
func Scrub(ctx context.Context, store string, kept *MarkFile, log *slog.Logger) error {
	dir := BlockDir(store, "CONTROL", logStream)
	all, err := blocksOf(dir)
	if err != nil || len(all) < 2 || foreign(dir) != "" {
		return nil
	}
	mark := kept.Mark()
	found, err := surveyor{stream: logStream, mark: mark, first: 1, between: func(read int64) error {
		if !pause(ctx, time.Duration(read)*time.Second/scrubRate) {
			return ctx.Err()
		}
		return nil
	}}.survey(all[:len(all)-1])
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var gaps []Gap
	switch {
	case errors.Is(err, os.ErrNotExist):
		gaps = []Gap{{found.last + 1, mark.Durable, "a block file is missing"}}
	case err != nil:
		log.Error("cannot check the log for damage while the server runs: a block file cannot be read; check the disk. "+
			"The log is checked again at the next start", "error", err)
		return nil
	default:
		if newest := all[len(all)-1].first(); newest > 0 { // 0 when the newest block file is still empty
			gaps = found.lacks(newest - 1)
		} else {
			gaps = found.gaps
		}
	}
	if len(gaps) == 0 && found.marked.Position > 0 && found.marked.Hash != mark.Hash {
		gaps = []Gap{{1, mark.Position, "the hash of the events does not match the high-water mark"}}
	}
	if len(gaps) == 0 {
		return nil
	}
	log.Error("the log is damaged: stop the server and run 'anneal log repair --data DIR'. The server runs on, but "+
		"does not start again before the repair",
		"error", damaged(dir, gaps))
	return kept.Update(func(m *HighWaterMark) { m.Damaged = gaps[0].First })
}

// pause waits for d and returns true. It returns false as soon as ctx is done.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
