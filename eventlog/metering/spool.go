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

// A spool is a queue of entries in files of a directory. Entries have consecutive indexes. The name
// of a file is the index of its first entry. An entry is stored as its length (4 bytes,
// little-endian), CRC-32C (4 bytes) and content. An appended entry survives a crash of the process;
// after sync it survives a power failure. append does not wait for an fsync, because requests wait
// for append.
type spool struct {
	dir     string
	segment int64                   // length in bytes at which append begins a new file
	changed chan struct{}           // receives an element after append, to wake the reader
	fsync   func(path string) error // syncs a file or directory; tests replace it
	resume  spoolPosition           // where the last call of read ended; only one goroutine reads

	mu       sync.Mutex
	file     *os.File // newest file, to which append writes; nil until the first append
	size     int64    // length of the newest file in bytes
	first    []uint64 // index of the first entry of each file, in ascending order
	next     uint64   // index of the next entry to append
	unsynced []string // paths of the files and directories that must be synced
	dirty    bool     // whether unsynced has the newest file
	cut      int64    // bytes at the end of the newest file that openSpool removed because they were damaged
}

// A spoolPosition is where an entry begins in a file of the spool.
type spoolPosition struct {
	file, index uint64 // file is the index of the file's first entry, index that of the entry itself
	offset      int64
}

const (
	spoolSuffix  = ".usage"
	spoolSegment = 4 << 20
	spoolHead    = 8
	maxEntry     = 1 << 20 // maximum length of an entry in bytes; a larger length means damage
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openSpool opens the spool in a directory, or creates it. next is the index of the first entry
// that is still needed. Damaged bytes at the end of the newest file, for example after a power
// failure, are removed.
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
			return nil, fmt.Errorf("open the usage spool: %s is not a file of the spool: move it to another directory", path)
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
	s.markDirty()            // the process that appended the entries may have crashed before it synced them
	if s.next > last+count { // a power failure has removed entries that were already sent
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
	s.markDirty()
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return s.next - 1, nil
}

// frame returns an entry in the format of a file: length, checksum and content.
func frame(entry []byte) []byte {
	head := binary.LittleEndian.AppendUint32(nil, uint32(len(entry)))
	return append(binary.LittleEndian.AppendUint32(head, crc32.Checksum(entry, castagnoli)), entry...)
}

// markDirty marks the newest file to be synced. The caller holds mu.
func (s *spool) markDirty() {
	if !s.dirty {
		s.unsynced, s.dirty = append(s.unsynced, s.path(s.first[len(s.first)-1])), true
	}
}

// rotate begins a new file. The caller holds mu.
func (s *spool) rotate() error {
	file, err := os.OpenFile(s.path(s.next), os.O_CREATE|os.O_EXCL|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("create a file of the usage spool: %w", err)
	}
	if s.file != nil {
		err = s.file.Close()
	}
	s.file, s.size, s.first = file, 0, append(s.first, s.next)
	s.unsynced, s.dirty = append(s.unsynced, s.dir), false
	return err
}

// sync syncs the files with appended entries to disk.
func (s *spool) sync() error {
	s.mu.Lock()
	unsynced := s.unsynced
	s.unsynced, s.dirty = nil, false
	s.mu.Unlock()
	for i, path := range unsynced {
		if err := s.fsync(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // forget may have deleted the file
			s.mu.Lock()
			s.unsynced = append(s.unsynced, unsynced[i:]...)
			s.mu.Unlock()
			return err
		}
	}
	return nil
}

// read returns up to limit entries from the index start on, and the index after the last one. An
// entry with damaged content is nil. When the length of an entry is damaged or files are missing,
// read skips entries: following is then larger than start plus the number of returned entries.
func (s *spool) read(start uint64, limit int) (entries [][]byte, following uint64, err error) {
	s.mu.Lock()
	first, next := slices.Clone(s.first), s.next
	s.mu.Unlock()
	if start >= next {
		return nil, start, nil
	}
	at, found := slices.BinarySearch(first, start)
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
		return nil, start, fmt.Errorf("read the usage spool: %w", err)
	}
	defer file.Close()
	here := spoolPosition{file: first[at], index: first[at]}
	if s.resume.file == first[at] && s.resume.index == start {
		here = s.resume
	}
	if _, err := file.Seek(here.offset, io.SeekStart); err != nil {
		return nil, start, fmt.Errorf("read the usage spool: %w", err)
	}
	reader := bufio.NewReaderSize(file, 64<<10)
	for here.index < end && len(entries) < limit {
		entry, length, err := readEntry(reader)
		if err != nil {
			return entries, end, nil // skip the rest of the file, which cannot be parsed
		}
		if here.index >= start {
			entries = append(entries, entry)
		}
		here.index, here.offset = here.index+1, here.offset+spoolHead+int64(length)
	}
	s.resume = here
	return entries, start + uint64(len(entries)), nil
}

// readEntry returns the next entry of a file and the length of its content. The entry is nil when
// its content does not match its checksum.
func readEntry(r io.Reader) (entry []byte, length uint32, err error) {
	var head [spoolHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, 0, err
	}
	length = binary.LittleEndian.Uint32(head[:])
	if length == 0 || length > maxEntry {
		return nil, 0, errors.New("the length of an entry in the usage spool is damaged")
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

// forget deletes the files that only have entries before upTo. Before that it syncs the file
// cursor, so that a power failure cannot bring back an older cursor.
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
			return fmt.Errorf("delete sent records from the usage spool: %w", err)
		}
		s.mu.Lock()
		s.first = s.first[1:]
		s.mu.Unlock()
	}
	return nil
}

// begin returns the index of the first entry in the files.
func (s *spool) begin() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.first) == 0 {
		return s.next
	}
	return s.first[0]
}

// end returns the index of the next entry to append.
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
