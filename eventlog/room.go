package eventlog

import (
	"golang.org/x/sys/unix"

	"anneal/domain"
)

// spareRoom is how many bytes the log leaves free on the disk of the embedded
// server. A stream that has once met a full disk takes nothing more until its
// server is started again; so an append is refused before, and accepted again
// as soon as there is room.
const spareRoom = 16 << 20

// A room is the file system that a log lies on.
type room struct {
	dir  string
	free func(dir string) (bytes uint64, err error)
}

func newRoom(dir string) *room { return &room{dir, freeBytes} }

// check refuses an append that could fill the disk. A nil room is a cluster's:
// its servers look after their own disks.
func (r *room) check() error {
	if r == nil {
		return nil
	}
	free, err := r.free(r.dir)
	if err != nil || free >= spareRoom {
		return nil // what cannot be told is left to the write itself
	}
	return &domain.Fault{Code: domain.Unavailable, Reason: "DISK_FULL",
		Message: "the server's disk is full: nothing was recorded; free some space on it, or give it a larger disk, and try again"}
}

// freeBytes is what a process without privileges may still write.
func freeBytes(dir string) (uint64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, err
	}
	return stat.Bavail * uint64(stat.Bsize), nil
}
