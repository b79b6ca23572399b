package blobs

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"anneal/disk"
)

// A folder writes files so that they are whole or absent, also after a power
// failure: what arrives is synced in a place of its own, then renamed.
// Reading, listing and signing need no such care and are the driver's.
type folder struct {
	dir   string
	space *disk.Space
}

// arriving holds unfinished files; no key begins with a dot.
const arriving = ".arriving"

// staleAfter is when an unfinished file belongs to nobody any more.
const staleAfter = 48 * time.Hour

func openFolder(dir string, now time.Time) (*folder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, arriving), 0o700); err != nil {
		return nil, err
	}
	unfinished, err := os.ReadDir(filepath.Join(dir, arriving))
	if err != nil {
		return nil, err
	}
	for _, entry := range unfinished {
		if info, err := entry.Info(); err == nil && now.Sub(info.ModTime()) > staleAfter {
			_ = os.Remove(filepath.Join(dir, arriving, entry.Name())) // it is tried again at the next start
		}
	}
	return &folder{dir, disk.On(dir)}, nil
}

func (f *folder) put(ctx context.Context, key string, r io.Reader) (n int64, err error) {
	temp, err := os.CreateTemp(filepath.Join(f.dir, arriving), "*")
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temp.Name()))
		}
	}()
	n, err = io.Copy(f.space.Watch(temp), reader{ctx, r})
	if err == nil {
		err = temp.Sync()
	}
	if err := errors.Join(err, temp.Close()); err != nil {
		return n, err
	}
	return n, f.place(temp.Name(), filepath.Join(f.dir, filepath.FromSlash(key)))
}

// place gives a finished file its name, durably. Empty folders may be removed
// at the same time, so it makes them until the file has its place.
func (f *folder) place(temp, target string) (err error) {
	for range removals {
		err = os.MkdirAll(filepath.Dir(target), 0o700)
		if errors.Is(err, os.ErrExist) { // it was there, and then was not
			continue
		}
		if err == nil {
			err = os.Rename(temp, target)
		}
		if !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return err
	}
	return f.syncUp(filepath.Dir(target))
}

// delete removes a file, and the folders that it leaves empty.
func (f *folder) delete(key string) error {
	path := filepath.Join(f.dir, filepath.FromSlash(key))
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for dir := filepath.Dir(path); len(dir) > len(f.dir); dir = filepath.Dir(dir) {
		if os.Remove(dir) != nil {
			return nil // it is not empty, or somebody else removed it
		}
	}
	return nil
}

// syncUp makes the names of a file and of the folders above it durable.
func (f *folder) syncUp(dir string) error {
	for ; strings.HasPrefix(dir, f.dir); dir = filepath.Dir(dir) {
		d, err := os.Open(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			return err
		}
	}
	return nil
}

// removals is how often a folder is emptied into which somebody writes.
const removals = 1000

func (f *folder) remove(folder string) (err error) {
	for range removals {
		if err = os.RemoveAll(filepath.Join(f.dir, filepath.FromSlash(folder))); !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
	}
	return err
}

// A reader stops when its context is done.
type reader struct {
	ctx context.Context
	io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}
