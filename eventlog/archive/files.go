package archive

import (
	"container/list"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/klauspost/compress/s2"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog"
)

// A file stores the frames or the links of an archive. It is an *os.File or, for an archive in
// memory, a memoryFile.
type file interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	Sync() error
	Close() error
}

// The file of frames is a sequence of frames: a header, and compressed events. Numbers are
// big-endian.
//
//	0  "AFR1"
//	4  position of the first event
//	12 number of events
//	16 latest time of all events up to the last one of the frame, Unix time in nanoseconds
//	24 length of the events
//	28 length of the compressed events
//	32 CRC-32C of the compressed events
//	36 CRC-32C of the links of the events
//	40 CRC-32C of the header before
const (
	frameMagic  = "AFR1"
	frameHeader = 44
	maxFrame    = 64 << 20 // maximum length of a frame's compressed events in bytes; a longer frame counts as damaged
)

// The file of links has two numbers for the event at each position: the position of the resource's
// previous event, with carriesBit if the event carries a state, and the position of the resource's
// last event before this one that carries a state.
const (
	linkBytes  = 16
	carriesBit = 1 << 63
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errDamaged = errors.New("the archive of earlier states is damaged")

// A frameRef locates a frame in the file of frames.
type frameRef struct {
	first, last uint64
	newest      time.Time // latest time of any event in the archive up to the end of this frame
	offset      int64
	length      int    // length of the frame in bytes, including its header
	firsts      uint64 // bit i: event i of the frame is the first one of its resource
}

// scan reads the headers and the links of all frames into index. It stops at the first frame whose
// header or links are damaged; that frame and all later ones are written again.
func (a *Archive) scan() {
	head := make([]byte, frameHeader)
	var links []byte
	for next := uint64(1); ; next = a.written + 1 {
		if _, err := a.frames.ReadAt(head, a.size); err != nil {
			return
		}
		ref, err := parseHeader(head, a.size)
		if err != nil || ref.first != next {
			return
		}
		links = slices.Grow(links[:0], int(ref.last-ref.first+1)*linkBytes)[:(ref.last-ref.first+1)*linkBytes]
		if _, err := a.links.ReadAt(links, int64(ref.first-1)*linkBytes); err != nil ||
			binary.BigEndian.Uint32(head[36:]) != crc32.Checksum(links, castagnoli) {
			return
		}
		ref.firsts = firstsOf(links)
		a.index = append(a.index, ref)
		a.size, a.written, a.last, a.newest = a.size+int64(ref.length), ref.last, ref.last, ref.newest
	}
}

func parseHeader(head []byte, offset int64) (frameRef, error) {
	count := binary.BigEndian.Uint32(head[12:])
	length := binary.BigEndian.Uint32(head[28:])
	if string(head[:4]) != frameMagic || binary.BigEndian.Uint32(head[40:]) != crc32.Checksum(head[:40], castagnoli) ||
		count == 0 || length > maxFrame {
		return frameRef{}, fmt.Errorf("%w: the frame at byte %d of frames-1 has no valid header", errDamaged, offset)
	}
	first := binary.BigEndian.Uint64(head[4:])
	return frameRef{first: first, last: first + uint64(count) - 1, offset: offset, length: frameHeader + int(length),
		newest: time.Unix(0, int64(binary.BigEndian.Uint64(head[16:])))}, nil
}

// frameOf returns the index of the frame that has the event at a position. The event must be in the
// file.
func (a *Archive) frameOf(position uint64) int {
	i, _ := findFrame(a.index, position)
	return i
}

func findFrame(index []frameRef, position uint64) (i int, found bool) {
	return slices.BinarySearchFunc(index, position, func(ref frameRef, p uint64) int {
		switch {
		case ref.first > p:
			return 1
		case ref.last < p:
			return -1
		}
		return 0
	})
}

// entryIn returns the event at a position in a frame, without its field Previous.
func (a *Archive) entryIn(ref frameRef, position uint64) (Entry, error) {
	f, err := a.cache.get(ref, a.frames)
	if err != nil {
		return Entry{}, err
	}
	entry, err := decodeEntry(f.raw[f.offsets[position-ref.first]:])
	entry.Position = position
	return entry, err
}

// write runs in a goroutine and writes full batches to the files until Close is called.
func (a *Archive) write() {
	defer close(a.ended)
	for range a.full {
		a.mu.Lock()
		b, err := a.pending[0], a.failed
		a.mu.Unlock()
		var ref frameRef
		if err == nil {
			ref, err = a.writeBatch(b)
		}
		a.mu.Lock()
		if a.pending = slices.Delete(a.pending, 0, 1); err == nil {
			a.index = append(a.index, ref)
			a.size, a.written = ref.offset+int64(ref.length), ref.last
		} else {
			a.failed = err
		}
		a.mu.Unlock()
		close(b.written)
	}
}

// writeBatch writes the events of a full batch and their links to the files, and returns the
// location of the new frame.
func (a *Archive) writeBatch(b *batch) (frameRef, error) {
	var raw []byte
	a.mu.Lock()
	newest := time.Time{}
	if n := len(a.index); n > 0 {
		newest = a.index[n-1].newest
	}
	offset := a.size
	a.mu.Unlock()
	links := make([]byte, 0, len(b.entries)*linkBytes)
	for _, entry := range b.entries {
		raw = appendEntry(raw, entry)
		if entry.Time.After(newest) {
			newest = entry.Time
		}
		previous, jump := entry.Previous, uint64(0)
		if previous > 0 {
			var err error
			if jump, err = a.lastState(previous, b.first(), links); err != nil {
				return frameRef{}, err
			}
		}
		if entry.State != nil {
			previous |= carriesBit
		}
		links = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(links, previous), jump)
	}
	frame := encodeFrame(b, raw, links, newest)
	done, err := a.space.Reserve(disk.Files, int64(len(frame)+len(links)))
	if err != nil {
		return frameRef{}, err
	}
	defer done()
	if _, err := a.links.WriteAt(links, int64(b.first()-1)*linkBytes); err != nil {
		return frameRef{}, err
	}
	_, err = a.frames.WriteAt(frame, offset)
	return frameRef{b.first(), b.entries[len(b.entries)-1].Position, newest, offset, len(frame), firstsOf(links)}, err
}

