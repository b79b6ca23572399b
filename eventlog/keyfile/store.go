// Package keyfile is a key-value store in two files, keys.1 and keys.2, with the same content. Each
// change is synced to both before it is acknowledged. An acknowledged change survives kill -9, a
// power failure at any moment, and damage to one of the files, which Open then restores from the
// other. When records are damaged in both files, the error of Open lists them.
package keyfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// ErrConflict is returned when the current revision of the key differs from the revision that the
// caller passed. Nothing was changed.
var ErrConflict = errors.New("keyfile: the record was changed concurrently: its revision is not the expected one")

// ErrTooLarge is returned for a key or a value that exceeds the limits of the store.
var ErrTooLarge = errors.New("keyfile: the key or the value exceeds the maximum size")

// ErrDamaged is returned when a value became unreadable in both files while the store was open.
var ErrDamaged = errors.New("keyfile: the value is damaged in both keys.1 and keys.2")

// Options configure a Store.
type Options struct {
	Wipe bool          // overwrite erased and replaced values with zeros, so that secrets do not stay on disk
	Keep time.Duration // delete each record this long after it was written; 0 keeps records forever
	// Exists says that the store was created before, so that Open returns a LossError when both files
	// are missing, instead of creating an empty store.
	Exists bool
	// AcceptLoss opens a damaged store with the records that are left.
	AcceptLoss bool
	// BeforeLoss is called with the lost records when their loss is accepted, before the files are
	// rewritten without them. When it returns an error, Open fails and leaves the files unchanged.
	BeforeLoss func([]Lost) error
	// OnWarning is called with a message for the log when damaged files were repaired or the files
	// could not be compacted. It may be nil.
	OnWarning func(message string)
	Now       func() time.Time // the current time; nil means time.Now
}

// An entry is the newest record of a key.
type entry struct {
	record
	intact bool   // the value was valid in at least one file when it was last read
	flawed string // name of a file in which the value was damaged when it was last read
	batch  *batch // batch that writes the record to disk; nil when the record is on disk
}

// A Store holds the newest record of each key. Its methods are safe for concurrent use.
type Store struct {
	disk disk
	path string
	opts Options
	lost []Lost

	mu          sync.Mutex
	entries     map[string]*entry // by key, including the records that are being written
	durable     map[string]*entry // by key, only the records on disk
	last        uint64            // highest revision of any record
	pending     *batch
	running     bool
	failed      error // first failed sync, returned by all later calls: fdatasync reports lost pages only once
	needsRepair bool  // one of the files was found damaged and must be rewritten
	writer      sync.WaitGroup

	files         sync.RWMutex // read-locked while the files are read, locked while they are replaced
	copies        [copies]file
	header        header
	mark          mark
	garbage       int64 // bytes of replaced and erased records in a file
	compactedSize int64 // length of the files after the last compaction
	retrySize     int64 // after a failed compaction: length of the files at which it is tried again
}

// Open opens the store in the directory path. It creates the store if it does not exist, and
// repairs a damaged file. No other process may have the store open.
func Open(path string, opts Options) (*Store, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("keyfile: %w", err)
	}
	if err := directory(filepath.Dir(path)).sync(); err != nil {
		return nil, fmt.Errorf("keyfile: %w", err)
	}
	accept := filepath.Join(path, acceptFile)
	if _, err := os.Stat(accept); err == nil {
		opts.AcceptLoss = true
	}
	s, err := open(directory(path), path, opts)
	if err != nil {
		return nil, err
	}
	_ = os.Remove(accept)
	return s, nil
}

func open(d disk, path string, opts Options) (*Store, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.OnWarning == nil {
		opts.OnWarning = func(string) {}
	}
	if opts.BeforeLoss == nil {
		opts.BeforeLoss = func([]Lost) error { return nil }
	}
	s := &Store{disk: d, path: path, opts: opts, pending: newBatch(), entries: map[string]*entry{},
		durable: map[string]*entry{}}
	found, err := find(d)
	if err != nil {
		return nil, err
	}
	what := ""
	switch missing := found[0].file == nil && found[1].file == nil; {
	case missing && opts.Exists:
		what = "keys.1 and keys.2 are missing"
	case missing:
		return s, s.rewrite(nil)
	case !found[0].headed && !found[1].headed:
		what = "keys.1 and keys.2 have no valid header"
	}
	if what != "" {
		found.close()
		s.lost = []Lost{{}}
		if loss := (&LossError{Dir: path, What: what}); !opts.AcceptLoss {
			return nil, loss
		}
		if err := opts.BeforeLoss(s.lost); err != nil {
			return nil, err
		}
		return s, s.rewrite(nil)
	}
	r := merge(found, opts.Wipe)
	if r.unmarked {
		what, r.lost = "the commit marks of keys.1 and keys.2 are damaged, so it is unknown how many records they had",
			append(r.lost, Lost{})
	}
	if len(r.lost) > 0 && !opts.AcceptLoss {
		found.close()
		return nil, &LossError{Dir: path, Lost: r.lost, What: what}
	}
	if len(r.lost) > 0 {
		if err := opts.BeforeLoss(r.lost); err != nil {
			found.close()
			return nil, err
		}
	}
	s.lost, s.last, s.header, s.mark, s.garbage = r.lost, r.mark.revision, r.header, r.mark, r.garbage
	for key, e := range r.live {
		s.entries[key], s.durable[key] = e, e
		if e.flawed != "" {
			r.repair("values in " + e.flawed + " are damaged")
		}
	}
	if len(r.reasons) == 0 && len(r.lost) == 0 {
		s.copies = [copies]file{found[0].file, found[1].file}
		s.compactedSize = int64(s.mark.end)
		return s, s.removeTemporary()
	}
	opts.OnWarning("rewrote keys.1 and keys.2 with the valid records of both, because " +
		cmp.Or(strings.Join(r.reasons, "; "), "records were lost"))
	err = s.rewrite(func(e *entry) ([]byte, error) { return r.found.value(r.header, e.record) })
	found.close()
	return s, err
}

