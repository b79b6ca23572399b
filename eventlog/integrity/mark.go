package integrity

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"anneal/disk"
	"anneal/domain"
)

// A HighWaterMark records, in a file of its own, up to which position the log was durable, and the
// hash of its events. With it the server detects at its start that the log lost or changed events.
type HighWaterMark struct {
	HashChain        // hash chain up to a position whose event was durable
	Durable   uint64 // every event up to this position was on disk
	Files     Hash   // FilesHash of the server's directory after a clean shutdown, otherwise zero
	Failed    bool   // a sync of the log to disk failed after Durable was recorded
	Damaged   uint64 // first damaged position that Scrub found while the server ran; 0 when it found none
	Lost      uint64 // total number of events that 'anneal log repair --accept-loss' has discarded
	LostAt    uint64 // position after which events were discarded last
	written   uint64 // how often the mark was written; the slot with the higher number is newer
}

// MinPosition returns the position up to which the log must be complete according to the mark.
func (m HighWaterMark) MinPosition() uint64 { return max(m.Durable, m.Position) }

// The file of the high-water mark has two slots for copies of the mark, each on its own page. The
// slots are written alternately, and the next one only after the last one is synced, so that a
// crash during a write leaves one valid slot.
const (
	markMagic = "anneal mark 1\n"
	slotSize  = 512
	slotGap   = 4096
	maxMarkID = 128

	// markSync is the interval at which a changed mark is synced to disk. A power failure loses the
	// changes since the last sync. When syncs are slow, the interval grows up to maxMarkSync, so that
	// syncs take at most 1/markShare of the time.
	markSync    = 100 * time.Millisecond
	maxMarkSync = 2 * time.Second
	markShare   = 200

	// markWrite is the interval at which a changed mark is written to its file without a sync. A crash
	// of the process loses the changes since the last write. Writing the mark in each round of the
	// disk sync would make appends 3 % slower.
	markWrite = 5 * time.Millisecond
)

func (m HighWaterMark) encode() []byte {
	b := append(make([]byte, 0, slotSize), markMagic...)
	for _, n := range [...]uint64{m.written, m.Durable, m.Position, m.Damaged, m.Lost, m.LostAt} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	failed := byte(0)
	if m.Failed {
		failed = 1
	}
	b = append(b, failed, byte(len(m.EventID)))
	b = append(append(append(b, m.Before[:]...), m.Hash[:]...), m.Files[:]...)
	b = append(b, m.EventID...)
	b = append(b, make([]byte, slotSize-sha256.Size-len(b))...)
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

func decodeMark(b []byte) (m HighWaterMark, ok bool) {
	if len(b) < slotSize || string(b[:len(markMagic)]) != markMagic {
		return m, false
	}
	b = b[:slotSize]
	sum := sha256.Sum256(b[:slotSize-sha256.Size])
	if string(sum[:]) != string(b[slotSize-sha256.Size:]) {
		return m, false
	}
	b = b[len(markMagic):]
	for _, n := range [...]*uint64{&m.written, &m.Durable, &m.Position, &m.Damaged, &m.Lost, &m.LostAt} {
		*n, b = binary.BigEndian.Uint64(b), b[8:]
	}
	m.Failed = b[0] == 1
	id := min(int(b[1]), maxMarkID)
	b = b[2:]
	for _, h := range [...]*Hash{&m.Before, &m.Hash, &m.Files} {
		b = b[copy(h[:], b):]
	}
	m.EventID = string(b[:id])
	return m, true
}

var ErrMarkDamaged = errors.New("the file of the log's high-water mark is damaged")

// ReadMark reads the high-water mark in the file at path. It returns os.ErrNotExist when the file
// does not exist, and ErrMarkDamaged when neither slot is valid.
func ReadMark(path string) (HighWaterMark, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return HighWaterMark{}, err
	}
	var newest HighWaterMark
	found := false
	for at := 0; at < len(content) && at <= slotGap; at += slotGap {
		if m, ok := decodeMark(content[at:]); ok && (!found || m.written > newest.written) {
			newest, found = m, true
		}
	}
	if !found {
		return HighWaterMark{}, fmt.Errorf("%w: %s", ErrMarkDamaged, path)
	}
	return newest, nil
}

// WriteMark durably replaces the file at path by a file with m in both slots.
func WriteMark(path string, m HighWaterMark) error {
	m.written++
	return disk.WriteFile(path, append(append(m.encode(), make([]byte, slotGap-slotSize)...), m.encode()...))
}

// A MarkFile keeps the high-water mark of an open log up to date in its file. Timers write changes
// after markWrite and sync them after markSync. A nil *MarkFile records nothing.
type MarkFile struct {
	path string
	// unread states that some blocks of the log or of its mirrors were not read, or that a mirror is
	// damaged, so that the next start must read all.
	unread atomic.Bool
	file   *os.File
	Sync   func(*os.File) error // syncs the file with fdatasync; tests replace it

	// syncing is held during a sync, so that no other sync begins and the file is not closed. It is
	// locked before mu.
	syncing sync.Mutex

	mu     sync.Mutex
	mark   HighWaterMark
	slot   int64
	writer timer         // calls write, markWrite after a change
	syncer timer         // calls flush to sync changes: see every
	every  time.Duration // current delay between a change and its sync; at least markSync, at most maxMarkSync
	dirty  bool          // the mark has changes that are not synced
	err    error
	closed bool
}

