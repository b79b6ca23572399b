package archive

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"slices"
)

// walkLinks is the number of links that a walk reads at once.
const walkLinks = 1024

// Walk finds the events of many resources at or before a position. versions has, for each resource,
// the position of any later event of it. For each resource that has events up to position, Walk
// calls visit with the index of the resource and, from the newest to the oldest, with the positions
// of the events that Chain returns; oldest is true for the last of them. The positions of all calls
// descend, so that Walk reads the links of neighboring events together, each once.
func (a *Archive) Walk(versions []uint64, position uint64,
	visit func(resource int, at uint64, oldest bool) error) error {
	a.mu.Lock()
	w := walk{archive: a, written: a.written}
	a.mu.Unlock()
	next := make(walkHeap, len(versions))
	for i, version := range versions {
		next[i] = walkStep{version, i}
	}
	slices.SortFunc(next, func(a, b walkStep) int { return cmp.Compare(b.at, a.at) }) // a sorted slice is a heap
	for len(next) > 0 {
		step := next[0]
		previous, jump, carries, err := w.link(step.at)
		if err != nil {
			return err
		}
		if step.at <= position {
			oldest := carries || previous == 0
			if err := visit(step.resource, step.at, oldest); err != nil {
				return err
			}
			if oldest {
				previous = 0
			}
		} else if jump > position {
			previous = jump
		}
		if previous == 0 {
			heap.Pop(&next)
			continue
		}
		next[0].at = previous
		heap.Fix(&next, 0)
	}
	return nil
}

// A walk reads links at descending positions.
type walk struct {
	archive *Archive
	written uint64 // position up to which the file has links
	first   uint64 // position of the first link in links
	links   []byte
	buffer  [walkLinks * linkBytes]byte
}

// link returns what Archive.link returns.
func (w *walk) link(position uint64) (previous, jump uint64, carries bool, err error) {
	if position == 0 || position > w.written {
		return w.archive.link(position)
	}
	if position < w.first || position >= w.first+uint64(len(w.links)/linkBytes) {
		w.first = max(position, walkLinks) - walkLinks + 1
		size := (position - w.first + 1) * linkBytes
		n, err := w.archive.links.ReadAt(w.buffer[:size], int64(w.first-1)*linkBytes)
		if w.links = w.buffer[:n]; uint64(n) < size {
			w.links = nil
			return 0, 0, false, fmt.Errorf("read the links up to position %d: %w", position, errors.Join(errDamaged, err))
		}
	}
	return decodeLink(position, w.links[(position-w.first)*linkBytes:])
}

// A walkStep is the next event of a resource in a walk.
type walkStep struct {
	at       uint64
	resource int
}

// A walkHeap has the step with the highest position first.
type walkHeap []walkStep

func (h walkHeap) Len() int           { return len(h) }
func (h walkHeap) Less(i, j int) bool { return h[i].at > h[j].at }
func (h walkHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *walkHeap) Push(step any)     { *h = append(*h, step.(walkStep)) }
func (h *walkHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// Firsts knows which written events are the first of their resource. It must not be used
// concurrently.
type Firsts struct {
	index []frameRef
	last  int // the frame that Has found last
}

// Firsts returns what the archive knows now.
func (a *Archive) Firsts() *Firsts {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &Firsts{index: a.index[:len(a.index):len(a.index)]}
}

// Has reports whether the event at a position is known to be the first one of its resource's name.
func (f *Firsts) Has(position uint64) bool {
	for i := f.last; i < len(f.index) && i <= f.last+1; i++ { // positions often ascend
		if ref := &f.index[i]; ref.first <= position && position <= ref.last {
			f.last = i
			return ref.firsts&(1<<(position-ref.first)) != 0
		}
	}
	i, found := findFrame(f.index, position)
	if !found {
		return false
	}
	f.last = i
	return f.index[i].firsts&(1<<(position-f.index[i].first)) != 0
}

// firstsOf returns the bits of the events in a frame that are the first ones of their resource.
// A frame with more events than there are bits has none.
func firstsOf(links []byte) (bits uint64) {
	if len(links) > frameEvents*linkBytes {
		return 0
	}
	for i := 0; i < len(links); i += linkBytes {
		if previous, _, _, err := decodeLink(^uint64(0), links[i:]); err == nil && previous == 0 {
			bits |= 1 << (i / linkBytes)
		}
	}
	return bits
}
