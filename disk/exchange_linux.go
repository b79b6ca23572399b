package disk

import (
	"errors"

	"golang.org/x/sys/unix"
)

// exchange swaps the names of two folders at once. done is false where the file
// system cannot, or one of them is missing.
func Exchange(a, b string) (done bool, err error) {
	err = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENOTSUP) {
		return false, nil
	}
	return err == nil, err
}
