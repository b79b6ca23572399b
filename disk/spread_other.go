//go:build !linux

package disk

// Spread does nothing on this system.
func Spread(string) {}
