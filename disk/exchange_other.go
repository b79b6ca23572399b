//go:build !linux

package disk

// Exchange would swap the names of two folders at once.
func Exchange(string, string) (done bool, err error) { return false, nil }
