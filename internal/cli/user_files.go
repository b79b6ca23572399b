package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

// requireNew returns an error if path exists. A command that never overwrites files calls it before
// its work.
func requireNew(c *cobra.Command, path, hint string) error {
	switch _, err := os.Lstat(path); {
	case err == nil:
		return existsError(c, path, hint)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return nil
}

const notOverwritten = "choose another name, or delete it first: nothing is overwritten"

func existsError(c *cobra.Command, path, hint string) error {
	text := path
	if source := sourceOf(c, path); source != "" {
		text = source + " " + path
	}
	return withHint(fmt.Errorf("%s already exists", text), hint)
}

// createNew creates a file that only the user can read. It returns an error if path exists.
func createNew(c *cobra.Command, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, existsError(c, path, notOverwritten)
	}
	return f, err
}

// storeSecret writes the result of create to a new file that only the user can read. It creates the
// file before it calls create, because a secret that cannot be stored would be lost, and removes
// the file after an error.
func storeSecret(c *cobra.Command, path string, create func() ([]byte, error)) error {
	f, err := createNew(c, path)
	if err != nil {
		return err
	}
	data, err := create()
	if err == nil {
		_, err = f.Write(data)
	}
	if closed := errors.Join(f.Sync(), f.Close()); err == nil {
		err = closed
	}
	if err != nil {
		_ = os.Remove(path) // ignore the error: the one of the write is returned
	}
	return err
}

// publish renames a complete file or directory, part, to target, which must not exist. It never
// overwrites a target that another program creates at the same time. For a file, it first creates
// the target as an empty file, which fails if the target exists. For a directory, the rename itself
// fails if the target is a file or a directory with files.
func publish(c *cobra.Command, part, target string) error {
	info, err := os.Lstat(part)
	if err == nil && !info.IsDir() {
		var claim *os.File
		if claim, err = createNew(c, target); err != nil {
			return err
		}
		if err = errors.Join(claim.Close(), os.Rename(part, target)); err != nil {
			return errors.Join(err, os.Remove(target))
		}
		return nil
	}
	if err == nil {
		err = os.Rename(part, target)
	}
	if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.ENOTDIR) {
		return existsError(c, target, notOverwritten)
	}
	return err
}

// replaceFile replaces the content of a file, completely or not at all.
func replaceFile(path string, data []byte) error {
	work, err := os.MkdirTemp(filepath.Dir(path), ".anneal-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	part := filepath.Join(work, "part")
	if err := os.WriteFile(part, data, 0o644); err != nil {
		return err
	}
	return os.Rename(part, path)
}
