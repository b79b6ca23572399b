package projections

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"anneal/domain"
	"anneal/eventlog"
)

// loadBatch is the approximate number of bytes of a snapshot that are decoded together.
const loadBatch = 256 << 10

// A batch is a sequence of complete lines of a snapshot, which are decoded together. Batches are reused,
// because the memory of all of them would exceed that of the rows.
type batch struct {
	buffer  []byte
	text    []byte // lines of rows or of the history of job waits, in buffer; no header and no footer
	rows    []loadedRow
	decoded chan struct{} // receives an element when the lines are decoded and rows is set
}

// A loadedRow is a decoded line of a snapshot: the row of a resource, a deleted resource, which has
// no row, or a line of the history of job waits.
type loadedRow struct {
	fold    *fold
	name    domain.Name
	row     domain.AnyRow
	version uint64 // version of the resource; it is needed only if the resource is deleted, because a row has its own
	history []byte
	err     error // why the line cannot be decoded; the fields above are then not set
}

// read reads the snapshot at path into an empty world and returns the snapshot's checkpoint. For a
// snapshot with another schema, it returns the checkpoint and errOtherSchema. It decodes batches
// concurrently, and adds their rows in order.
func (w *World) read(path string) (eventlog.Checkpoint, error) {
	file, err := os.Open(path)
	if err != nil {
		return eventlog.Checkpoint{}, err
	}
	defer file.Close()
	in := &snapshotReader{in: file, checksum: sha256.New()}
	text, err := in.header()
	if err != nil {
		return eventlog.Checkpoint{}, err
	}
	header, err := readHeader(path, text)
	if err != nil {
		return header.Checkpoint, err
	}
	if header.Schema == w.schema() {
		err = restoreAll(w, in)
	} else {
		b := &batch{}
		for more := true; more && err == nil; {
			more, err = in.next(b)
		}
	}
	if err == nil {
		err = checkFooter(in.footer, in.checksum.Sum(nil))
	}
	switch {
	case err != nil:
		return header.Checkpoint, err
	case header.Schema != w.schema():
		return header.Checkpoint, errOtherSchema
	}
	w.at, w.saved = header.Checkpoint, header.Position
	return w.at, nil
}

