//go:build !linux

package disk

// Spread does nothing, because this platform has no such directory attribute.
func Spread(string) {}
