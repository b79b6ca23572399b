package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Fdatasync writes a file's content to disk, with its size but not its times. A concurrent Close
// waits for it; after Close it returns an error.
func Fdatasync(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var synced error
	err = conn.Control(func(fd uintptr) { synced = unix.Fdatasync(int(fd)) })
	return errors.Join(err, synced)
}
