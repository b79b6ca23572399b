package disk

import (
	"os"

	"golang.org/x/sys/unix"
)

// Fdatasync writes a file's content to disk, with its size but not its times.
func Fdatasync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }
