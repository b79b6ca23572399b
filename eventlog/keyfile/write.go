package keyfile

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
)

// A batch is a group of operations that are written and synced together.
type batch struct {
	ops    []*op
	wanted bool // a caller waits for done
	done   chan struct{}
	err    error // result of the batch; set before done is closed
}

// An op is an operation on one key: the record to write, and before, the entry of the key that the
// record replaces or erases.
type op struct {
	kind   byte
	entry  *entry
	before *entry // replaced or erased entry of the key; nil when the key had none
	value  []byte
}

func newBatch() *batch { return &batch{done: make(chan struct{})} }

// wait returns when the batch is on disk or has failed, or when ctx is done. A nil batch is on disk
// already.
func (b *batch) wait(ctx context.Context) error {
	if b == nil {
		return nil
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errClosed = errors.New("keyfile: the store is closed")

type closedFile struct{ file }

func (closedFile) ReadAt([]byte, int64) (int, error) { return 0, errClosed }
func (closedFile) Close() error                      { return nil }

// enqueue adds operations to the next batch to be written, and returns that batch. The caller holds
// the lock.
func (s *Store) enqueue(ops ...*op) *batch {
	s.pending.ops, s.pending.wanted = append(s.pending.ops, ops...), true
	if !s.running {
		s.running = true
		s.writer.Go(s.writeBatches)
	}
	return s.pending
}

// writeBatches writes one batch after another as long as callers wait.
func (s *Store) writeBatches() {
	for {
		s.mu.Lock()
		if s.failed != nil && !errors.Is(s.failed, errClosed) {
			s.pending.err = s.failed
		}
		b := s.pending
		s.pending = newBatch()
		needsRepair := s.needsRepair
		s.mu.Unlock()
		refused := false
		if b.err == nil {
			refused, b.err = s.write(b)
		}
		s.mu.Lock()
		s.finish(b, refused)
		close(b.done)
		compact := s.failed == nil && b.err == nil && (needsRepair || s.shouldCompact())
		s.mu.Unlock()
		if compact {
			s.compact()
		}
		s.mu.Lock()
		s.running = s.pending.wanted
		again := s.running
		s.mu.Unlock()
		if !again {
			return
		}
	}
}

// finish updates the entries after a batch was written or failed. refused reports that write failed
// without a change to the files.
func (s *Store) finish(b *batch, refused bool) {
	if b.err == nil {
		for _, op := range b.ops {
			if op.before != nil {
				s.garbage += op.before.end() - op.before.at
				delete(s.durable, op.entry.key)
			}
			if op.kind == kindPut {
				op.entry.batch, s.durable[op.entry.key] = nil, op.entry
			} else {
				s.garbage += op.entry.end() - op.entry.at
			}
		}
		return
	}
	// Operations that were enqueued after a failed batch rely on the changes in that batch, so they
	// fail too.
	s.entries = maps.Clone(s.durable)
	later := s.pending
	s.pending = newBatch()
	later.err = b.err
	close(later.done)
	if !refused && (s.failed == nil || errors.Is(s.failed, errClosed)) {
		s.failed = b.err
	}
}

// write makes a batch durable. It writes the records to both files, then writes the commit mark to
// one file after the other and syncs each, so that one file is valid at any moment. Then it
// overwrites the replaced and erased values. refused is true when write failed without a change,
// for example on a full disk; the store then remains usable.
func (s *Store) write(b *batch) (refused bool, err error) {
	if len(b.ops) == 0 {
		return false, nil
	}
	next := s.mark
	var buffer []byte
	for _, op := range b.ops {
		rec := &op.entry.record
		next.records++
		rec.index, rec.at = next.records, int64(next.end)
		buffer = append(append(buffer, rec.encode(s.header, op.value)...), op.value...)
		next.end, next.chain = uint64(rec.end()), chained(next.chain, *rec)
		next.revision = max(next.revision, rec.revision)
	}
	next.commit++
	for _, f := range s.copies {
		// the write failed, for example because the disk is full
		if _, err := f.WriteAt(buffer, int64(s.mark.end)); err != nil {
			for _, f := range s.copies {
				if cut := f.Truncate(int64(s.mark.end)); cut != nil {
					return false, errors.Join(err, cut)
				}
			}
			return true, fmt.Errorf("keyfile: nothing was changed: %w", err)
		}
	}
	for _, f := range s.copies {
		if _, err := f.WriteAt(next.encode(s.header), next.offset()); err != nil {
			return false, err
		}
		if err := f.Sync(); err != nil {
			return false, err
		}
	}
	s.mark = next
	return false, s.wipe(b.ops)
}

// wipe overwrites with zeros the values that a batch has replaced or erased.
func (s *Store) wipe(ops []*op) error {
	if !s.opts.Wipe || !slices.ContainsFunc(ops, func(o *op) bool { return o.before != nil }) {
		return nil
	}
	for _, f := range s.copies {
		for _, op := range ops {
			if op.before == nil {
				continue
			}
			if _, err := f.WriteAt(make([]byte, op.before.size), op.before.valueAt()); err != nil {
				return err
			}
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return nil
}

// The files are compacted when they have more than minGarbage bytes of replaced and erased records,
// or when expired records may be removed and the files have grown by minGrowth bytes since the last
// compaction.
const (
	minGarbage = 1 << 20
	minGrowth  = 16 << 20
)

func (s *Store) shouldCompact() bool {
	end := int64(s.mark.end)
	if end < s.retrySize {
		return false
	}
	return s.garbage > max(minGarbage, end/2) || s.opts.Keep > 0 && end > 2*s.compactedSize+minGrowth
}

// compact rewrites both files without replaced, erased and expired records. When that fails, the
// old files remain in use.
func (s *Store) compact() {
	if err := s.rewrite(func(e *entry) ([]byte, error) { return s.read(e.record) }); err != nil {
		s.mu.Lock()
		s.retrySize = int64(s.mark.end) + minGrowth
		s.mu.Unlock()
		s.opts.OnWarning(fmt.Sprintf("could not compact keys.1 and keys.2, which stay as they are and are compacted "+
			"later: %v", err))
		return
	}
}

const temporary = ".new"

// rewrite writes the entries on disk, except expired ones, to new files of the next generation,
// which then replace the old files. It overwrites the content of the old files. read returns the
// value of an entry.
func (s *Store) rewrite(read func(*entry) ([]byte, error)) (err error) {
	h := header{generation: s.header.generation + 1}
	_, _ = rand.Read(h.salt[:]) // crypto/rand.Read never returns an error
	s.mu.Lock()
	var kept []*entry
	for _, e := range s.durable {
		if s.opts.Keep == 0 || s.opts.Now().UnixNano()-e.time < int64(s.opts.Keep) {
			kept = append(kept, e)
		}
	}
	m := mark{revision: s.last}
	s.mu.Unlock()
	slices.SortFunc(kept, func(a, b *entry) int { return cmp.Compare(a.index, b.index) })
	fresh, moved, m, err := s.writeNew(h, m, kept, read)
	if err != nil {
		return errors.Join(err, s.removeTemporary())
	}
	var old [copies]file
	for i := range fresh {
		if old[i], err = s.disk.open(copyName(i), false); errors.Is(err, fs.ErrNotExist) {
			old[i], err = nil, nil
		}
		if err == nil {
			err = s.disk.rename(copyName(i)+temporary, copyName(i))
		}
		if err == nil {
			err = s.disk.sync()
		}
		if err != nil {
			s.mu.Lock()
			s.failed = err
			s.mu.Unlock()
			return err
		}
	}
	s.files.Lock()
	s.mu.Lock()
	before := s.copies
	s.copies, s.header, s.mark, s.garbage, s.compactedSize, s.retrySize, s.needsRepair = fresh, h, m, 0, int64(m.end), 0,
		false
	s.drop(kept)
	for i, e := range kept {
		e.record = moved[i]
	}
	s.mu.Unlock()
	s.files.Unlock()
	for i := range old {
		if before[i] != nil {
			_ = before[i].Close()
		}
		if old[i] != nil {
			scrub(old[i]) // nothing reads the old file, because the entries are in the new one
			_ = old[i].Close()
		}
	}
	return nil
}

// drop removes from the store the entries on disk that are not in kept.
func (s *Store) drop(kept []*entry) {
	if len(kept) == len(s.durable) {
		return
	}
	before := s.durable
	s.durable = map[string]*entry{}
	for _, e := range kept {
		s.durable[e.key] = e
	}
	for key, e := range before {
		if s.durable[key] == nil && s.entries[key] == e {
			delete(s.entries, key)
		}
	}
}

// writeNew writes the entries in kept to new files under temporary names, and syncs them. It
// returns the files, the entries' records with their offsets in them, and the completed commit mark
// m.
func (s *Store) writeNew(h header, m mark, kept []*entry, read func(*entry) ([]byte, error)) (fresh [copies]file,
	moved []record, _ mark, err error) {
	defer func() {
		for _, f := range fresh {
			if err != nil && f != nil {
				_ = f.Close()
			}
		}
	}()
	write := func(content []byte, at int64) error {
		for _, f := range fresh {
			if _, err := f.WriteAt(content, at); err != nil {
				return err
			}
		}
		return nil
	}
	for i := range fresh {
		if fresh[i], err = s.disk.open(copyName(i)+temporary, true); err != nil {
			return fresh, nil, m, err
		}
	}
	m.end = recordsAt
	for _, e := range kept {
		value, err := read(e)
		if err != nil {
			return fresh, nil, m, fmt.Errorf("%s: %w", e.key, err)
		}
		rec := e.record
		m.records++
		rec.index, rec.at = m.records, int64(m.end)
		if err = write(append(rec.encode(h, value), value...), rec.at); err != nil {
			return fresh, nil, m, err
		}
		m.end, m.chain, moved = uint64(rec.end()), chained(m.chain, rec), append(moved, rec)
	}
	first := make([]byte, recordsAt)
	copy(first, h.encode())
	for range markSlots {
		copy(first[m.offset():], m.encode(h))
		m.commit++
	}
	m.commit--
	if err = write(first, 0); err != nil {
		return fresh, nil, m, err
	}
	for _, f := range fresh {
		if err = f.Sync(); err != nil {
			return fresh, nil, m, err
		}
	}
	return fresh, moved, m, nil
}

// removeTemporary deletes the temporary files of an interrupted rewrite.
func (s *Store) removeTemporary() error {
	for i := range s.copies {
		name := copyName(i) + temporary
		f, err := s.disk.open(name, false)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		scrub(f)
		if err := errors.Join(f.Close(), s.disk.remove(name), s.disk.sync()); err != nil {
			return err
		}
	}
	return nil
}

// scrub overwrites a replaced file with zeros. It ignores errors, because the file is not used any
// more.
func scrub(f file) {
	size, err := f.Size()
	const piece = 1 << 20
	for at := int64(0); err == nil && at < size; at += piece {
		_, err = f.WriteAt(make([]byte, min(piece, size-at)), at)
	}
	_ = f.Sync()
}