// OpenMark writes m, the mark of a log that was verified, to the file at path, and returns a
// MarkFile that keeps it up to date.
func OpenMark(path string, m HighWaterMark) (*MarkFile, error) {
	m.Files, m.Failed = Hash{}, false
	if err := WriteMark(path, m); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "cannot open the file of the log's high-water mark: %v: "+
			"check the disk and the permissions", err)
	}
	m.written++
	h := &MarkFile{path: path, file: file, Sync: disk.Fdatasync, mark: m, every: markSync}
	h.writer.run, h.syncer.run = h.write, func() { _ = h.flush() } // later calls of MarkFile return the error
	return h, nil
}

// SetDurable records that every event up to position is on disk.
func (h *MarkFile) SetDurable(position uint64) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if position > h.mark.Durable {
		h.mark.Durable = position
		h.dirty = true
		h.writer.armLocked(h, markWrite)
	}
	return h.err
}

// Follows reports whether Extend would add the event at a position.
func (h *MarkFile) Follows(position uint64) bool {
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return position == h.mark.Position+1 && h.err == nil
}

// Extend adds an event to the hash chain of the mark, if its position directly follows the mark's.
// Otherwise it does nothing: the chain has the event already, or the follower of the log began at a
// later event.
func (h *MarkFile) Extend(event Message) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if event.position != h.mark.Position+1 || h.err != nil {
		return h.failureLocked()
	}
	if err := h.mark.HashChain.Extend(event); err != nil {
		return err
	}
	h.dirty = true
	h.syncer.armLocked(h, h.every)
	return nil
}

// Update changes the mark by calling alter, and returns when the changed mark is on disk.
func (h *MarkFile) Update(alter func(*HighWaterMark)) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	alter(&h.mark)
	h.dirty = true
	h.mu.Unlock()
	return h.flush()
}

// Mark returns the current high-water mark.
func (h *MarkFile) Mark() HighWaterMark {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mark
}

// write writes the mark to its file without a sync, if the mark has changes.
func (h *MarkFile) write() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dirty {
		h.writeLocked()
	}
}

func (h *MarkFile) writeLocked() {
	if h.closed || h.err != nil {
		return
	}
	h.mark.written++
	if _, err := h.file.WriteAt(h.mark.encode(), h.slot*slotGap); err != nil {
		h.failLocked(fmt.Errorf("write the high-water mark %s: %w", h.path, err))
	}
	h.dirty = true
	h.syncer.armLocked(h, h.every)
}

// A timer calls run once after each call of armLocked.
type timer struct {
	run   func()
	timer *time.Timer
	armed bool
}

// armLocked makes the timer call run after a time, unless it is already running or the mark file is
// closed. The caller holds h.mu.
func (t *timer) armLocked(h *MarkFile, delay time.Duration) {
	switch {
	case t.armed || h.closed:
		return
	case t.timer == nil:
		t.timer = time.AfterFunc(delay, func() {
			h.mu.Lock()
			t.armed = false
			h.mu.Unlock()
			t.run()
		})
	default:
		t.timer.Reset(delay)
	}
	t.armed = true
}

func (t *timer) stopLocked() {
	if t.timer != nil {
		t.timer.Stop()
	}
}

// failLocked records the first error of writing the file of the mark, which all later calls return.
// The log then refuses appends, because with an outdated mark a log that later loses events would
// pass the check at the start.
func (h *MarkFile) failLocked(err error) {
	if h.err == nil {
		h.err = err
		slog.Error("cannot write the file of the log's high-water mark: the log refuses new events until the server is "+
			"restarted", "error", err)
	}
}

func (h *MarkFile) failureLocked() error {
	if h.err == nil {
		return nil
	}
	return domain.Errorf(domain.Unavailable, "cannot write the file of the log's high-water mark (%v), so no events "+
		"are recorded: check its disk, then restart the server", h.err)
}

// Err returns the first error of writing or syncing the mark; nil when there was none.
func (h *MarkFile) Err() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failureLocked()
}

// flush writes the mark and syncs it to disk. The next write then uses the other slot.
func (h *MarkFile) flush() error {
	h.syncing.Lock()
	defer h.syncing.Unlock()
	h.mu.Lock()
	if !h.dirty || h.closed || h.err != nil {
		defer h.mu.Unlock()
		return h.err
	}
	h.writeLocked()
	h.dirty = false
	h.mu.Unlock()
	begun := time.Now()
	err := h.Sync(h.file)
	took := time.Since(begun)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.every = min(maxMarkSync, max(markSync, took*markShare))
	if err != nil {
		h.failLocked(fmt.Errorf("sync the high-water mark %s to disk: %w", h.path, err))
	}
	h.slot = 1 - h.slot
	return h.err
}

// SetFailed records in the mark that a sync of the log failed, so that the next start writes the
// events after Durable again. It ignores an error of writing the mark, because the next start
// writes the events after Durable again even without this record.
func (h *MarkFile) SetFailed() {
	if h == nil {
		return
	}
	_ = h.Update(func(m *HighWaterMark) { m.Failed = true })
}

// SetUnread records whether the next start must read all block files of the log and its mirrors,
// because this run has not read them, or has found a damaged mirror.
func (h *MarkFile) SetUnread(unread bool) {
	if h != nil {
		h.unread.Store(unread)
	}
}

// Close syncs and closes the mark. files is the FilesHash after a clean shutdown, otherwise zero.
// Close records it in the mark unless a sync has failed or the next start must read all files: see
// SetUnread.
func (h *MarkFile) Close(files Hash) error {
	if h == nil {
		return nil
	}
	err := h.Update(func(m *HighWaterMark) {
		if !m.Failed && !h.unread.Load() {
			m.Files = files
		}
	})
	h.syncing.Lock()
	defer h.syncing.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.writer.stopLocked()
	h.syncer.stopLocked()
	return errors.Join(err, h.file.Close())
}
