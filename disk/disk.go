// Package disk limits how much disk space writers of files use. The embedded NATS server stops all
// streams when the disk is full. So all other writers leave free space for the server: the less
// important a class of writes, the more space it must leave.
package disk

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"anneal/domain"
)

// A WriteClass is a class of writes, such as Events or Files. Its value is the number of bytes of
// the file system that must stay free after a write of the class.
type WriteClass uint64

const (
	// Events are writes of events to the log. They must leave the fewest bytes free, so that
	// resources can still be deleted and jobs cancelled on a nearly full disk. The NATS server
	// needs the last 16 MiB for mirrors, indexes and consumer positions.
	Events WriteClass = 16 << 20
	// Requests are changes requested by clients, idempotency records and usage records.
	Requests WriteClass = 32 << 20
	// Files are uploads, weights, checkpoints, recordings and snapshots.
	Files WriteClass = 48 << 20
)

// Full is the error reason of a write that was refused because the disk is too full.
const Full = "DISK_FULL"

// A Space accounts for the free space of one file system: what is free now, less what writes in
// progress have reserved. A nil *Space is unlimited: its methods return no error.
type Space struct {
	free func() (bytes uint64, err error)

	simulated atomic.Pointer[uint64] // number of free bytes that Simulate has set; nil without one

	mu       sync.Mutex
	reserved uint64 // bytes that writes in progress have reserved
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

// New returns a Space of a file system whose number of free bytes is the result of free.
func New(free func() (uint64, error)) *Space { return &Space{free: free} }

// Simulate sets the number of free bytes that the Space computes with, for tests, until restore is
// called.
func (s *Space) Simulate(free uint64) (restore func()) {
	s.simulated.Store(&free)
	return func() { s.simulated.Store(nil) }
}

func (s *Space) freeNow() (uint64, error) {
	if free := s.simulated.Load(); free != nil {
		return *free, nil
	}
	return s.free()
}

// Free returns the number of free bytes, including reserved ones; false if it is unknown.
func (s *Space) Free() (uint64, bool) {
	if s == nil {
		return 0, false
	}
	free, err := s.freeNow()
	return free, err == nil
}

// Check returns an error with the reason Full when a write of n bytes would leave less space free
// than its class requires. If the free space is unknown, it returns nil, and the write itself
// reports a full disk.
func (s *Space) Check(class WriteClass, n int64) error {
	if s == nil {
		return nil
	}
	free, err := s.freeNow()
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checkLocked(free, class, n)
}

// checkLocked is Check with the number of free bytes, free. The caller holds s.mu.
func (s *Space) checkLocked(free uint64, class WriteClass, n int64) error {
	if free >= uint64(class)+s.reserved+uint64(max(n, 0)) {
		return nil
	}
	return &domain.Error{Code: domain.ResourceExhausted, Reason: Full,
		Message: fmt.Sprintf("the disk is nearly full (%d MB free), so nothing was written: delete resources that you do "+
			"not need, or have the operator free some space or add a larger disk, and try again", free>>20)}
}

// Reserve reserves space for a write of n bytes, so that concurrent writes do not count on the same
// free bytes. It returns the error of Check if there is not enough. The caller calls done when the
// bytes are written, or will not be written.
func (s *Space) Reserve(class WriteClass, n int64) (done func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if free, err := s.freeNow(); err == nil {
		if err := s.checkLocked(free, class, n); err != nil {
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

// chunk is the maximum number of bytes of a file that are reserved and written at a time.
const chunk = 1 << 20

// Create creates or truncates a file like os.Create, and returns it as a File.
func Create(path string) (*File, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return Watch(file), nil
}

// Watch wraps an open file, so that its writes are refused when its file system is too full: see
// File.
func Watch(file *os.File) *File { return On(file.Name()).Watch(file) }

// Watch wraps an open file, so that its writes are refused when the file system of s is too full:
// see File.
func (s *Space) Watch(file *os.File) *File { return &File{File: file, space: s} }

// A File is a file whose Write reserves space of the class Files before it writes, and returns the
// error of Reserve when there is not enough.
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
