package integrity

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"anneal/disk"
)

// Retention is how much a stream of records keeps: it deletes its oldest records.
type Retention struct {
	Age   time.Duration
	Count uint64
	Bytes int64
}

// A contents describes the valid records in the block files of a stream.
type contents struct {
	dir     string
	blocks  []block
	runs    []Gap // of positions with a record, in order
	count   uint64
	bytes   int64
	damaged bool // a flaw is not an interrupted write at the end
	torn    bool // the last block ends with a flaw
	partial bool // older blocks were not read
}

func (c contents) first() uint64 {
	if len(c.runs) == 0 {
		return 0
	}
	return c.runs[0].First
}

func (c contents) last() uint64 {
	if len(c.runs) == 0 {
		return 0
	}
	return c.runs[len(c.runs)-1].Last
}

// whole reports whether no record is missing or damaged between the first and the last one.
func (c contents) whole() bool { return len(c.runs) == 1 && !c.damaged }

// contentsOf reads the newest blocks of a stream in dir, up to wholeCheck bytes. each is called for
// every record unless it is nil.
func contentsOf(dir, stream string, each func(record)) (c contents, err error) {
	if c.blocks, err = blocksOf(dir); err != nil {
		return c, err
	}
	for c.dir = dir; sizeOf(c.blocks) > wholeCheck; c.partial = true {
		c.blocks = c.blocks[1:]
	}
	for n, b := range c.blocks {
		_, err := b.scan(stream, c.last(), func(r record) {
			c.count, c.bytes = c.count+1, c.bytes+int64(len(r.raw))
			c.runs = extendGap(c.runs, r.position, "")
			if each != nil {
				each(r)
			}
		}, func(f flaw) {
			c.damaged = c.damaged || !f.last || n < len(c.blocks)-1
			c.torn = c.torn || f.last && n == len(c.blocks)-1
		})
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

// CheckRecords checks the block files of a stream of records other than the log before the embedded
// server starts, because the server skips damaged records and truncates blocks at damage. When the
// readers' mirror has all records, CheckRecords replaces the stream's blocks by those of the mirror;
// otherwise it logs the positions of the lost records. It removes a damaged mirror, so that the
// server creates it again, unless the stream is damaged as well. store is the server's directory.
func CheckRecords(store, stream string, kept Retention, now time.Time, log *slog.Logger) error {
	dir := BlockDir(store, "CONTROL", stream)
	if why := foreign(dir); why != "" {
		log.Warn("cannot check the files of a stream", "stream", stream, "reason", why)
		return nil
	}
	own, err := contentsOf(dir, stream, nil)
	if err != nil {
		return err
	}
	oldest := now.Add(-kept.Age).UnixNano()
	deletes := own.partial || own.count+1 >= kept.Count || own.bytes+maxRecordBytes >= kept.Bytes
	var lost []Gap
	mirror, err := contentsOf(BlockDir(store, "READERS", stream), stream, func(r record) {
		before := r.position < own.first() || own.first() == 0
		if before && !deletes && int64(r.time) > oldest {
			lost = extendGap(lost, r.position, "no valid record")
		}
	})
	if err != nil {
		return err
	}
	for i := 1; i < len(own.runs); i++ {
		lost = append(lost, Gap{own.runs[i-1].Last + 1, own.runs[i].First - 1, "no valid record"})
	}
	if own.last() > 0 && mirror.last() > own.last() {
		lost = append(lost, Gap{own.last() + 1, mirror.last(), "no valid record"})
	}
	switch {
	case len(lost) == 0:
		return dropDamagedCopies(store, stream, own, log)
	case mirror.whole() && !mirror.partial && mirror.last() >= own.last() &&
		(own.first() == 0 || mirror.first() <= own.first()):
		if err := restoreBlocks(store, own.dir, mirror); err != nil {
			return err
		}
		log.Warn("records of a stream were damaged: restored them from the readers' mirror",
			"stream", stream, "positions", listGaps(lost))
	default:
		log.Error("records of a stream are lost: neither its files nor the readers' mirror have them",
			"stream", stream, "positions", listGaps(lost))
	}
	return nil
}

// maxRecordBytes is more than the size of a record of a stream other than the log.
const maxRecordBytes = 1 << 20

func listGaps(gaps []Gap) string {
	lines := make([]string, len(gaps))
	for i, g := range gaps {
		lines[i] = g.String()
	}
	return strings.Join(lines, ", ")
}

// restoreBlocks replaces the block files in dir by copies of the mirror's. It keeps the replaced
// files of the last restoration beside the store.
func restoreBlocks(store, dir string, mirror contents) error {
	fresh, former := dir+".new", filepath.Clean(store)+".damaged-records"
	for _, path := range []string{fresh, former} {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(fresh, 0o750); err != nil {
		return err
	}
	for _, b := range mirror.blocks {
		content, err := os.ReadFile(b.path)
		if err != nil {
			return err
		}
		if err := disk.WriteFile(filepath.Join(fresh, filepath.Base(b.path)), content); err != nil {
			return err
		}
	}
	if err := os.Rename(dir, former); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(fresh, dir); err != nil {
		return err
	}
	return errors.Join(disk.Sync(filepath.Dir(dir)), disk.Sync(filepath.Dir(former)))
}

// dropDamagedCopies removes the mirrors of a complete stream that are damaged.
func dropDamagedCopies(store, stream string, own contents, log *slog.Logger) error {
	dirs, err := copiesOf(store, stream)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		c, err := contentsOf(dir, stream, nil)
		if err != nil {
			return err
		}
		// A mirror without blocks may have an index that says that it has received all records.
		lacks := dir == BlockDir(store, "READERS", stream) && len(own.runs) > 0 &&
			(len(c.runs) != 1 || c.first() > own.first())
		if !c.damaged && !c.torn && !lacks || own.partial { // the index may count a record that is torn
			continue
		}
		log.Warn("a mirror of a stream is damaged; the stream itself is complete: recreating the mirror",
			"stream", stream, "directory", dir)
		if err := os.RemoveAll(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	return nil
}
