package disk

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Exchange swaps the names of two directories atomically. done is false, without an error, when the
// file system does not support the swap or one of the directories does not exist.
func Exchange(a, b string) (done bool, err error) {
	err = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) ||
		errors.Is(err, unix.ENOTSUP) {
		return false, nil
	}
	return err == nil, err
}
