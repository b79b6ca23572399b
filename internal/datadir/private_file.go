package datadir

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"anneal/disk"
)

// LockFile waits until no other process holds the lock of a file, and takes it. The lock is a file
// beside it, which remains. The holder may delete it last.
func LockFile(path string) (release func(), err error) {
	path += ".lock"
	for {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
			return nil, errors.Join(err, file.Close())
		}
		if isCurrent(file, path) {
			return func() { _ = file.Close() }, nil // closing the file ends the lock
		}
		_ = file.Close() // the former holder has deleted the file, so others lock a new one
	}
}

// isCurrent reports whether a file that is open is still the one at path.
func isCurrent(file *os.File, path string) bool {
	opened, err := file.Stat()
	if err != nil {
		return false
	}
	present, err := os.Stat(path)
	return err == nil && os.SameFile(opened, present)
}

// WritePrivate replaces the content of a file, completely or not at all, and syncs the file and its
// directory to disk. Only the owner can read the file (mode 0600).
func WritePrivate(path string, data []byte) error {
	temp := path + ".new"
	file, err := os.OpenFile(temp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return err
	}
	return disk.Sync(filepath.Dir(path))
}