// Lost returns the records that were damaged in both files when the store was opened.
func (s *Store) Lost() []Lost { return s.lost }

// Get returns the value of a key and its revision; revision 0 when the key does not exist.
func (s *Store) Get(ctx context.Context, key string) ([]byte, uint64, error) {
	for {
		s.mu.Lock()
		e := s.entries[key]
		if e == nil || s.failed != nil {
			defer s.mu.Unlock()
			return nil, 0, s.failed
		}
		written, rec := e.batch, record{}
		if written == nil { // the record is still being written
			rec = e.record
		}
		s.mu.Unlock()
		if written != nil {
			if err := written.wait(ctx); err != nil {
				return nil, 0, err
			}
			continue
		}
		value, err := s.read(rec)
		if err == nil {
			return value, rec.revision, nil
		}
		s.mu.Lock()
		now := s.entries[key]
		same := now != nil && now.record == rec
		s.mu.Unlock()
		if same {
			return nil, 0, err
		} // the record was replaced, erased or moved while it was read: look it up again
	}
}

// read reads the value of a record from a file in which it is valid. It returns ErrDamaged when the
// value is valid in neither.
func (s *Store) read(rec record) ([]byte, error) {
	s.files.RLock()
	defer s.files.RUnlock()
	for i, f := range s.copies {
		value, ok := readValue(f, s.header, rec)
		if ok {
			return value, nil
		}
		if i == 0 {
			s.mu.Lock()
			s.needsRepair = true // the next write rewrites the damaged file
			s.mu.Unlock()
		}
	}
	return nil, ErrDamaged
}

// Put sets the value of a key and returns the new revision. revision must be the current revision
// of the key, 0 for a new key; otherwise Put returns ErrConflict. The value is on disk, in both
// files, when Put returns.
func (s *Store) Put(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	if len(key) > maxKey || len(value) > maxValueSize {
		return 0, ErrTooLarge
	}
	s.mu.Lock()
	before := s.entries[key]
	if s.failed != nil || (before == nil && revision != 0) || (before != nil && before.revision != revision) {
		defer s.mu.Unlock()
		return 0, cmp.Or(s.failed, ErrConflict)
	}
	s.last++
	e := &entry{record: record{kind: kindPut, key: key, revision: s.last, time: s.opts.Now().UnixNano()}, intact: true}
	s.entries[key] = e
	e.batch = s.enqueue(&op{kind: kindPut, entry: e, before: before, value: value})
	mine, number := e.batch, e.revision
	s.mu.Unlock()
	return number, mine.wait(ctx)
}

// Erase removes keys; a missing key is no error. With Options.Wipe, neither file contains their
// values when Erase returns.
func (s *Store) Erase(ctx context.Context, keys ...string) error {
	s.mu.Lock()
	if s.failed != nil {
		defer s.mu.Unlock()
		return s.failed
	}
	mine := (*batch)(nil)
	for _, key := range keys {
		e := s.entries[key]
		if e == nil {
			continue
		}
		delete(s.entries, key)
		s.last++
		mark := &entry{record: record{kind: kindErase, key: key, revision: s.last, time: s.opts.Now().UnixNano()}}
		mine = s.enqueue(&op{kind: kindErase, entry: mark, before: e})
	}
	if mine == nil && s.running { // wait for a concurrent call that may be erasing the same keys
		mine = s.enqueue()
	}
	s.mu.Unlock()
	return mine.wait(ctx)
}

// Keys returns the keys that have a value, in ascending order.
func (s *Store) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.entries))
}

// An Info describes a stored record without its value.
type Info struct {
	Key      string
	Revision uint64
	Size     int
	Written  time.Time
}

// Infos returns an Info for each record on disk.
func (s *Store) Infos() []Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Info, 0, len(s.durable))
	for key, e := range s.durable {
		all = append(all, Info{key, e.revision, int(e.size), time.Unix(0, e.time)})
	}
	return all
}

// Close waits for pending writes and closes the files.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.failed == nil {
		s.failed = errClosed
	}
	s.mu.Unlock()
	s.writer.Wait()
	s.files.Lock()
	defer s.files.Unlock()
	var all error
	for i, f := range s.copies {
		if f != nil {
			all = errors.Join(all, f.Close())
		}
		s.copies[i] = closedFile{}
	}
	return all
}