// lastState returns the position of the last event of a resource that carries a state, looking back
// from one of its events at position. links has the links of the events from position first on,
// which are not in the file yet.
func (a *Archive) lastState(position, first uint64, links []byte) (uint64, error) {
	link := make([]byte, linkBytes)
	if position >= first {
		link = links[(position-first)*linkBytes:]
	} else if _, err := a.links.ReadAt(link, int64(position-1)*linkBytes); err != nil {
		return 0, err
	}
	if binary.BigEndian.Uint64(link)&carriesBit != 0 {
		return position, nil
	}
	return binary.BigEndian.Uint64(link[8:]), nil
}

func encodeFrame(b *batch, raw, links []byte, newest time.Time) []byte {
	packed := s2.EncodeBetter(nil, raw)
	frame := make([]byte, 0, frameHeader+len(packed))
	frame = append(frame, frameMagic...)
	frame = binary.BigEndian.AppendUint64(frame, b.first())
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(b.entries)))
	frame = binary.BigEndian.AppendUint64(frame, uint64(newest.UnixNano()))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(raw)))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(packed)))
	frame = binary.BigEndian.AppendUint32(frame, crc32.Checksum(packed, castagnoli))
	frame = binary.BigEndian.AppendUint32(frame, crc32.Checksum(links, castagnoli))
	frame = binary.BigEndian.AppendUint32(frame, crc32.Checksum(frame, castagnoli))
	return append(frame, packed...)
}

// link returns the links of the event at a position: previous is the position of the resource's
// previous event, jump that of its last earlier event with a state. carries reports whether the
// event itself has a state. jump is 0 for an event that is not written yet.
func (a *Archive) link(position uint64) (previous, jump uint64, carries bool, err error) {
	a.mu.Lock()
	entry := a.waiting(position)
	written := position > 0 && position <= a.written
	if entry != nil {
		previous, carries = entry.Previous, entry.State != nil
	} else if !written {
		err = a.lacks(position)
	}
	a.mu.Unlock()
	if entry != nil || err != nil {
		return previous, 0, carries, err
	}
	return a.writtenLink(position)
}

// writtenLink returns what link returns, for an event whose links are in the file.
func (a *Archive) writtenLink(position uint64) (previous, jump uint64, carries bool, err error) {
	var link [linkBytes]byte
	if _, err := a.links.ReadAt(link[:], int64(position-1)*linkBytes); err != nil {
		return 0, 0, false, fmt.Errorf("read the link of the event at position %d: %w", position, err)
	}
	return decodeLink(position, link[:])
}

// decodeLink returns the links of the event at a position, which are encoded at the beginning of
// link.
func decodeLink(position uint64, link []byte) (previous, jump uint64, carries bool, err error) {
	previous, jump = binary.BigEndian.Uint64(link), binary.BigEndian.Uint64(link[8:])
	carries, previous = previous&carriesBit != 0, previous&^carriesBit
	if previous >= position || jump > previous {
		return 0, 0, false, fmt.Errorf("%w: the link of the event at position %d does not lead to an earlier event",
			errDamaged, position)
	}
	return previous, jump, carries, nil
}

func appendEntry(to []byte, entry Entry) []byte {
	to = binary.AppendVarint(to, entry.Time.UnixNano())
	for _, field := range [...]string{entry.Type, entry.ID, string(entry.Name)} {
		to = append(binary.AppendUvarint(to, uint64(len(field))), field...)
	}
	for _, field := range [...][]byte{entry.Data, entry.State} {
		to = append(binary.AppendUvarint(to, uint64(len(field))), field...)
	}
	return to
}

