//go:build !linux

package disk

// identify returns false, because this platform does not report when a directory was created.
func identify(string) (id identity, ok bool) { return identity{}, false }
