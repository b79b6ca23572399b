package blobs

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"anneal/disk"
)

// maxSmall is the maximum number of bytes of a small file, which is stored through the journal.
const maxSmall = 64 << 10

// maxSegment is the size in bytes from which a segment of the journal is full, and the next one
// begins.
const maxSegment = 8 << 20

// A journal is a write-ahead log that makes small files durable with one shared fsync (group
// commit). The content of a small file is appended to the journal and synced before the file and
// its record are renamed into place. The file, the record and their directories are not synced.
// After a power failure, the next start writes the files again from the journal: see
// journaled.recover.
//
// The journal is a sequence of segments, files journal-N in the digests directory. When a segment is
// full, entries go to the next one, and the full segment is removed once all of its files are on disk.
// One process uses the journal at a time. Another process that stores files in the same directory
// syncs each of them.
type journal struct {
	dir  string // directory of the segments
	lock *os.File
	sync func(*os.File) error // syncs a segment: disk.Fdatasync, except in tests
	// checkpoint makes all files durable for which the journal has entries.
	checkpoint func() error
	log        *slog.Logger

	users   sync.RWMutex // held for reading by append, and for writing by close
	mu      sync.Mutex
	keys    map[string]int // number of entries in the segments, by key; keys in the file voids are left out
	next    *journalRound  // collects the entries for the next round; nil while there are none
	running bool
	failed  error         // first error of a write or sync, after which the journal accepts no entries
	coming  int           // number of callers that are about to append entries: see announce
	arrived chan struct{} // closed when coming becomes 0; nil unless a round waits for that

	// Only the running round uses the fields below.
	segment *segment
	full    chan struct{} // closed when the previous, full segment is removed; nil if there is none
	took    time.Duration // duration of the last sync, which is the longest wait of gather
}

// A segment is one of the files that the journal consists of.
type segment struct {
	file    *os.File
	number  int
	size    int64
	keys    []string       // keys of the entries, in their order
	pending sync.WaitGroup // entries whose files are not renamed into place yet
}

// A journalRound is one write of entries to a segment, with one sync for all of them.
type journalRound struct {
	entries []byte
	keys    []string
	segment *segment      // segment to which the entries were written
	done    chan struct{} // closed when the entries are durable, or err is set
	err     error
}

// An entry of the journal records a change of a file. A superseded entry records instead that a
// later change of the file, or its removal, is durable without the journal; its other fields are
// not set. A bundled entry records a new file in a bundle: see bundles.
type entry struct {
	key        string
	superseded bool
	bundled    bool
	before     []digest // possible digests of the content before the change; none if there was no file
	content    []byte
}

var errNoJournal = errors.New("the journal of the file store accepts no entries")

// openJournal opens the journal of a directory and locks it. The result is nil when another process
// uses the journal.
func openJournal(dir string, checkpoint func() error, log *slog.Logger) (*journal, error) {
	lock, err := os.OpenFile(filepath.Join(dir, "journal-lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = nil
		}
		return nil, errors.Join(err, lock.Close())
	}
	return &journal{dir: dir, lock: lock, sync: disk.Fdatasync, checkpoint: checkpoint, log: log,
		keys: map[string]int{}}, nil
}

// append makes entries durable. The caller calls applied when the files of the entries are renamed
// into place, or renaming them has failed.
//
// arrive is a function that announce has returned, or nil. append calls it.
func (j *journal) append(arrive func(), entries ...entry) (applied func(), err error) {
	j.users.RLock()
	defer j.users.RUnlock()
	j.mu.Lock()
	if j.failed != nil {
		defer j.mu.Unlock()
		return nil, errNoJournal
	}
	r := j.next
	if r == nil {
		r = &journalRound{done: make(chan struct{})}
		j.next = r
	}
	for _, e := range entries {
		r.entries, r.keys = appendEntry(r.entries, e), append(r.keys, e.key)
	}
	first := !j.running
	j.running = true
	j.mu.Unlock()
	if arrive != nil {
		arrive()
	}
	if first { // the first caller writes the entries of all callers
		if more := j.round(); more {
			go j.rounds()
		}
	} else {
		<-r.done
	}
	if r.err != nil {
		return nil, r.err
	}
	return sync.OnceFunc(func() { r.segment.pending.Add(-len(entries)) }), nil
}

// supersede records that the files under keys were changed durably without the journal, so that
// recover does not undo these changes.
func (j *journal) supersede(keys ...string) error {
	if j == nil {
		return nil
	}
	var entries []entry
	j.mu.Lock()
	for _, key := range keys {
		if j.keys[key] > 0 {
			entries = append(entries, entry{key: key, superseded: true})
		}
	}
	j.mu.Unlock()
	if len(entries) == 0 {
		return nil
	}
	applied, err := j.append(nil, entries...)
	switch {
	case err == nil:
		applied()
	case !j.available():
		err = nil
		for _, e := range entries {
			err = errors.Join(err, j.void(e.key))
		}
	}
	return err
}

// voids is the name of the file with the superseded entries that are recorded after the journal has
// failed.
const voids = "journal-voids"