// restoreAll adds all lines of a snapshot between header and footer to the world.
func restoreAll(w *World, in *snapshotReader) (err error) {
	workers := runtime.GOMAXPROCS(0)
	work, ordered, stop := make(chan *batch), make(chan *batch, 2*workers), make(chan struct{})
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for b := range work {
				decodeLines(w.folds, b)
				b.decoded <- struct{}{}
			}
		})
	}
	used := sync.Pool{New: func() any { return &batch{decoded: make(chan struct{}, 1)} }}
	var readErr error
	all.Go(func() {
		defer close(ordered)
		defer close(work)
		for more := true; more; {
			b := used.Get().(*batch)
			if more, readErr = in.next(b); readErr != nil {
				return
			}
			for _, to := range []chan *batch{ordered, work} {
				select {
				case to <- b:
				case <-stop:
					return
				}
			}
		}
	})
	for b := range ordered {
		<-b.decoded
		for i := range b.rows {
			if err = w.restore(&b.rows[i]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
		clear(b.rows)
		used.Put(b)
	}
	close(stop)
	all.Wait()
	if err == nil {
		err = readErr
	}
	for _, f := range w.folds {
		f.table.finish()
	}
	return err
}

// decodeLines sets b.rows from b.text, the lines of the batch.
func decodeLines(folds map[string]*fold, b *batch) {
	b.rows = b.rows[:0]
	var decoder rowDecoder
	for text := range bytes.Lines(b.text) {
		one, err := decodeLine(folds, &decoder, text)
		if err != nil {
			b.rows = append(b.rows, loadedRow{err: fmt.Errorf("%w: %w", errDamaged, err)})
			return
		}
		b.rows = append(b.rows, one)
	}
}

func decodeLine(folds map[string]*fold, d *rowDecoder, text []byte) (loadedRow, error) {
	if bytes.HasPrefix(text, []byte(historyPrefix)) {
		return loadedRow{history: text}, nil
	}
	name, err := lineName(text)
	if err != nil {
		return loadedRow{}, err
	}
	fold := folds[name.Collection()]
	if fold == nil {
		return loadedRow{}, fmt.Errorf("a line has the unknown collection %q", name.Collection())
	}
	row, version, err := d.decode(fold.kind, name, text)
	return loadedRow{fold: fold, name: name, row: row, version: version}, err
}

// restore adds a decoded line to the world.
func (w *World) restore(l *loadedRow) error {
	switch {
	case l.err != nil:
		return l.err
	case l.history != nil:
		return w.restoreHistory(l.history)
	}
	l.fold.changed = true
	if l.row == nil {
		l.fold.table.deleted.Set(l.name, l.version)
		return nil
	}
	if err := l.fold.table.load(l.row); err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return nil
}

// A snapshotReader reads a snapshot and computes its checksum.
type snapshotReader struct {
	in       io.Reader
	checksum hash.Hash // checksum of the bytes before the footer that were read so far
	rest     []byte    // bytes that were read from the file, but that next has not returned yet
	footer   []byte
}

const footerPrefix = `{"digest":`

var errNoFooter = fmt.Errorf("%w: it ends before its footer", errDamaged)

// header reads and returns the first line of the snapshot.
func (r *snapshotReader) header() ([]byte, error) {
	for text := []byte(nil); ; {
		if line, rest, ok := bytes.Cut(text, []byte("\n")); ok {
			r.rest = rest
			r.checksum.Write(line)
			r.checksum.Write([]byte("\n"))
			return line, nil
		}
		r.rest = text
		var err error
		if text, err = r.fill(nil); err != nil {
			return nil, err
		}
	}
}

// fill reads more bytes, and returns them after those of r.rest. It reuses the buffer if that is large
// enough.
func (r *snapshotReader) fill(buffer []byte) ([]byte, error) {
	size := len(r.rest) + loadBatch
	if cap(buffer) < size {
		buffer = make([]byte, size)
	}
	buffer = buffer[:size]
	have := copy(buffer, r.rest)
	n, err := io.ReadFull(r.in, buffer[have:])
	switch {
	case n > 0:
		return buffer[:have+n], nil
	case err == io.EOF:
		return nil, errNoFooter
	}
	return nil, fmt.Errorf("%w: %w", errDamaged, err)
}

// next sets b.text to the next complete lines. more is false when they are the last lines before the
// footer; next then sets r.footer.
func (r *snapshotReader) next(b *batch) (more bool, err error) {
	b.text = r.rest
	for end := 0; ; {
		if end = bytes.LastIndexByte(b.text, '\n') + 1; end == 0 {
			r.rest = b.text
			if b.buffer, err = r.fill(b.buffer); err != nil {
				return false, err
			}
			b.text = b.buffer
			continue
		}
		r.rest = bytes.Clone(b.text[end:]) // copy the rest, because the next batch reuses the buffer
		b.text, more = b.text[:end], true
		if at := footerIn(b.text); at >= 0 {
			r.footer, b.text, more = bytes.Clone(b.text[at:]), b.text[:at], false
		}
		r.checksum.Write(b.text)
		return more, nil
	}
}

// footerIn returns the offset of the footer in lines; -1 if they do not contain the footer.
func footerIn(lines []byte) int {
	if bytes.HasPrefix(lines, []byte(footerPrefix)) {
		return 0
	}
	if at := bytes.Index(lines, []byte("\n"+footerPrefix)); at >= 0 {
		return at + 1
	}
	return -1
}

func readHeader(path string, text []byte) (snapshotHeader, error) {
	var h snapshotHeader
	switch err := json.Unmarshal(text, &h); {
	case err != nil || h.Format < 1 || h.Position == 0:
		return h, fmt.Errorf("%w: it has no header", errDamaged)
	case h.Format > snapshotFormat:
		e := domain.Errorf(domain.FailedPrecondition,
			"the snapshot %s has format %d, written by a newer version of anneal; this version reads up to %d. "+
				"Run the newer version; or move the snapshots out of %s to replay the whole log with this version", path, h.Format,
			snapshotFormat, filepath.Dir(path))
		e.Reason = "NEWER_SNAPSHOT"
		return h, e
	}
	return h, nil
}

func checkFooter(text, checksum []byte) error {
	var footer snapshotFooter
	if err := json.Unmarshal(text, &footer); err != nil {
		return fmt.Errorf("%w: it has no footer", errDamaged)
	}
	if footer.Checksum != hex.EncodeToString(checksum) {
		return fmt.Errorf("%w: its content does not match its checksum", errDamaged)
	}
	return nil
}
