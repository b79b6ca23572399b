package disk

import (
	"os"

	"golang.org/x/sys/unix"
)

// Fdatasync syncs a file's content and the metadata needed to read it (size, not times).
func Fdatasync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }
