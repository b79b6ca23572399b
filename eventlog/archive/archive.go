// Package archive stores a compressed copy of the log's events for reads of earlier states. Each
// event links to the previous event of its resource, and some events carry the state of their
// resource, so that a state at any position needs few reads. An archive is derived from the log: when
// it is damaged or lacks events, it is written again.
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

// Sizes of frames and of the memory of an archive.
const (
	frameEvents = 64         // maximum number of events in a frame
	frameBytes  = 32 << 10   // bytes of data at which a frame ends
	cacheBytes  = 32 << 20   // decompressed frames that stay in memory
	maxBatches  = 64         // frames that wait to be written, before Add waits
	framesFile  = "frames-1" // the number is the version of the format
	linksFile   = "links-1"
)

// An Entry is an event of the archive.
type Entry struct {
	eventlog.Event        // Record (without State), Position, ID, Name and Time
	Previous       uint64 // position of the previous event of the resource, 0 for its first event; only in Add
	State          []byte // state of the resource after the event, as Add got it; nil for most events
}

// An Archive is the archive of one log. It is safe for concurrent use, but only one goroutine calls
// Add.
type Archive struct {
	frames, links file
	space         *disk.Space // of the files; nil in memory

	mu      sync.Mutex
	index   []frameRef // frames in the file
	size    int64      // bytes of the file of frames
	written uint64     // position of the last event in the file of frames
	last    uint64     // position of the last event
	newest  time.Time  // latest time of all events
	pending []*batch   // batches that are not written; the last one grows
	failed  error      // first error of writing; the archive stops then

	cache cache
	full  chan struct{} // has an element for each full batch in pending
	ended chan struct{}
	once  sync.Once
}

// A batch has the events of a frame before it is written.
type batch struct {
	entries []Entry
	bytes   int
	written chan struct{} // closed when the batch is written, or writing has failed
}

func (b *batch) first() uint64 { return b.entries[0].Position }

// Open opens the archive in a directory, and creates it if there is none. Call Keep before Add.
func Open(dir string) (*Archive, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the archive: %w", err)
	}
	frames, err := os.OpenFile(filepath.Join(dir, framesFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the archive: %w", err)
	}
	links, err := os.OpenFile(filepath.Join(dir, linksFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		_ = frames.Close()
		return nil, fmt.Errorf("open the archive: %w", err)
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

// Close writes all events and closes the files. The archive cannot be used afterwards.
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

// Keep removes the events after the one at a checkpoint: the log may have lost them in a power failure,
// and then it has other events at their positions. Keep of a zero checkpoint removes all events. It
// reports whether the archive has all events up to the checkpoint; if not, it removes nothing. An archive
// that cannot be written any more, such as on a full disk, stops: see Err.
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
	_ = a.Flush() // otherwise a crash leaves less than the snapshot of the checkpoint needs; Err has the error
	return true, nil
}

// upTo returns the number of frames that have no event after a checkpoint, and the events up to it of the
// frame that follows. The result complete is false when the archive lacks the event at the checkpoint.
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

// cut removes all frames except the first ones.
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

// CarriesState reports whether Add should get the state of the resource after the event at a position: one
// in 16 events. A hash chooses them, so that it does not depend on how often a resource changes.
func CarriesState(position uint64) bool {
	h := position // the finalizer of SplitMix64
	h = (h ^ h>>30) * 0xBF58476D1CE4E5B9
	h = (h ^ h>>27) * 0x94D049BB133111EB
	return (h^h>>31)>>60 == 0
}

// Add adds the next event of the log. Previous is the position of the previous event of the resource;
// 0 for its first. State is nil, or the state of the resource after the event: see CarriesState. Add
// ignores an event that the archive has. Add waits when many events are not written yet.
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

// Flush returns when all events that were added before are durable.
func (a *Archive) Flush() error {
	a.mu.Lock()
	var b *batch
	grows := false
	if n := len(a.pending); n > 0 {
		b = a.pending[n-1]
		grows = !b.isFull()
		b.bytes = frameBytes // full: Add begins another batch
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

// Last returns the position of the last event, and the latest time of all events.
func (a *Archive) Last() (position uint64, newest time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last, a.newest
}

// Err returns the error at which the archive has stopped, or nil.
func (a *Archive) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

// Get returns the event at a position.
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

// ReasonIncomplete is the reason of the error for an event that the archive lacks.
const ReasonIncomplete = "ARCHIVE_INCOMPLETE"

// waiting returns the event at a position if it is not written yet, else nil.
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

// Find returns the position of the resource's last event at or before a position; 0 when there is
// none. Version is the position of a later event of the resource.
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

// Chain returns the positions of the events of a resource from which its state after the event at a
// position is folded, oldest first: the first event carries a state, or is the resource's first event.
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

// At returns the position before the first event whose time is later than t.
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
