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

// A fileStore stores files in a directory. Writes are atomic and durable: content is written to the
// staging directory, synced, then renamed. The Go CDK driver for directories lists the files. A
// record describes the content of each file: see digests.
type fileStore struct {
	dir    string
	space  *disk.Space
	strict bool   // marker was missing or damaged: see marker
	step   func() // for tests: called between the effects of a change

	mu      sync.Mutex
	earlier map[string]int64  // lengths of files that may have no record: see marker
	damage  map[string]damage // by key
}

// staging is the directory of unfinished files. Its name cannot be a key, because keys do not begin
// with a dot. The name must not change: the next start looks there for files that a crash left.
const staging = ".arriving"

// staleAfter is the age from which a file in staging counts as left by a crash and is removed.
const staleAfter = 48 * time.Hour

func openFileStore(dir string, now time.Time) (*fileStore, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, staging), 0o700); err != nil {
		return nil, err
	}
	unfinished, err := os.ReadDir(filepath.Join(dir, staging))
	if err != nil {
		return nil, err
	}
	for _, entry := range unfinished {
		if info, err := entry.Info(); err == nil && now.Sub(info.ModTime()) > staleAfter {
			_ = os.Remove(filepath.Join(dir, staging, entry.Name())) // the next start retries
		}
	}
	f := &fileStore{dir: dir, space: disk.On(dir), damage: map[string]damage{}, step: func() {}}
	return f, f.openDigests()
}

// put writes the content of r to a temporary file and calls commit to give it the name of key.
func (f *fileStore) put(ctx context.Context, key string, r io.Reader,
	commit func(key string, contents []digest, place func() error) error) (n int64, err error) {
	temp, err := os.CreateTemp(filepath.Join(f.dir, staging), "*")
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
	return d.length, commit(key, []digest{d}, func() error { return f.place(temp.Name(), f.path(key)) })
}

// place renames the finished file temp to target, durably. It retries, because other calls may
// concurrently remove the directory of target while it is empty.
func (f *fileStore) place(temp, target string) (err error) {
	for range maxRetries {
		err = os.MkdirAll(filepath.Dir(target), 0o700)
		if errors.Is(err, os.ErrExist) { // the directory existed, and was removed concurrently
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

// delete removes a file, and the directories that it leaves empty.
func (f *fileStore) delete(key string) error {
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
	f.removeRecord(key)
	f.step()
	for dir := filepath.Dir(path); len(dir) > len(f.dir); dir = filepath.Dir(dir) {
		if os.Remove(dir) != nil {
			return nil // the directory is not empty, or was removed concurrently
		}
	}
	return nil
}

// syncUp makes durable the names in dir and in the directories above it, up to the directory of the
// store.
func (f *fileStore) syncUp(dir string) error {
	for ; strings.HasPrefix(dir, f.dir); dir = filepath.Dir(dir) {
		if err := syncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// maxRetries limits the retries of a change that fails because of concurrent changes in the same
// directory.
const maxRetries = 1000

func (f *fileStore) removeAll(prefix string) (err error) {
	files, err := f.list(prefix)
	if err != nil {
		return err
	}
	for range maxRetries {
		if err = os.RemoveAll(f.path(prefix)); !errors.Is(err, syscall.ENOTEMPTY) {
			break
		}
	}
	for key := range files {
		if unlock, err := f.lock(key); err == nil {
			f.removeRecord(key)
			unlock()
		}
	}
	return err
}

// A reader reads from Reader until its context is done, and then returns the context's error.
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
