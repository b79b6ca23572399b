package datadir

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"anneal/disk"
)

// LockFile waits until no other process holds the lock of a file, and takes it. The lock is a file
// beside it, which remains.
func LockFile(path string) (release func(), err error) {
	file, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() { _ = file.Close() }, nil // closing the file ends the lock
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
