package integrity

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"anneal/disk"
	"anneal/domain"
)

// A HighWaterMark records the content of the log in a separate file, so that a start detects a log
// that lost or changed events.
type HighWaterMark struct {
	HashChain        // the running hash at a position whose event was durable
	Durable   uint64 // every position up to here was on disk
	Files     Hash   // after a clean shutdown the FilesHash of the server's directory, otherwise zero
	Failed    bool   // a sync failed after Durable was recorded
	Damaged   uint64 // the first damaged position that was found while the server ran; 0 is none
	Lost      uint64 // events discarded by 'anneal log repair --accept-loss', in total
	LostAt    uint64 // the position after which events were last discarded
	written   uint64 // number of writes of the mark
}

// MinPosition returns the position up to which the log with this mark must be complete.
func (m HighWaterMark) MinPosition() uint64 { return max(m.Durable, m.Position) }

// The file of a mark has two slots, each on a separate page. Between two syncs only one slot is
// written, so the other slot is always valid.
const (
	markMagic = "anneal mark 1\n"
	slotSize  = 512
	slotGap   = 4096
	maxMarkID = 128

	// markSync is the interval at which an updated mark is synced: a power failure loses the
	// updates since the last sync. When syncs are slow, the interval is longer, at most
	// maxMarkSync, so that syncs take at most 1/markShare of the time.
	markSync    = 100 * time.Millisecond
	maxMarkSync = 2 * time.Second
	markShare   = 200

	// markWrite is the interval at which an updated mark is written: a killed process loses the
	// updates since the last write. A write in each round of the disk sync would add 3 % to the
	// time of an append.
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

var ErrMarkDamaged = errors.New("the high-water mark is damaged")

// ReadMark reads the mark in the file at path. It returns os.ErrNotExist when the file does not
// exist, and ErrMarkDamaged when no slot is valid.
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

// WriteMark durably replaces the file at path by one with the mark m in both slots.
func WriteMark(path string, m HighWaterMark) error {
	m.written++
	return disk.WriteFile(path, append(append(m.encode(), make([]byte, slotGap-slotSize)...), m.encode()...))
}

// A MarkFile keeps the mark of an open log up to date in its file. Timers write updates after
// markWrite and sync them after markSync. A nil *MarkFile records nothing.
type MarkFile struct {
	path string
	file *os.File
	Sync func(*os.File) error // fdatasync; replaced by tests

	// syncing is held during a sync, so that the two slots change by turns and the file is not closed
	// meanwhile. It is locked before mu.
	syncing sync.Mutex

	mu     sync.Mutex
	mark   HighWaterMark
	slot   int64
	writer timer         // writes the mark
	syncer timer         // writes and syncs the mark
	every  time.Duration // interval of syncs, markSync to maxMarkSync
	dirty  bool          // the mark has updates that are not synced
	err    error
	closed bool
}

// OpenMark writes m, the mark of a log that was verified, to the file at path, and returns the open
// MarkFile.
func OpenMark(path string, m HighWaterMark) (*MarkFile, error) {
	m.Files, m.Failed = Hash{}, false
	if err := WriteMark(path, m); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "cannot open the high-water mark: %v", err)
	}
	m.written++
	h := &MarkFile{path: path, file: file, Sync: disk.Fdatasync, mark: m, every: markSync}
	h.writer.run, h.syncer.run = h.write, func() { _ = h.flush() } // later calls return its error
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

// Extend adds the event at position to the running hash if position directly follows the mark's.
// Other positions change nothing. event is called only when the event is added.
func (h *MarkFile) Extend(position uint64, event func() Message) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if position != h.mark.Position+1 || h.err != nil {
		return h.failureLocked() // the hash has the event already, or the follower began at a later event
	}
	if err := h.mark.HashChain.Extend(event()); err != nil {
		return err
	}
	h.dirty = true
	h.syncer.armLocked(h, h.every)
	return nil
}

// Update changes the mark by calling alter, and returns when the change is on disk.
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

// Mark returns the current mark.
func (h *MarkFile) Mark() HighWaterMark {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mark
}

// write writes the mark without syncing it, if the mark has updates that are not synced.
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
		h.failLocked(fmt.Errorf("writing %s: %w", h.path, err))
	}
	h.dirty = true
	h.syncer.armLocked(h, h.every)
}

// A timer calls run once each time that it is armed, after the time given to armLocked.
type timer struct {
	run   func()
	timer *time.Timer
	armed bool
}

// armLocked starts the timer, unless the timer is running or the mark is closed. The caller holds
// the lock of h.
func (t *timer) armLocked(h *MarkFile, after time.Duration) {
	switch {
	case t.armed || h.closed:
		return
	case t.timer == nil:
		t.timer = time.AfterFunc(after, func() {
			h.mu.Lock()
			t.armed = false
			h.mu.Unlock()
			t.run()
		})
	default:
		t.timer.Reset(after)
	}
	t.armed = true
}

func (t *timer) stopLocked() {
	if t.timer != nil {
		t.timer.Stop()
	}
}

// failLocked records the first error of writing the mark's file, which all later calls return.
// Without the error the mark would become stale, and a log that lost events later would pass the
// check at the start.
func (h *MarkFile) failLocked(err error) {
	if h.err == nil {
		h.err = err
		slog.Error("cannot write the high-water mark: the log refuses appends until the server is restarted", "error", err)
	}
}

func (h *MarkFile) failureLocked() error {
	if h.err == nil {
		return nil
	}
	return domain.Errorf(domain.Unavailable, "cannot write the high-water mark (%v): check its disk, then restart", h.err)
}

// Err returns an error after writing or syncing the mark has failed, otherwise nil.
func (h *MarkFile) Err() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failureLocked()
}

// flush writes and syncs the mark, and makes the next write use the other slot.
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
		h.failLocked(fmt.Errorf("syncing %s: %w", h.path, err))
	}
	h.slot = 1 - h.slot
	return h.err
}

// SetFailed records in the mark that a sync failed. It ignores an error of the write, because the
// next start rewrites the events after Durable in any case.
func (h *MarkFile) SetFailed() {
	if h == nil {
		return
	}
	_ = h.Update(func(m *HighWaterMark) { m.Failed = true })
}

// Close records files in the mark unless a sync has failed, and syncs and closes the mark. files is
// the FilesHash after a clean shutdown, otherwise zero.
func (h *MarkFile) Close(files Hash) error {
	if h == nil {
		return nil
	}
	err := h.Update(func(m *HighWaterMark) {
		if !m.Failed {
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
