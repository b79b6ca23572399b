// Package archive stores a compressed copy of the log's events, from which a reader computes the
// state of a resource at an earlier position. Each stored event has the position of the previous
// event of its resource. One event in 16 also has the state of its resource, so that few events
// have to be read for a state. When an archive is damaged or lacks events, it is written again from
// the log.
package archive

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog"
)

// Sizes of frames and of buffers, and the names of the files. A frame is a block of events that are
// compressed together.
const (
	frameEvents = 64         // maximum number of events in a frame
	frameBytes  = 32 << 10   // a frame ends when its events have this many bytes
	cacheBytes  = 32 << 20   // maximum bytes of decompressed frames in memory
	maxBatches  = 64         // Add waits while this many full frames are not written
	framesFile  = "frames-1" // name of the file of frames; the number is the version of its format
	linksFile   = "links-1"
)

// An Entry is one event in the archive.
type Entry struct {
	eventlog.Event        // only the fields Record (without State), Position, ID, Name and Time are set
	Previous       uint64 // position of the resource's previous event; 0 for its first event; set only by Add
	State          []byte // state of the resource after the event, as passed to Add; nil for most events
}

// An Archive is the archive of one log. It is safe for concurrent use, but only one goroutine calls
// Add.
type Archive struct {
	frames, links file
	space         *disk.Space // checks the free space of the disk with the files; nil for an archive in memory

	mu      sync.Mutex
	index   []frameRef // the frames in the file of frames, in order
	size    int64      // length of the file of frames in bytes
	written uint64     // position of the last event in the file of frames
	last    uint64     // position of the last event, written or pending
	newest  time.Time  // latest time of any event in the archive
	pending []*batch   // frames that are not written yet; Add appends to the last one
	failed  error      // first error of a write; nothing is written after it

	cache cache
	full  chan struct{} // receives an element for each full batch in pending
	ended chan struct{}
	once  sync.Once
}

// A batch is a frame that is not written yet.
type batch struct {
	entries []Entry
	bytes   int
	written chan struct{} // closed when the frame was written or the write failed
}

func (b *batch) first() uint64 { return b.entries[0].Position }

