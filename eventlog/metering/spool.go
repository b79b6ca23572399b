package metering

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"anneal/disk"
)

// A spool is a queue of entries in the files of a directory. Entries have consecutive indexes. A file
// is named for the index of its first entry, and contains entries as: length (4 bytes, little-endian),
// CRC-32C (4 bytes), content. An appended entry survives the end of the process; sync makes it survive
// a power failure. append waits for no fsync, because requests wait for append.
type spool struct {
	dir     string
	segment int64                   // bytes from which on append begins another file
	changed chan struct{}           // receives after append
	fsync   func(path string) error // of a file or directory
	resume  place                   // where the last read ended; only one goroutine reads

	mu       sync.Mutex
	file     *os.File // the newest file, to which append writes; nil until append needs it
	size     int64    // bytes of file
	first    []uint64 // first indexes of the files
	next     uint64   // index of the next entry
	unsynced []string // files and directories with changes that are not synced
	dirty    bool     // unsynced has the newest file
	cut      int64    // bytes of entries that were not sent, and that openSpool removed because they were damaged
}

// A place is the position of an entry in a file.
type place struct {
	file, index uint64 // the first index of the file, and the index of the entry
	offset      int64
}

const (
	spoolSuffix  = ".usage"
	spoolSegment = 4 << 20
	spoolHead    = 8
	maxEntry     = 1 << 20 // a larger length is damage
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openSpool opens the spool in a directory, and creates it if it does not exist. The next index is at
// least next, and the entries before next are not needed any more. The end of the newest file from an
// entry on whose length is damaged, or which a power failure cut off, is removed.
func openSpool(dir string, next uint64) (*spool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the usage spool: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"+spoolSuffix))
	if err != nil {
		return nil, fmt.Errorf("open the usage spool: %w", err)
	}
	s := &spool{dir: dir, segment: spoolSegment, changed: make(chan struct{}, 1), fsync: disk.Sync,
		next: max(1, next)}
	for _, path := range files {
		first, err := strconv.ParseUint(strings.TrimSuffix(filepath.Base(path), spoolSuffix), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("open the usage spool: %s is not a file of the spool: move it elsewhere", path)
		}
		s.first = append(s.first, first)
	}
	slices.Sort(s.first)
	if len(s.first) == 0 {
		return s, nil
	}
	last := s.first[len(s.first)-1]
	if s.file, err = os.OpenFile(s.path(last), os.O_RDWR|os.O_APPEND, 0); err != nil {
		return nil, fmt.Errorf("open the usage spool: %w", err)
	}
	count := uint64(0)
	reader := bufio.NewReader(s.file)
	for {
		_, length, err := readEntry(reader)
		if err != nil {
			break
		}
		s.size += spoolHead + int64(length)
		count++
	}
	if info, err := s.file.Stat(); err == nil && last+count >= s.next {
		s.cut = info.Size() - s.size
	}
	s.next = max(s.next, last+count)
	if err := s.file.Truncate(s.size); err != nil {
		return nil, fmt.Errorf("open the usage spool: %w", err)
	}
	s.changes()              // the process that has appended the entries may have ended before it has synced them
	if s.next > last+count { // the cursor knows of later entries, which a power failure removed
		s.size = s.segment
	}
	return s, nil
}

func (s *spool) path(first uint64) string {
	return filepath.Join(s.dir, fmt.Sprintf("%020d%s", first, spoolSuffix))
}

// append adds an entry and returns its index.
func (s *spool) append(entry []byte) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil || s.size >= s.segment {
		if err := s.rotate(); err != nil {
			return 0, err
		}
	}
	record := frame(entry)
	if _, err := s.file.Write(record); err != nil {
		return 0, fmt.Errorf("write to the usage spool: %w", errors.Join(err, s.file.Truncate(s.size)))
	}
	s.size += int64(len(record))
	s.next++
	s.changes()
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return s.next - 1, nil
}

// frame returns an entry as it is in a file.
func frame(entry []byte) []byte {
	head := binary.LittleEndian.AppendUint32(nil, uint32(len(entry)))
	return append(binary.LittleEndian.AppendUint32(head, crc32.Checksum(entry, castagnoli)), entry...)
}

// changes notes that the newest file must be synced. The caller holds mu.
func (s *spool) changes() {
	if !s.dirty {
		s.unsynced, s.dirty = append(s.unsynced, s.path(s.first[len(s.first)-1])), true
	}
}

