package disk

import (
	"errors"
	"os"
	"syscall"
)

// WriteNew creates the file at path, which must not exist, and writes data to it, without syncing
// it. It costs three system calls, because the file is not added to the poller of the runtime as
// those of os.OpenFile are.
func WriteNew(path string, data []byte) error {
	fd, err := retry(func() (int, error) {
		return syscall.Open(path, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	for err == nil && len(data) > 0 {
		var n int
		n, err = retry(func() (int, error) { return syscall.Write(fd, data) })
		data = data[max(n, 0):]
	}
	if err = errors.Join(err, syscall.Close(fd)); err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// Rename is os.Rename without its check whether newPath is a directory, which the kernel makes too.
func Rename(oldPath, newPath string) error {
	if _, err := retry(func() (int, error) { return 0, syscall.Rename(oldPath, newPath) }); err != nil {
		return &os.LinkError{Op: "rename", Old: oldPath, New: newPath, Err: err}
	}
	return nil
}

// retry repeats a system call while a signal interrupts it.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}
