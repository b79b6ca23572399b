// Package disk is the one budget of disk space: whoever writes files asks it
// first. The embedded NATS server stops, and takes its streams with it, when a
// write of its own meets a full disk; so all others leave it room, the less
// important ones more.
package disk

import (
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"anneal/domain"
)

// A Use says what room is taken for: its value is how many bytes are left free.
type Use uint64

const (
	// Events may take the most: also on a short disk what goes on is recorded,
	// and deleted and cancelled. What is left is the NATS server's, for
	// mirrors, indexes and the places of consumers.
	Events Use = 16 << 20
	// Requests are changes that callers ask for, answers to idempotency keys
	// and records of usage.
	Requests Use = 32 << 20
	// Files are uploads, weights, checkpoints, recordings and snapshots.
	Files Use = 48 << 20
)

// Full is the reason of the fault of a write that has no room.
const Full = "DISK_FULL"

// A Space is the room on one file system. A nil Space has room for everything:
// it stands for a disk that is somebody else's to watch.
type Space struct {
	free func() (bytes uint64, err error)

	mu       sync.Mutex
	reserved uint64 // by writes that are under way
}

var (
	spacesMu sync.Mutex
	spaces   = map[uint64]*Space{} // by device, so that all writers to one reserve from the same room
)

// On is the space of the file system that a folder lies on; nil when that
// cannot be told.
func On(dir string) *Space {
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		return nil
	}
	spacesMu.Lock()
	defer spacesMu.Unlock()
	device := uint64(stat.Dev) //nolint:unconvert // it is signed on some systems
	if spaces[device] == nil {
		spaces[device] = New(func() (uint64, error) { return freeBytes(dir) })
	}
	return spaces[device]
}

// New is a space of which free tells the bytes that are left: for tests.
func New(free func() (uint64, error)) *Space { return &Space{free: free} }

// Check refuses a use of n bytes when it would leave less free than it must.
// What cannot be told is left to the write itself.
func (s *Space) Check(use Use, n int64) error {
	done, err := s.Reserve(use, n)
	if err == nil {
		done()
	}
	return err
}

// Reserve is Check, and keeps the bytes for the caller until done is called,
// when they are written or not needed.
func (s *Space) Reserve(use Use, n int64) (done func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	free, err := s.free()
	bytes := uint64(max(n, 0))
	if err == nil && free < uint64(use)+s.reserved+bytes {
		return nil, &domain.Error{Code: domain.ResourceExhausted, Reason: Full,
			Message: fmt.Sprintf("the disk is nearly full (%d MB free): nothing was done that takes room; delete what is not needed, or have the operator free some space or add a larger disk, and try again", free>>20)}
	}
	s.reserved += bytes
	return sync.OnceFunc(func() {
		s.mu.Lock()
		s.reserved -= bytes
		s.mu.Unlock()
	}), nil
}

// piece is how many bytes of a file are reserved at once.
const piece = 1 << 20

// Create makes a file that is written as long as its disk has room: its Write
// answers the fault of Check. Like os.Create, it empties a file that is there.
func Create(path string) (*File, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return Watch(file), nil
}

// Watch makes an open file one that is written as long as its disk has room.
func Watch(file *os.File) *File { return On(file.Name()).Watch(file) }

// Watch makes an open file one that is written as long as the space has room.
func (s *Space) Watch(file *os.File) *File { return &File{File: file, space: s} }

// A File asks for room before it writes.
type File struct {
	*os.File
	space *Space
}

// Write implements io.Writer.
func (f *File) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		n := min(len(p), piece)
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

// ReadFrom hides that of os.File, which would write past Write.
func (f *File) ReadFrom(r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{f}, r, make([]byte, 128<<10))
}

// freeBytes is what a process without privileges may still write.
func freeBytes(dir string) (uint64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, err
	}
	return uint64(stat.Bavail) * uint64(stat.Bsize), nil //nolint:unconvert // both are signed on some systems
}
