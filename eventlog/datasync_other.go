//go:build !linux

package eventlog

import "os"

// dataSync writes a file's content to disk, with all that is known about it.
func dataSync(f *os.File) error { return f.Sync() }
