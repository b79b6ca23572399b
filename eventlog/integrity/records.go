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

// A Retention holds the limits of a stream. At a limit, the NATS server deletes the stream's oldest
// records.
type Retention struct {
	Age   time.Duration
	Count uint64
	Bytes int64
}

// A contents describes the valid records in the block files of a stream, as contentsOf found them.
type contents struct {
	dir     string
	blocks  []block
	runs    []Gap // ranges of positions that have a record, in order
	count   uint64
	bytes   int64
	damaged bool // a block file is damaged, other than by an interrupted write at the end
	torn    bool // the last block file ends with an interrupted write
	partial bool // only the newest block files were read: the stream has more than fullCheckBytes
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

// complete reports whether no record between the first and the last one is missing or damaged.
func (c contents) complete() bool { return len(c.runs) == 1 && !c.damaged }

// contentsOf reads the newest block files of a stream in dir, up to fullCheckBytes bytes. It calls
// visit for every valid record; visit may be nil.
func contentsOf(dir, stream string, visit func(record)) (c contents, err error) {
	if c.blocks, err = blocksOf(dir); err != nil {
		return c, err
	}
	for c.dir = dir; sizeOf(c.blocks) > fullCheckBytes; c.partial = true {
		c.blocks = c.blocks[1:]
	}
	for n, b := range c.blocks {
		_, err := b.scan(stream, c.last(), func(r record) {
			c.count, c.bytes = c.count+1, c.bytes+int64(len(r.raw))
			c.runs = extendGap(c.runs, r.position, "")
			if visit != nil {
				visit(r)
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

// CheckRecords checks the block files of a stream other than the log before the embedded NATS
// server starts, because the server skips damaged records and truncates damaged files.
//
// When the stream has lost records and its mirror for readers has all of them, CheckRecords
// replaces the stream's block files by the mirror's. Otherwise it logs the positions of the lost
// records. It removes a damaged mirror of an intact stream, so that the server creates the mirror
// again. store is the server's storage directory. kept has the limits of the stream: records that
// the server may have deleted at a limit do not count as lost.
func CheckRecords(store, stream string, kept Retention, now time.Time, log *slog.Logger) error {
	dir := BlockDir(store, "CONTROL", stream)
	if why := foreign(dir); why != "" {
		log.Warn("cannot check the block files of a stream: lost records of this stream are not reported",
			"stream", stream, "reason", why)
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
	case mirror.complete() && !mirror.partial && mirror.last() >= own.last() &&
		(own.first() == 0 || mirror.first() <= own.first()):
		if err := restoreBlocks(store, own.dir, mirror); err != nil {
			return err
		}
		log.Warn("records of a stream were damaged: restored the stream from its mirror for readers",
			"stream", stream, "positions", listGaps(lost))
	default:
		log.Error("records of a stream are lost: neither the stream nor its mirror for readers has them",
			"stream", stream, "positions", listGaps(lost))
	}
	return nil
}

// maxRecordBytes is an upper bound for the size of a record in a stream other than the log.
const maxRecordBytes = 1 << 20

func listGaps(gaps []Gap) string {
	lines := make([]string, len(gaps))
	for i, g := range gaps {
		lines[i] = g.String()
	}
	return strings.Join(lines, ", ")
}

// restoreBlocks replaces the block files in dir by copies of the mirror's files. It moves the
// replaced files to a directory beside store, and first deletes the files that an earlier
// restoration moved there.
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

// dropDamagedCopies removes the damaged mirrors of an intact stream. own is the content of the
// stream.
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
		// A mirror that lost its block files is damaged too: its index file may say that it has
		// received all records, so that the server would not send them again.
		lacks := dir == BlockDir(store, "READERS", stream) && len(own.runs) > 0 &&
			(len(c.runs) != 1 || c.first() > own.first())
		// the mirror's index file may count a record whose write was interrupted
		if !c.damaged && !c.torn && !lacks || own.partial {
			continue
		}
		log.Warn("a mirror of a stream is damaged; the stream itself is complete: removed the mirror, which the server "+
			"creates again",
			"stream", stream, "directory", dir)
		if err := os.RemoveAll(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	return nil
}