// Open opens the archive in a directory, and creates the archive if the directory has none. The
// caller must call Keep before Add.
func Open(dir string) (*Archive, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the archive of earlier states: %w", err)
	}
	frames, err := os.OpenFile(filepath.Join(dir, framesFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the archive of earlier states: %w", err)
	}
	links, err := os.OpenFile(filepath.Join(dir, linksFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		_ = frames.Close()
		return nil, fmt.Errorf("open the archive of earlier states: %w", err)
	}
	a := start(frames, links)
	a.space = disk.On(dir)
	a.scan()
	return a, nil
}

// NewMemory returns an empty archive in memory.
func NewMemory() *Archive { return start(&memoryFile{}, &memoryFile{}) }

func start(frames, links file) *Archive {
	a := &Archive{frames: frames, links: links, full: make(chan struct{}, maxBatches), ended: make(chan struct{})}
	a.cache.frames = map[int64]*cached{}
	go a.write()
	return a
}

// Close writes all pending events and closes the files. The archive cannot be used afterwards.
func (a *Archive) Close() (err error) {
	a.once.Do(func() {
		err = a.Flush()
		close(a.full)
		<-a.ended
		_ = a.links.Close()
		_ = a.frames.Close()
	})
	return err
}

// Keep removes the events after a checkpoint, because the log may have lost these events in a power
// failure and assigned their positions again. A zero checkpoint removes all events. complete is
// false when the archive lacks an event up to the checkpoint; then nothing is removed. err is an
// error of truncating the files. An error of writing, for example on a full disk, is returned by
// Err instead.
func (a *Archive) Keep(at eventlog.Checkpoint) (complete bool, err error) {
	a.mu.Lock()
	frames, rest, complete := a.upTo(at)
	if complete {
		err = a.cut(frames)
	}
	a.mu.Unlock()
	if err != nil || len(rest) == 0 {
		return complete, err
	}
	for _, entry := range rest {
		a.Add(entry.Event, entry.Previous, entry.State)
	}
	// after a crash without this flush, the archive could end before the checkpoint; Err returns an
	// error of the flush
	_ = a.Flush()
	return true, nil
}

// upTo returns the number of complete frames up to a checkpoint, and the events up to the
// checkpoint in the frame after them. complete is false when the archive lacks the checkpoint's
// event.
func (a *Archive) upTo(at eventlog.Checkpoint) (frames int, rest []Entry, complete bool) {
	if at.Position == 0 {
		return 0, nil, true
	}
	if at.Position > a.written {
		return 0, nil, false
	}
	frames = a.frameOf(at.Position)
	ref := a.index[frames]
	for position := ref.first; position <= at.Position; position++ {
		entry, err := a.entryIn(ref, position)
		if err == nil {
			entry.Previous, _, _, err = a.writtenLink(position)
		}
		if err != nil {
			return 0, nil, false
		}
		rest = append(rest, entry)
	}
	if rest[len(rest)-1].ID != at.EventID {
		return 0, nil, false
	}
	if ref.last == at.Position {
		return frames + 1, nil, true
	}
	return frames, rest, true
}

// cut keeps the given number of frames at the beginning of the archive and removes the others.
func (a *Archive) cut(frames int) error {
	a.index = a.index[:frames]
	a.size, a.written, a.newest = 0, 0, time.Time{}
	if frames > 0 {
		newest := a.index[frames-1]
		a.size, a.written, a.newest = newest.offset+int64(newest.length), newest.last, newest.newest
	}
	a.last, a.pending = a.written, nil
	a.cache.clear()
	if err := a.frames.Truncate(a.size); err != nil {
		return err
	}
	return a.links.Truncate(int64(a.written) * linkBytes)
}

// CarriesState reports whether the caller should pass Add the state of the resource after the event
// at a position. It is true for one in 16 positions. A hash chooses the positions, so that every
// resource has such events no matter how often the resource changes.
func CarriesState(position uint64) bool {
	h := position // mix the bits of the position with the finalizer of SplitMix64
	h = (h ^ h>>30) * 0xBF58476D1CE4E5B9
	h = (h ^ h>>27) * 0x94D049BB133111EB
	return (h^h>>31)>>60 == 0
}

// Add adds the next event of the log. previous is the position of the resource's previous event; 0
// for its first event. state is the state of the resource after the event, or nil: see
// CarriesState. Add ignores an event that the archive already has. It blocks while maxBatches
// frames wait to be written.
func (a *Archive) Add(e eventlog.Event, previous uint64, state []byte) {
	a.mu.Lock()
	if e.Position != a.last+1 || a.failed != nil {
		a.mu.Unlock()
		return
	}
	a.last = e.Position
	if e.Time.After(a.newest) {
		a.newest = e.Time
	}
	if len(a.pending) == 0 || a.pending[len(a.pending)-1].isFull() {
		a.pending = append(a.pending, &batch{written: make(chan struct{})})
	}
	b := a.pending[len(a.pending)-1]
	b.entries = append(b.entries, Entry{Event: eventlog.Event{
		Record:   domain.Record{Type: e.Type, Data: e.Data},
		Position: e.Position, ID: e.ID, Name: e.Name, Time: e.Time}, Previous: previous, State: state})
	b.bytes += len(e.Data) + len(state)
	full := b.isFull()
	a.mu.Unlock()
	if full {
		a.full <- struct{}{}
	}
}

func (b *batch) isFull() bool { return len(b.entries) == frameEvents || b.bytes >= frameBytes }

// Flush returns when all events that were passed to Add before the call are durable.
func (a *Archive) Flush() error {
	a.mu.Lock()
	var b *batch
	grows := false
	if n := len(a.pending); n > 0 {
		b = a.pending[n-1]
		grows = !b.isFull()
		b.bytes = frameBytes // marks the batch as full, so that Add begins a new batch
	}
	a.mu.Unlock()
	if grows {
		a.full <- struct{}{}
	}
	if b != nil {
		<-b.written
	}
	err := a.Err()
	for _, file := range []file{a.frames, a.links} {
		if err == nil {
			err = file.Sync()
		}
	}
	return err
}

// Last returns the position of the archive's last event and the latest time of any of its events.
func (a *Archive) Last() (position uint64, newest time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last, a.newest
}

// Err returns the first error of a write, after which the archive writes nothing more; nil when
// there was none.
func (a *Archive) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

// Get returns the event at a position. The error has the reason ReasonIncomplete when the archive
// lacks the event.
func (a *Archive) Get(position uint64) (Entry, error) {
	a.mu.Lock()
	if entry := a.waiting(position); entry != nil {
		defer a.mu.Unlock()
		return *entry, nil
	}
	if position == 0 || position > a.written {
		defer a.mu.Unlock()
		return Entry{}, a.lacks(position)
	}
	ref := a.index[a.frameOf(position)]
	a.mu.Unlock()
	return a.entryIn(ref, position)
}

func (a *Archive) lacks(position uint64) error {
	if a.failed != nil {
		return &domain.Error{Code: domain.Unavailable, Reason: ReasonIncomplete, Message: fmt.Sprintf(
			"the archive of earlier states ends at position %d, because writing it failed (%v): free space on the disk of "+
				"the server, then restart it", a.written, a.failed)}
	}
	return &domain.Error{Code: domain.Unavailable, Reason: ReasonIncomplete, Message: fmt.Sprintf(
		"the archive of earlier states has no event at position %d: try again", position)}
}

// ReasonIncomplete is the reason of the error for a position whose event the archive lacks.
const ReasonIncomplete = "ARCHIVE_INCOMPLETE"

// waiting returns the event at a position if the event is in a batch that is not written yet,
// otherwise nil. The caller holds mu.
func (a *Archive) waiting(position uint64) *Entry {
	if position <= a.written || position > a.last {
		return nil
	}
	i, found := slices.BinarySearchFunc(a.pending, position, func(b *batch, p uint64) int {
		switch {
		case b.first() > p:
			return 1
		case b.first()+uint64(len(b.entries)) <= p:
			return -1
		}
		return 0
	})
	if !found {
		return nil
	}
	return &a.pending[i].entries[position-a.pending[i].first()]
}

// Find returns the position of a resource's last event at or before a position; 0 when there is
// none. version is the position of any later event of the resource, from which Find follows the
// links back.
func (a *Archive) Find(version, position uint64) (uint64, error) {
	for version > position {
		previous, jump, _, err := a.link(version)
		if err != nil {
			return 0, err
		}
		if version = previous; jump > position {
			version = jump
		}
	}
	return version, nil
}

// Chain returns the positions of the events from which the state after the event at a position is
// computed, oldest first. The first of them carries a state or is the resource's first event.
func (a *Archive) Chain(position uint64) ([]uint64, error) {
	var chain []uint64
	for at := position; at > 0; {
		previous, _, carries, err := a.link(at)
		if err != nil {
			return nil, err
		}
		chain = append(chain, at)
		if at = previous; carries {
			break
		}
	}
	slices.Reverse(chain)
	return chain, nil
}

// At returns the position that the log had reached at time t: the position before the first event
// that is later than t.
func (a *Archive) At(t time.Time) (uint64, error) {
	a.mu.Lock()
	i, _ := slices.BinarySearchFunc(a.index, t, func(ref frameRef, t time.Time) int {
		if ref.newest.After(t) {
			return 1
		}
		return -1
	})
	if i == len(a.index) {
		defer a.mu.Unlock()
		for _, b := range a.pending {
			for _, entry := range b.entries {
				if entry.Time.After(t) {
					return entry.Position - 1, nil
				}
			}
		}
		return a.last, nil
	}
	ref := a.index[i]
	a.mu.Unlock()
	for position := ref.first; position <= ref.last; position++ {
		entry, err := a.entryIn(ref, position)
		if err != nil || entry.Time.After(t) {
			return position - 1, err
		}
	}
	return ref.last, nil
}
