package integrity

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"
)

// scrubRate is the speed at which Scrub reads the files of a running server, so that it does not
// slow down the server.
const scrubRate = 64 << 20 // bytes per second

// Scrub reads all blocks of the log once, except the newest, to which the server writes. It logs
// damage as an error and records it in the mark, so that the next start reads the whole log and
// refuses it. The running server continues, since its state was folded from complete events.
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
		if newest := all[len(all)-1].first(); newest > 0 { // 0 while the newest block is empty
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
	log.Error("the log is damaged: stop the server and run 'anneal log repair --data DIR'; it does not start until then",
		"error", damaged(dir, gaps))
	return kept.Update(func(m *HighWaterMark) { m.Damaged = gaps[0].First })
}

// pause sleeps for d. It returns false immediately when ctx is done first.
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
