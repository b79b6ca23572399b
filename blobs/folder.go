package blobs

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"anneal/disk"
)

// A folder writes files so that they are whole or absent, also after a power
// failure: what arrives is synced in a place of its own, then renamed.
// Listing and signing need no such care and are the driver's.
// What was stored is described by a digest of its own: see digests.
type folder struct {
	dir    string
	space  *disk.Space
	strict bool   // the list of earlier files was lost
	step   func() // for tests: called between the effects of a change

	mu      sync.Mutex
	earlier map[string]int64  // lengths of files that may have no record: see marker
	damage  map[string]damage // by key
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
	f := &folder{dir: dir, space: disk.On(dir), damage: map[string]damage{}, step: func() {}}
	return f, f.openDigests()
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
	d, err := copyHashed(f.space.Watch(temp), reader{ctx, r})
	if err == nil {
		err = temp.Sync()
	}
	if err := errors.Join(err, temp.Close()); err != nil {
		return d.length, err
	}
	return d.length, f.commit(key, []digest{d}, func() error { return f.place(temp.Name(), f.path(key)) })
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
	unlock, err := f.lock(key)
	if err != nil {
		return err
	}
	defer unlock()
	path := f.path(key)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f.step()
	f.forget(key)
	f.step()
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
		if err := syncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// removals is how often a folder is emptied into which somebody writes.
const removals = 1000

func (f *folder) remove(folder string) (err error) {
	files, err := f.below(folder)
	if err != nil {
		return err
	}
	for range removals {
		if err = os.RemoveAll(f.path(folder)); !errors.Is(err, syscall.ENOTEMPTY) {
			break
		}
	}
	for key := range files {
		if unlock, err := f.lock(key); err == nil {
			f.forget(key)
			unlock()
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
