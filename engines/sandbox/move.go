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

// MoveFiles moves files of a program to target, a new directory to which the program has no access.
// The files are in dir, a path relative to writable, the directory that the program may write.
// MoveFiles returns an error for links and devices. On the same file system, it links files instead
// of copying them; a program that still has a file open can then change its content, but nothing
// else.
func MoveFiles(writable, dir, target string) (err error) {
	root, err := os.OpenRoot(writable)
	if err != nil {
		return err
	}
	defer root.Close()
	from, err := root.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := os.Mkdir(target, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(target))
		}
	}()
	return fs.WalkDir(from.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || path == ".":
			return err
		case entry.IsDir():
			return os.Mkdir(filepath.Join(target, path), 0o700)
		case !entry.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a directory", path)
		}
		return moveFile(from, path, filepath.Join(target, path))
	})
}

// moveFile links or copies a file. It checks the file's type again, because the program may have
// replaced the file since it was listed.
func moveFile(from *os.Root, path, to string) error {
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
		return fmt.Errorf("%s is neither a file nor a directory", path)
	}
	if linkFile(file, to) == nil {
		return nil
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, file)
	return errors.Join(err, out.Close())
}
