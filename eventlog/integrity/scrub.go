package integrity

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"
)

// scrubRate is how fast the files of a running server are read.
const scrubRate = 64 << 20 // bytes a second

// Scrub reads all blocks but the newest, in which the server writes, once. Damage is
// logged as an error and noted in the mark, so that the next start reads the whole log and
// refuses it; what runs continues, since its state was folded from whole events.
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
		log.Error("cannot read the log's files", "error", err)
		return nil
	default:
		if newest := all[len(all)-1].first(); newest > 0 { // else it is still empty
			gaps = found.lacks(newest - 1)
		} else {
			gaps = found.gaps
		}
	}
	if len(gaps) == 0 && found.marked.Position > 0 && found.marked.Hash != mark.Hash {
		gaps = []Gap{{1, mark.Position, "the running hash does not match the mark"}}
	}
	if len(gaps) == 0 {
		return nil
	}
	log.Error("the log is damaged: stop the server and run 'anneal log repair --data DIR'; it does not start before", "error", damaged(dir, gaps))
	return kept.Update(func(m *HighWaterMark) { m.Damaged = gaps[0].First })
}

// pause sleeps; false means that ctx was done first.
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
