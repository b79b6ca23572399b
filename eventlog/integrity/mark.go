package integrity

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"anneal/disk"
	"anneal/domain"
)

// A HighWaterMark records, apart from the log, what the log contained, so that a log that lost or
// changed events is detected.
type HighWaterMark struct {
	HashChain        // the running hash at a position that was durable
	Durable   uint64 // every position up to here was on disk
	Index     Hash   // SHA-256 of the server's index after a clean shutdown; else zero
	Failed    bool   // the disk failed after that
	Damaged   uint64 // the first damaged position that was found while the server ran; 0 is none
	Lost      uint64 // events discarded by 'anneal log repair --accept-loss', in total
	LostAt    uint64 // the position after which the last of them were
	written   uint64 // number of writes of the mark
}

// MinPosition returns the position up to which a log must be complete.
func (m HighWaterMark) MinPosition() uint64 { return max(m.Durable, m.Position) }

// A mark's file has two slots, each on a separate page. Only one is written between two syncs, so
// the other is always valid.
const (
	markMagic = "anneal mark 1\n"
	slotSize  = 512
	slotGap   = 4096
	maxMarkID = 128

	// What is not in the file when the power fails is of this last time: of
	// markSync, or of longer when a sync takes so long that the appends would
	// notice, and of maxMarkSync at most.
	markSync    = 100 * time.Millisecond
	maxMarkSync = 2 * time.Second
	markShare   = 50 // a sync takes at most one part in so many of the time
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
	b = append(append(append(b, m.Before[:]...), m.Hash[:]...), m.Index[:]...)
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
	for _, h := range [...]*Hash{&m.Before, &m.Hash, &m.Index} {
		b = b[copy(h[:], b):]
	}
	m.EventID = string(b[:id])
	return m, true
}

var ErrMarkDamaged = errors.New("the high-water mark is damaged")

// ReadMark reads a mark. It returns os.ErrNotExist when the file does not exist, and
// ErrMarkDamaged when no slot is valid.
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

// WriteMark replaces the mark at a path.
func WriteMark(path string, m HighWaterMark) error {
	m.written++
	return disk.WriteFile(path, append(append(m.encode(), make([]byte, slotGap-slotSize)...), m.encode()...))
}

// A highWater keeps the mark of an open log. In each round of the disk sync it
// is written, and soon after it is synced (see markSync): a process that is
// killed loses nothing of it, a power failure the last moment.
type MarkFile struct {
	path string
	file *os.File
	Sync func(*os.File) error // fdatasync; replaced by tests

	mu     sync.Mutex
	mark   HighWaterMark
	slot   int64
	timer  *time.Timer
	every  time.Duration // between two syncs
	armed  bool          // the timer runs
	dirty  bool          // something is not synced
	err    error
	closed bool
}

// OpenMark writes a mark, the verified state of a log, and opens its file.
func OpenMark(path string, m HighWaterMark) (*MarkFile, error) {
	m.Index, m.Failed = Hash{}, false
	if err := WriteMark(path, m); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "cannot open the high-water mark: %v", err)
	}
	m.written++
	return &MarkFile{path: path, file: file, Sync: disk.Fdatasync, mark: m, every: markSync}, nil
}

// SetDurable records that every position up to one is on disk.
func (h *MarkFile) SetDurable(position uint64) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if position > h.mark.Durable {
		h.mark.Durable = position
		h.writeLocked()
	}
	return h.err
}

// Extend adds an event to the running hash if it is the next one; older events are in it already.
func (h *MarkFile) Extend(position uint64, event func() Message) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if position != h.mark.Position+1 || h.err != nil {
		return h.failureLocked() // an older event, or of a follower that began later
	}
	if err := h.mark.HashChain.Extend(event()); err != nil {
		return err
	}
	h.dirty = true
	h.armLocked()
	return nil
}

// Update changes the mark and returns when the change is on disk.
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

func (h *MarkFile) writeLocked() {
	if h.closed || h.err != nil {
		return
	}
	h.mark.written++
	if _, err := h.file.WriteAt(h.mark.encode(), h.slot*slotGap); err != nil {
		h.failLocked(fmt.Errorf("writing %s: %w", h.path, err))
	}
	h.dirty = true
	h.armLocked()
}

func (h *MarkFile) armLocked() {
	switch {
	case h.armed || h.closed:
		return
	case h.timer == nil:
		h.timer = time.AfterFunc(h.every, h.tick)
	default:
		h.timer.Reset(h.every)
	}
	h.armed = true
}

func (h *MarkFile) tick() {
	h.mu.Lock()
	h.armed = false
	h.mu.Unlock()
	_ = h.flush() // the next append, event and round return it
}

// failLocked records the first error of the mark's file. With a stale mark, a log that lost events
// later would pass the check.
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

// Err returns the error of a mark that cannot be written, or nil.
func (h *MarkFile) Err() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failureLocked()
}

// flush writes and syncs the mark, and switches to the other slot.
func (h *MarkFile) flush() error {
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

// SetFailed records that the disk failed, if the disk still accepts the write. The next start
// rewrites the events after Durable in any case.
func (h *MarkFile) SetFailed() {
	if h == nil {
		return
	}
	_ = h.Update(func(m *HighWaterMark) { m.Failed = true })
}

// Close syncs and closes the mark. index is the hash of the server's index after a clean shutdown.
func (h *MarkFile) Close(index Hash) error {
	if h == nil {
		return nil
	}
	err := h.Update(func(m *HighWaterMark) {
		if !m.Failed {
			m.Index = index
		}
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.timer != nil {
		h.timer.Stop()
	}
	return errors.Join(err, h.file.Close())
}

// IndexHash returns the hash of the server's index of a stream; zero without one.
func IndexHash(msgs string) Hash {
	content, err := os.ReadFile(filepath.Join(msgs, "index.db"))
	if err != nil {
		return Hash{}
	}
	return sha256.Sum256(content)
}
