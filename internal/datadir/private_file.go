package datadir

import (
	"errors"
	"os"
	"path/filepath"

	"anneal/disk"
)

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
