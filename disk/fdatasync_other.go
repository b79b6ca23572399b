//go:build !linux

package disk

import "os"

// Fdatasync writes a file's content to disk, with all that is known about it.
func Fdatasync(f *os.File) error { return f.Sync() }
