//go:build !linux

package disk

import "os"

// Fdatasync writes a file's content and metadata to disk.
func Fdatasync(f *os.File) error { return f.Sync() }
