// Package disk limits how much disk space writers of files use. The embedded NATS server stops all
// streams when the disk is full. So all other writers leave free space for the server: the less
// important a use, the more space it must leave.
package disk

import (
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"anneal/domain"
)

// A Use is a purpose for which space is needed. Its value is the number of bytes that must stay
// free after a write for that purpose.
type Use uint64

const (
	// Events is the free space that must remain after writing events of the log. It is the smallest, so
	// that resources can still be deleted and jobs canceled on a nearly full disk. The NATS server needs
	// the remaining 16 MB for mirrors, indexes and consumer positions.
	Events Use = 16 << 20
	// Requests is the same for changes requested by callers, idempotency records and usage records.
	Requests Use = 32 << 20
	// Files is the same for uploads, weights, checkpoints, recordings and snapshots.
	Files Use = 48 << 20
)

// Full is the error reason of a write for which there is not enough space.
const Full = "DISK_FULL"

// A Space is the free space of a file system. A nil *Space is unlimited: its methods return no
// error.
type Space struct {
	free func() (bytes uint64, err error)

	mu       sync.Mutex
	reserved uint64 // bytes of writes in progress
}

var (
	spacesMu sync.Mutex
	spaces   = map[uint64]*Space{} // by device, so that all writers to a device share one Space
)

// On returns the Space of the file system that contains a directory; nil when the file system
// cannot be determined.
func On(dir string) *Space {
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		return nil
	}
	spacesMu.Lock()
	defer spacesMu.Unlock()
	device := uint64(stat.Dev) //nolint:unconvert // Dev is signed on some systems
	if spaces[device] == nil {
		spaces[device] = New(func() (uint64, error) { return freeBytes(dir) })
	}
	return spaces[device]
}

// New returns a Space for which free returns the number of free bytes.
func New(free func() (uint64, error)) *Space { return &Space{free: free} }

// Free returns the number of free bytes; false if it is unknown.
func (s *Space) Free() (uint64, bool) {
	free, err := s.free()
	return free, err == nil
}

// Check returns an error when writing n bytes would leave less than use bytes free. If the free
// space is unknown, it returns nil, and the write itself reports a full disk.
func (s *Space) Check(use Use, n int64) error {
	if s == nil {
		return nil
	}
	free, err := s.free()
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checkLocked(free, use, n)
}

// checkLocked returns the error of Check, where free is the number of free bytes. The caller holds
// s.mu.
func (s *Space) checkLocked(free uint64, use Use, n int64) error {
	if free >= uint64(use)+s.reserved+uint64(max(n, 0)) {
		return nil
	}
	return &domain.Error{Code: domain.ResourceExhausted, Reason: Full,
		Message: fmt.Sprintf("the disk is nearly full (%d MB free), so nothing was written: delete what is not needed, "+
			"or have the operator free some space or add a larger disk, and try again", free>>20)}
}

// Reserve returns an error under the conditions of Check; otherwise it reserves n bytes until done
// is called. The caller calls done when the bytes are written or not needed.
func (s *Space) Reserve(use Use, n int64) (done func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if free, err := s.free(); err == nil {
		if err := s.checkLocked(free, use, n); err != nil {
			return nil, err
		}
	}
	bytes := uint64(max(n, 0))
	s.reserved += bytes
	return sync.OnceFunc(func() {
		s.mu.Lock()
		s.reserved -= bytes
		s.mu.Unlock()
	}), nil
}

// chunk is how many bytes of a file are reserved at a time.
const chunk = 1 << 20

// Create creates or truncates a file like os.Create. The file's Write returns the error of Check
// for the use Files when there is not enough space.
func Create(path string) (*File, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return Watch(file), nil
}

// Watch returns an open file as a File that is limited by the space of its file system.
func Watch(file *os.File) *File { return On(file.Name()).Watch(file) }

// Watch returns an open file as a File that is limited by the space s.
func (s *Space) Watch(file *os.File) *File { return &File{File: file, space: s} }

// A File is a file whose Write reserves space first, and returns the error of Reserve when there is
// not enough.
type File struct {
	*os.File
	space *Space
}

// Write implements io.Writer.
func (f *File) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		n := min(len(p), chunk)
		done, err := f.space.Reserve(Files, int64(n))
		if err != nil {
			return written, err
		}
		n, err = f.File.Write(p[:n])
		done()
		written, p = written+n, p[n:]
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// ReadFrom implements io.ReaderFrom with Write, because the method of os.File would write without
// reserving space.
func (f *File) ReadFrom(r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{f}, r, make([]byte, 128<<10))
}

// freeBytes returns how many bytes a process without privileges can still write to the file system
// of dir.
func freeBytes(dir string) (uint64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, err
	}
	return uint64(stat.Bavail) * uint64(stat.Bsize), nil //nolint:unconvert // both are signed on some systems
}
