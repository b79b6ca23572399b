package blobs

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"anneal/disk"
)

// A fileStore stores files in a directory. Writes are atomic and durable: content is written to the
// staging directory, synced, then renamed. Small files are synced together: see journal. The Go CDK
// driver for directories lists the files. A record describes the content of each file: see digests.
type fileStore struct {
	dir    string
	space  *disk.Space
	strict bool   // marker was missing or damaged: see marker
	step   func() // for tests: called between the effects of a change
	syncer disk.Syncer

	syncDir func(path string) error // syncer.SyncDir for removals; replaced by tests

	journal *journal // nil if another process uses it
	locks   [keyLocks]keyLock

	mu      sync.Mutex
	earlier map[string]int64  // lengths of files that may have no record: see marker
	damage  map[string]damage // by key
}

// staging is the directory of unfinished files. Its name cannot be a key, because keys do not begin
// with a dot. The name must not change: the next start looks there for files that a crash left.
const staging = ".arriving"

// staleAfter is the age from which a file in staging counts as left by a crash and is removed.
const staleAfter = 48 * time.Hour

func openFileStore(dir string, now time.Time, log *slog.Logger) (*fileStore, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	disk.Spread(dir)
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
	f.syncDir = f.syncer.SyncDir
	if err := f.openDigests(); err != nil {
		return nil, err
	}
	f.journal, err = openJournal(filepath.Join(dir, digests), func() error { return disk.SyncAll(dir) }, log)
	if err == nil && f.journal != nil {
		f.space = nil // recover may use the reserve, so that a start on a full disk succeeds
		if err = (journaled{f}).recover(log); err != nil {
			f.journal.close()
		}
		f.space = disk.On(dir)
	}
	return f, err
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

// place renames the finished file temp to target, durably.
func (f *fileStore) place(temp, target string) error {
	if err := move(temp, target); err != nil {
		return err
	}
	return f.syncer.SyncUp(filepath.Dir(target), f.dir)
}

// move renames the finished file temp to target, and creates the directory of target. It retries,
// because other calls may concurrently remove the directory while it is empty.
func move(temp, target string) (err error) {
	for range maxRetries {
		err = os.Rename(temp, target)
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		err = os.MkdirAll(filepath.Dir(target), 0o700)
		if err != nil && !errors.Is(err, os.ErrExist) && !errors.Is(err, os.ErrNotExist) {
			return err // otherwise a directory was removed concurrently
		}
	}
	return err
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
	if err := errors.Join(f.syncRemoved(path), f.journal.supersede(key)); err != nil {
		return err
	}
	for dir := filepath.Dir(path); len(dir) > len(f.dir); dir = filepath.Dir(dir) {
		if os.Remove(dir) != nil {
			return nil // the directory is not empty, or was removed concurrently
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
	f.step()
	for key := range files {
		err = errors.Join(err, journaled{f}.forgetRemoved(key))
	}
	return errors.Join(err, f.syncRemoved(f.path(prefix)))
}

// syncRemoved makes the removal of a path durable. Otherwise a power failure could bring the old content
// back in place of a later one, which recover would take for a change of another process.
func (f *fileStore) syncRemoved(path string) error {
	for {
		path = filepath.Dir(path)
		err := f.syncDir(path)
		if !errors.Is(err, os.ErrNotExist) || len(path) <= len(f.dir) {
			return err
		}
	}
}

// forgetRemoved removes the record of a file and voids its entries in the journal, unless the file could
// not be removed, or is stored again.
func (f journaled) forgetRemoved(key string) error {
	unlock, err := f.lock(key)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Lstat(f.path(key)); err == nil {
		return nil
	}
	f.removeRecord(key)
	return f.journal.supersede(key)
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