// void writes a superseded entry of key to the file voids after the journal has failed. recover
// then skips all entries of the key in the journal.
func (j *journal) void(key string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.keys[key] == 0 {
		return nil
	}
	file, err := os.OpenFile(filepath.Join(j.dir, voids), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	size, err := file.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = file.Write(appendEntry(nil, entry{key: key, superseded: true}))
	}
	if err == nil {
		err = disk.Fdatasync(file)
	}
	if err != nil {
		err = errors.Join(err, file.Truncate(size))
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = disk.Sync(j.dir)
	}
	if err != nil {
		return fmt.Errorf("record in the file %s that %s was changed without the failed journal: %w", voids, key, err)
	}
	delete(j.keys, key)
	return nil
}

// fail records an error after which the journal accepts no more entries.
func (j *journal) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == nil {
		j.failed = err
		j.log.Error("the journal of small files failed: until the next start, each file is synced separately", "error", err)
	}
}

// available reports whether the journal accepts entries.
func (j *journal) available() bool {
	if j == nil {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failed == nil
}

// announce makes the next round wait for the caller, who is about to append entries. The caller
// calls done after it has appended them, or when it appends none.
func (j *journal) announce() (done func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.coming++
	return sync.OnceFunc(func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.coming--; j.coming == 0 && j.arrived != nil {
			close(j.arrived)
			j.arrived = nil
		}
	})
}

// gather waits for the callers of announce, so that one sync makes their entries durable too, but
// no longer than the last sync took.
func (j *journal) gather() {
	j.mu.Lock()
	if j.coming == 0 || j.took == 0 {
		j.mu.Unlock()
		return
	}
	arrived := make(chan struct{})
	j.arrived = arrived
	j.mu.Unlock()
	timer := time.NewTimer(j.took)
	defer timer.Stop()
	select {
	case <-arrived:
	case <-timer.C:
	}
}

func (j *journal) rounds() {
	for j.round() {
	}
}

// round writes and syncs the entries that were appended. more reports whether further entries wait
// for the next round.
func (j *journal) round() (more bool) {
	j.gather()
	j.mu.Lock()
	r := j.next
	j.next = nil
	for _, key := range r.keys {
		j.keys[key]++
	}
	j.mu.Unlock()
	broken, err := j.write(r)
	if broken {
		j.fail(err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	r.err = err
	close(r.done)
	j.running = j.next != nil
	return j.running
}

// write writes and syncs the entries of a round. broken reports that the journal must accept no
// more entries, because after a failed fdatasync another one would not report what was lost.
func (j *journal) write(r *journalRound) (broken bool, err error) {
	if err := j.rotate(); err != nil {
		j.forget(r.keys)
		return false, err
	}
	s := j.segment
	s.keys = append(s.keys, r.keys...)
	if _, err := s.file.WriteAt(r.entries, s.size); err != nil {
		truncated := s.file.Truncate(s.size)
		return truncated != nil, errors.Join(err, truncated)
	}
	s.size += int64(len(r.entries))
	begun := time.Now()
	err = j.sync(s.file)
	j.took = time.Since(begun)
	if err != nil {
		return true, fmt.Errorf("sync the journal of the file store: %w", err)
	}
	s.pending.Add(len(r.keys))
	r.segment = s
	return false, nil
}

// rotate begins a new segment when there is none, or when the current segment is full and the
// previous one is removed.
func (j *journal) rotate() error {
	number := 1
	if s := j.segment; s != nil {
		if s.size < maxSegment {
			return nil
		}
		select {
		case <-j.full:
		default:
			if j.full != nil {
				return nil // the current segment grows until the previous one is removed
			}
		}
		number = s.number + 1
	}
	file, err := os.OpenFile(filepath.Join(j.dir, segmentName(number)), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := disk.Sync(j.dir); err != nil {
		return errors.Join(err, file.Close())
	}
	if old := j.segment; old != nil {
		j.full = make(chan struct{})
		go j.retire(old, j.full)
	}
	j.segment = &segment{file: file, number: number}
	return nil
}

// retire makes the files of a full segment durable and removes the segment. If that fails, the next
// start does it. After a failure, no later segment is removed either, because it may supersede
// entries of this one.
func (j *journal) retire(s *segment, done chan struct{}) {
	defer close(done)
	s.pending.Wait()
	if !j.available() {
		return
	}
	err := j.checkpoint()
	if err == nil {
		err = errors.Join(os.Remove(s.file.Name()), s.file.Close(), disk.Sync(j.dir))
	}
	if err != nil {
		j.fail(fmt.Errorf("remove a segment of the journal of the file store: %w", err))
		return
	}
	j.forget(s.keys)
}

// forget subtracts the entries of a removed segment from the counts in j.keys. keys has the key of
// each of these entries.
func (j *journal) forget(keys []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, key := range keys {
		if j.keys[key]--; j.keys[key] <= 0 {
			delete(j.keys, key)
		}
	}
}

// close makes the files of all segments durable and removes the segments. Later calls of append
// return an error.
func (j *journal) close() {
	if j == nil {
		return
	}
	j.users.Lock()
	defer j.users.Unlock()
	defer j.lock.Close() // also releases the lock
	if j.full != nil {
		<-j.full
	}
	if j.segment != nil && j.available() {
		j.retire(j.segment, make(chan struct{}))
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == nil {
		j.failed = errNoJournal
	}
}

func segmentName(number int) string { return "journal-" + strconv.Itoa(number) }