func decodeEntry(raw []byte) (Entry, error) {
	at, n := binary.Varint(raw)
	if n <= 0 {
		return Entry{}, errDamaged
	}
	raw = raw[n:]
	var fields [5][]byte
	for i := range fields {
		length, n := binary.Uvarint(raw)
		if n <= 0 || length > uint64(len(raw)-n) {
			return Entry{}, errDamaged
		}
		fields[i], raw = raw[n:n+int(length):n+int(length)], raw[n+int(length):]
	}
	entry := Entry{Event: eventlog.Event{Record: domain.Record{Type: string(fields[0]), Data: fields[3]},
		ID: string(fields[1]), Name: domain.Name(fields[2]), Time: time.Unix(0, at).UTC()}}
	if len(fields[4]) > 0 {
		entry.State = fields[4]
	}
	return entry, nil
}

// A cache keeps the frames that were read last in memory, decompressed, up to cacheBytes.
type cache struct {
	mu     sync.Mutex
	frames map[int64]*cached // decompressed frames, by their offset in the file of frames
	recent list.List         // the same frames as *cached, the most recently read one in front
	bytes  int
}

// A cached is a decompressed frame. It is never modified, so that readers can share it.
type cached struct {
	offset  int64
	raw     []byte
	offsets []uint32 // where each event of the frame begins in raw
	element *list.Element
}

func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frames, c.bytes = map[int64]*cached{}, 0
	c.recent.Init()
}

func (c *cache) get(ref frameRef, frames file) (*cached, error) {
	c.mu.Lock()
	if f := c.frames[ref.offset]; f != nil {
		c.recent.MoveToFront(f.element)
		c.mu.Unlock()
		return f, nil
	}
	c.mu.Unlock()
	f, err := load(ref, frames)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.frames[ref.offset] == nil {
		f.element = c.recent.PushFront(f)
		c.frames[ref.offset] = f
		for c.bytes += len(f.raw); c.bytes > cacheBytes && c.recent.Len() > 1; {
			old := c.recent.Remove(c.recent.Back()).(*cached)
			delete(c.frames, old.offset)
			c.bytes -= len(old.raw)
		}
	}
	return f, nil
}

func load(ref frameRef, frames file) (*cached, error) {
	frame := make([]byte, ref.length)
	if _, err := frames.ReadAt(frame, ref.offset); err != nil {
		return nil, fmt.Errorf("read the archive of earlier states: %w", err)
	}
	packed := frame[frameHeader:]
	if binary.BigEndian.Uint32(frame[32:]) != crc32.Checksum(packed, castagnoli) {
		return nil, damaged(ref)
	}
	raw, err := s2.Decode(nil, packed)
	if err != nil || len(raw) != int(binary.BigEndian.Uint32(frame[24:])) {
		return nil, damaged(ref)
	}
	f := &cached{offset: ref.offset, raw: raw}
	for at := 0; at < len(raw); {
		f.offsets = append(f.offsets, uint32(at))
		length, err := entryLength(raw[at:])
		if err != nil {
			return nil, damaged(ref)
		}
		at += length
	}
	if uint64(len(f.offsets)) != ref.last-ref.first+1 {
		return nil, damaged(ref)
	}
	return f, nil
}

func damaged(ref frameRef) error {
	return domain.Errorf(domain.DataLoss, "the archive of earlier states is damaged at positions %d to %d: stop the "+
		"server, remove the directory archive in its data directory, and start it; it then writes the archive again from "+
		"the log",
		ref.first, ref.last)
}

func entryLength(raw []byte) (int, error) {
	_, at := binary.Varint(raw)
	for i := 0; i < 5 && at > 0; i++ {
		length, n := binary.Uvarint(raw[at:])
		if n <= 0 || length > uint64(len(raw)-at-n) {
			return 0, errDamaged
		}
		at += n + int(length)
	}
	if at <= 0 {
		return 0, errDamaged
	}
	return at, nil
}

// A memoryFile is a file in memory, for an archive that NewMemory returns.
type memoryFile struct {
	mu   sync.RWMutex
	data []byte
}

func (f *memoryFile) ReadAt(p []byte, offset int64) (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if offset >= int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.data[offset:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memoryFile) WriteAt(p []byte, offset int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if need := int(offset) + len(p); need > len(f.data) {
		f.data = slices.Grow(f.data, need-len(f.data))[:need]
	}
	return copy(f.data[offset:], p), nil
}

func (f *memoryFile) Truncate(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data = f.data[:size]
	return nil
}

func (f *memoryFile) Sync() error  { return nil }
func (f *memoryFile) Close() error { return nil }