// rotate begins a file. The caller holds mu.
func (s *spool) rotate() error {
	file, err := os.OpenFile(s.path(s.next), os.O_CREATE|os.O_EXCL|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("extend the usage spool: %w", err)
	}
	if s.file != nil {
		err = s.file.Close()
	}
	s.file, s.size, s.first = file, 0, append(s.first, s.next)
	s.unsynced, s.dirty = append(s.unsynced, s.dir), false
	return err
}

// sync makes the appended entries durable.
func (s *spool) sync() error {
	s.mu.Lock()
	unsynced := s.unsynced
	s.unsynced, s.dirty = nil, false
	s.mu.Unlock()
	for i, path := range unsynced {
		if err := s.fsync(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // forget removes files
			s.mu.Lock()
			s.unsynced = append(s.unsynced, unsynced[i:]...)
			s.mu.Unlock()
			return err
		}
	}
	return nil
}

// read returns at most limit entries from an index on, and the index after the last one. An entry is
// nil if its content is damaged. read skips entries that are gone, or follow one whose length is
// damaged: after is then larger than from plus the number of entries.
func (s *spool) read(from uint64, limit int) (entries [][]byte, after uint64, err error) {
	s.mu.Lock()
	first, next := slices.Clone(s.first), s.next
	s.mu.Unlock()
	if from >= next {
		return nil, from, nil
	}
	at, found := slices.BinarySearch(first, from)
	if !found {
		at--
	}
	if at < 0 {
		return nil, first[0], nil
	}
	end := next
	if at+1 < len(first) {
		end = first[at+1]
	}
	file, err := os.Open(s.path(first[at]))
	if err != nil {
		return nil, from, fmt.Errorf("read the usage spool: %w", err)
	}
	defer file.Close()
	here := place{file: first[at], index: first[at]}
	if s.resume.file == first[at] && s.resume.index == from {
		here = s.resume
	}
	if _, err := file.Seek(here.offset, io.SeekStart); err != nil {
		return nil, from, fmt.Errorf("read the usage spool: %w", err)
	}
	reader := bufio.NewReaderSize(file, 64<<10)
	for here.index < end && len(entries) < limit {
		entry, length, err := readEntry(reader)
		if err != nil {
			return entries, end, nil // the rest of the file is damaged
		}
		if here.index >= from {
			entries = append(entries, entry)
		}
		here.index, here.offset = here.index+1, here.offset+spoolHead+int64(length)
	}
	s.resume = here
	return entries, from + uint64(len(entries)), nil
}

// readEntry returns the next entry and the length of its content. The entry is nil if its content is
// damaged.
func readEntry(r io.Reader) (entry []byte, length uint32, err error) {
	var head [spoolHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, 0, err
	}
	length = binary.LittleEndian.Uint32(head[:])
	if length == 0 || length > maxEntry {
		return nil, 0, errors.New("the length of an entry is damaged")
	}
	entry = make([]byte, length)
	if _, err := io.ReadFull(r, entry); err != nil {
		return nil, 0, err
	}
	if crc32.Checksum(entry, castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
		return nil, length, nil
	}
	return entry, length, nil
}

// forget removes the files whose entries all have indexes below upTo, after it has made the cursor
// durable.
func (s *spool) forget(upTo uint64, cursor string) error {
	s.mu.Lock()
	obsolete := slices.Clone(s.first)
	s.mu.Unlock()
	n := 0
	for n+1 < len(obsolete) && obsolete[n+1] <= upTo {
		n++
	}
	if n == 0 {
		return nil
	}
	if err := errors.Join(s.fsync(cursor), s.fsync(s.dir)); err != nil {
		return err
	}
	for _, first := range obsolete[:n] {
		if err := os.Remove(s.path(first)); err != nil {
			return fmt.Errorf("shorten the usage spool: %w", err)
		}
		s.mu.Lock()
		s.first = s.first[1:]
		s.mu.Unlock()
	}
	return nil
}

// begin returns the lowest index in the files.
func (s *spool) begin() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.first) == 0 {
		return s.next
	}
	return s.first[0]
}

// end returns the index of the next entry.
func (s *spool) end() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

func (s *spool) close() error {
	err := s.sync()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return err
	}
	file := s.file
	s.file = nil
	return errors.Join(err, file.Close())
}
