package disk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// SyncAll makes all files and directories below dir durable, with one syncfs call for the whole
// file system.
func SyncAll(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Syncfs(int(file.Fd())), file.Close()); err != nil {
		return fmt.Errorf("sync the file system of %s: %w", dir, err)
	}
	return nil
}
