package sandbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// MoveFiles puts the files that a program wrote into a folder of ours that is not there yet: those below
// dir, a path below the program's folder written. No link of the program's leads anywhere else, and
// anything but files and folders is refused. They are the same files, not copies, where both folders
// lie on one file system: the program may still change what they hold, and nothing else.
func MoveFiles(written, dir, to string) (err error) {
	root, err := os.OpenRoot(written)
	if err != nil {
		return err
	}
	defer root.Close()
	from, err := root.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(to))
		}
	}()
	return fs.WalkDir(from.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || path == ".":
			return err
		case entry.IsDir():
			return os.Mkdir(filepath.Join(to, path), 0o700)
		case !entry.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a folder", path)
		}
		return takeFile(from, path, filepath.Join(to, path))
	})
}

// takeFile links or copies one file. What was a file when it was listed may be something else by now.
func takeFile(from *os.Root, path, to string) error {
	file, err := from.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is neither a file nor a folder", path)
	}
	if linkOpen(file, to) == nil {
		return nil
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, file)
	return errors.Join(err, out.Close())
}
