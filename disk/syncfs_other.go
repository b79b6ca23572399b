//go:build !linux

package disk

// SyncAll makes everything below dir durable.
func SyncAll(dir string) error { return SyncTree(dir) }
