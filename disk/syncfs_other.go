//go:build !linux

package disk

// SyncAll makes all files and directories below dir durable.
func SyncAll(dir string) error { return SyncTree(dir) }
