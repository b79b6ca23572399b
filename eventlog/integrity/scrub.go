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

// Scrub reads all block files of the log and its mirrors once while the server runs. Of the newest
// block file of the log, to which the server writes, it checks the events up to the high-water
// mark. It does not check the newest block files of the mirrors. When it finds damage to the log,
// it logs an error and records the damage in the high-water mark: the next start then reads all of
// the log and fails until the log is repaired. The running server continues, because the state in
// its memory was computed from complete events. When a mirror is damaged, the next start recreates
// it.
func Scrub(ctx context.Context, store string, kept *MarkFile, log *slog.Logger) error {
	dir := BlockDir(store, "CONTROL", logStream)
	mark := kept.Mark() // read it before the files are listed, so that they have every event up to the mark
	all, err := blocksOf(dir)
	if err != nil || len(all) < 2 || foreign(dir) != "" {
		return nil
	}
	between := func(read int64) error {
		if !pause(ctx, time.Duration(read)*time.Second/scrubRate) {
			return ctx.Err()
		}
		return nil
	}
	found, err := surveyor{stream: logStream, mark: mark, first: 1, between: between}.survey(all)
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
		must := mark.MinPosition()
		if newest := all[len(all)-1].first(); newest > 0 { // 0 when the newest block file is still empty
			must = max(must, newest-1)
		}
		gaps = found.lacks(must)
	}
	if len(gaps) == 0 && found.marked.Position > 0 && found.marked.Hash != mark.Hash {
		gaps = []Gap{{1, mark.Position, "the hash of the events does not match the high-water mark"}}
	}
	if len(gaps) == 0 {
		intact, err := scrubMirrors(store, between, log)
		if err == nil {
			kept.SetUnread(!intact)
		}
		if intact {
			log.Info("checked the files of the log and its mirrors while the server runs: they are intact")
		}
		return ctx.Err()
	}
	log.Error("the log is damaged: stop the server and run 'anneal log repair --data DIR'. The server keeps running, but "+
		"cannot be started again before the repair",
		"error", damaged(dir, gaps))
	return kept.Update(func(m *HighWaterMark) { m.Damaged = gaps[0].First })
}

// scrubMirrors reads the block files of the mirrors of the log, except their newest, and reports
// whether they are intact. It returns an error of between.
func scrubMirrors(store string, between func(read int64) error, log *slog.Logger) (intact bool, err error) {
	dirs, err := copiesOf(store, logStream)
	if err != nil {
		return false, err
	}
	intact = true
	for _, dir := range dirs {
		all, err := blocksOf(dir)
		if err != nil || len(all) < 2 || foreign(dir) != "" {
			continue // there is nothing to read, or the mirror was removed
		}
		var stopped error
		found, err := surveyor{stream: logStream, first: 1, between: func(read int64) error {
			stopped = between(read)
			return stopped
		}}.survey(all[:len(all)-1])
		if stopped != nil {
			return false, stopped
		}
		if err != nil || len(found.flaws) > 0 {
			intact = false
			log.Warn("a mirror of the log is damaged, and the log itself is complete: the next start recreates the mirror",
				"directory", dir)
		}
	}
	return intact, nil
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
