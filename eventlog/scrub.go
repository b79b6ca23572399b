package eventlog

import (
	"context"
	"errors"
	"os"
	"time"
)

// How fast and how often the files of a running server are read.
const (
	scrubRate  = 64 << 20 // bytes a second
	scrubEvery = 24 * time.Hour
)

// Scrub reads the log's closed blocks again and again until ctx is done: at
// once when the check before the start left some out, and then every
// scrubEvery. Damage is logged as an error and noted in the mark, so that the
// next start reads the whole log and refuses it; what runs goes on, since its
// state was folded from whole events.
func (s *Server) Scrub(ctx context.Context) error {
	if s.log.mark == nil {
		return nil
	}
	if !s.part && !sleep(ctx, scrubEvery) {
		return ctx.Err()
	}
	for {
		if err := s.scrub(ctx); err != nil {
			return err
		}
		if !sleep(ctx, scrubEvery) {
			return ctx.Err()
		}
	}
}

// scrub reads all blocks but the newest, in which the server writes, once.
func (s *Server) scrub(ctx context.Context) error {
	dir := newDiskSync(s.dir, "CONTROL", Stream).dir
	all, err := blocksOf(dir)
	if err != nil || len(all) < 2 || foreign(dir) != "" {
		return nil
	}
	mark := s.log.mark.now()
	found, err := surveyor{stream: Stream, mark: mark, first: 1, between: func(read int64) error {
		if !sleep(ctx, time.Duration(read)*time.Second/scrubRate) {
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
		s.logger.Error("the log's files cannot be read", "error", err)
		return nil
	default:
		if newest := all[len(all)-1].first(); newest > 0 { // else nothing is in it yet
			gaps = found.lacks(newest - 1)
		} else {
			gaps = found.gaps
		}
	}
	if len(gaps) == 0 && found.marked.Position > 0 && found.marked.Hash != mark.Hash {
		gaps = []Gap{{1, mark.Position, "the running hash is not that of the mark"}}
	}
	if len(gaps) == 0 {
		return nil
	}
	s.logger.Error("the log is damaged: stop the server and run 'anneal log repair --data DIR'; it will not start again before", "error", damaged(dir, gaps))
	return s.log.mark.change(func(m *Mark) { m.Damaged = gaps[0].First })
}
