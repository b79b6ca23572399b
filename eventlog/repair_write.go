package eventlog

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
)

// blockSize is how large a block of a repaired log is at most, as the server
// makes them.
const blockSize = 8 << 20

// write puts the chosen events in place of the log's files, which are kept
// aside, and makes the mark fit. Copies that do not fit are moved aside too:
// the server makes them anew.
func (r *repair) write(order []place, report RepairReport) error {
	fresh := filepath.Join(report.Aside, "new")
	chain, err := writeBlocks(fresh, order)
	if err != nil {
		return err
	}
	if err := os.Rename(r.dir, filepath.Join(report.Aside, "msgs")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.dir), 0o750); err != nil {
		return err
	}
	if err := os.Rename(fresh, r.dir); err != nil {
		return err
	}
	for _, dir := range []string{report.Aside, filepath.Dir(r.dir), filepath.Dir(r.Dir)} {
		if err := syncPath(dir); err != nil {
			return err
		}
	}
	mark := r.mark
	mark.Chain, mark.Durable, mark.Index, mark.Failed, mark.Damaged = chain, chain.Position, Hash{}, false, 0
	if !report.Whole() {
		lost := report.GivenUp
		for _, gap := range report.Lost {
			lost += gap.Last - gap.First + 1
		}
		mark.Lost, mark.LostAt = mark.Lost+lost, chain.Position
	}
	if err := writeMark(r.Mark, mark); err != nil {
		return err
	}
	for n, dir := range r.stale { // the folder of the stream, which holds that of its blocks
		if err := os.Rename(filepath.Dir(dir), filepath.Join(report.Aside, "copy-"+strconv.Itoa(n+1))); err != nil {
			return err
		}
	}
	return syncPath(report.Aside)
}

// writeBlocks writes events to block files of their own, durably.
func writeBlocks(dir string, order []place) (chain Chain, err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return chain, err
	}
	number, content := 1, make([]byte, 0, blockSize)
	finish := func() error {
		err := writeDurably(filepath.Join(dir, strconv.Itoa(number)+".blk"), content)
		number, content = number+1, content[:0]
		return err
	}
	sums := hashOf(Stream, number)
	for _, p := range order {
		rec, err := p.from.record(p)
		if err != nil {
			return chain, err
		}
		e, _ := rec.stored()
		if err := chain.extend(e); err != nil {
			return chain, err
		}
		if len(content) > 0 && len(content)+p.size > blockSize {
			if err := finish(); err != nil {
				return chain, err
			}
			sums = hashOf(Stream, number)
		}
		content = appendRecord(content, sums, rec)
	}
	if len(order) == 0 {
		return chain, syncPath(dir)
	}
	return chain, finish()
}
