//go:build !linux

package disk

// Exchange returns false because this platform cannot swap two names atomically.
func Exchange(string, string) (done bool, err error) { return false, nil }
