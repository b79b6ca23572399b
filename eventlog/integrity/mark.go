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

// A Mark is what a log held once, kept apart from it, so that a log that holds
// less, or something else, is recognised.
type HighWaterMark struct {
	HashChain        // the running hash at a position that was durable
	Durable   uint64 // every position up to here was on disk
	Index     Hash   // SHA-256 of the server's index when it stopped cleanly; else zero
	Failed    bool   // the disk failed after that
	Damaged   uint64 // the first damaged position that was found while the server ran; 0 is none
	Lost      uint64 // events that were given up with 'anneal log repair --accept-loss', in all
	LostAt    uint64 // the position behind which the last of them were
	written   uint64 // which writing of the mark this is
}

// Holds is the position up to which a log must be whole.
func (m HighWaterMark) MinPosition() uint64 { return max(m.Durable, m.Position) }

// A mark's file has two slots, each on a page of its own. Only one is written
// until it is synced, so that the other is always whole.
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

var ErrMarkDamaged = errors.New("the mark of the log is damaged")

// ReadMark reads a mark. It answers os.ErrNotExist when there is none, and
// another error when there is one that cannot be believed.
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

// writeMark puts a mark in place of whatever is there.
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
	Sync func(*os.File) error // dataSync, but for tests

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

// openMark begins to keep a mark, from the state that a log was found in.
func OpenMark(path string, m HighWaterMark) (*MarkFile, error) {
	m.Index, m.Failed = Hash{}, false
	if err := WriteMark(path, m); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "the mark of the log cannot be opened: %v", err)
	}
	m.written++
	return &MarkFile{path: path, file: file, Sync: disk.Fdatasync, mark: m, every: markSync}, nil
}

// reached notes that every position up to one is on disk.
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

// add extends the running hash when the event is the next one; an older one is
// in it already.
func (h *MarkFile) Extend(position uint64, event func() Message) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if position != h.mark.Position+1 || h.err != nil {
		return h.failureLocked() // an older one, or of a follower that began later
	}
	if err := h.mark.HashChain.Extend(event()); err != nil {
		return err
	}
	h.dirty = true
	h.armLocked()
	return nil
}

// change alters the mark and has it on disk when it returns.
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

// now is the mark as it is.
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
	_ = h.flush() // the next append, event and round answer it
}

// failLocked notes the first error of the mark's file. Without a mark that
// grows, a log that lost events later would pass for whole.
func (h *MarkFile) failLocked(err error) {
	if h.err == nil {
		h.err = err
		slog.Error("the mark of the event log cannot be written: nothing more is appended until the server is started again", "error", err)
	}
}

func (h *MarkFile) failureLocked() error {
	if h.err == nil {
		return nil
	}
	return domain.Errorf(domain.Unavailable, "the mark of the event log cannot be written (%v): see to its disk, then start again", h.err)
}

// failure is the fault of a mark that cannot be written, nil otherwise.
func (h *MarkFile) Err() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failureLocked()
}

// flush writes and syncs the mark, and goes on in the other slot.
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

// fail notes that the disk failed, as well as a failing disk takes it: what
// lies behind Durable is written anew at the next start either way.
func (h *MarkFile) SetFailed() {
	if h == nil {
		return
	}
	_ = h.Update(func(m *HighWaterMark) { m.Failed = true })
}

// close syncs the mark; index is the server's index that a clean end left.
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

// indexHash is the hash of the server's index of a stream; zero without one.
func IndexHash(msgs string) Hash {
	content, err := os.ReadFile(filepath.Join(msgs, "index.db"))
	if err != nil {
		return Hash{}
	}
	return sha256.Sum256(content)
}
