package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"anneal/domain"
)

// WriteFile atomically and durably replaces the file at path by a new file with the given content
// and mode 0600.
func WriteFile(path string, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return domain.Errorf(domain.FailedPrecondition, "cannot write %s: %v", path, err)
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return domain.Errorf(domain.FailedPrecondition, "cannot write %s: %v", path, err)
	}
	return Sync(filepath.Dir(path))
}

// SyncTree calls fsync for dir and for every file and directory below it.
func SyncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && (entry.IsDir() || entry.Type().IsRegular()) {
			err = Sync(path)
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil // removed or replaced while SyncTree walked the directories
		}
		return err
	})
}

func Sync(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}
