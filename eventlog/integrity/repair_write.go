package integrity

import (
	"anneal/disk"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// blockSize is the maximum size in bytes of a block file that Repair writes. It is the NATS
// server's limit.
const blockSize = 8 << 20

// write replaces the log's block files by files with the records in order, and updates the
// high-water mark. It moves the replaced files, and mirrors that differ from the repaired log, to
// report.Aside; the server creates these mirrors again.
func (r *repair) write(order []recordRef, report RepairReport) error {
	fresh := filepath.Join(report.Aside, freshBlocks)
	chain, err := writeBlocks(fresh, order)
	if err != nil {
		return err
	}
	if err := replaceBlocks(r.dir, fresh, filepath.Join(report.Aside, formerBlocks)); err != nil {
		return err
	}
	for _, dir := range []string{report.Aside, filepath.Dir(r.dir), filepath.Dir(r.Dir)} {
		if err := disk.Sync(dir); err != nil {
			return err
		}
	}
	mark := r.mark
	mark.HashChain, mark.Durable, mark.Files, mark.Failed, mark.Damaged = chain, chain.Position, Hash{}, false, 0
	if !report.Intact() {
		lost := report.GivenUp
		for _, gap := range report.Lost {
			lost += gap.Last - gap.First + 1
		}
		mark.Lost, mark.LostAt = mark.Lost+lost, chain.Position
	}
	if err := WriteMark(r.Mark, mark); err != nil {
		return err
	}
	for n, dir := range r.stale { // moves the mirror's stream directory, the parent of dir
		if err := os.Rename(filepath.Dir(dir), filepath.Join(report.Aside, "copy-"+strconv.Itoa(n+1))); err != nil {
			return err
		}
	}
	return disk.Sync(report.Aside)
}

// Names of directories with block files in RepairReport.Aside.
const (
	freshBlocks  = "new"  // block files of the repaired log until they replace the log's
	formerBlocks = "msgs" // replaced block files of the log
)

// replaceBlocks renames the directory dir to former, and fresh to dir. Where the system cannot
// exchange two directories atomically, a crash between the two renames leaves no directory dir;
// undoReplacement restores it.
func replaceBlocks(dir, fresh, former string) error {
	done, err := disk.Exchange(fresh, dir)
	if err != nil {
		return err
	}
	if done {
		return os.Rename(fresh, former)
	}
	if err := os.Rename(dir, former); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := disk.Sync(filepath.Dir(former)); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return err
	}
	return os.Rename(fresh, dir)
}

// undoReplacement restores dir, the directory of the log's block files, if replaceBlocks crashed
// between its two renames.
func undoReplacement(store, dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	asides, err := filepath.Glob(filepath.Clean(store) + ".repaired-*")
	if err != nil {
		return err
	}
	slices.Sort(asides) // from the oldest to the newest, because the names end with the time
	for _, aside := range slices.Backward(asides) {
		former := filepath.Join(aside, formerBlocks)
		_, unfinished := os.Stat(filepath.Join(aside, freshBlocks))
		_, there := os.Stat(former)
		if unfinished != nil || there != nil {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
			return err
		}
		if err := os.Rename(former, dir); err != nil {
			return err
		}
		return errors.Join(disk.Sync(aside), disk.Sync(filepath.Dir(dir)))
	}
	return nil
}

// writeBlocks durably writes the records in order to new block files in dir, and returns the hash
// chain of their events.
func writeBlocks(dir string, order []recordRef) (chain HashChain, err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return chain, err
	}
	number, content := 1, make([]byte, 0, blockSize)
	finish := func() error {
		err := disk.WriteFile(filepath.Join(dir, strconv.Itoa(number)+".blk"), content)
		number, content = number+1, content[:0]
		return err
	}
	sums := hashOf(logStream, number)
	for _, p := range order {
		rec, err := p.from.record(p)
		if err != nil {
			return chain, err
		}
		e, _ := rec.stored()
		if err := chain.Extend(e); err != nil {
			return chain, err
		}
		if len(content) > 0 && len(content)+p.size > blockSize {
			if err := finish(); err != nil {
				return chain, err
			}
			sums = hashOf(logStream, number)
		}
		content = appendRecord(content, sums, rec)
	}
	if len(order) == 0 {
		return chain, disk.Sync(dir)
	}
	return chain, finish()
}
