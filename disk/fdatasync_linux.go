package disk

import (
	"os"

	"golang.org/x/sys/unix"
)

// dataSync writes a file's content to disk, and of what is known about the
// file what is needed to read the content: its size, not its times.
func Fdatasync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }
