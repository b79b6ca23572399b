package blobs

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"anneal/disk"
)

// A fileStore stores the files of a bucket in a directory. Writes are atomic and durable: content
// is written to a file in the staging directory, synced, and then renamed. Small files are synced
// together: see journal. A record describes the content of each file: see digests.
type fileStore struct {
	dir    string
	space  *disk.Space
	strict bool   // the file marker was missing or damaged, so no file may be without a record
	step   func() // called between the system calls of a change, so that tests can inject crashes
	syncer disk.Syncer

	stagingPrefix string        // prefix, unique to this process, of the names of small files in the staging directory
	staged        atomic.Uint64 // number of small files that were written to the staging directory

	syncDir func(path string) error // syncs a directory after a removal: syncer.SyncDir, except in tests

	journal *journal // nil if another process uses the journal of the directory
	// bundling reports whether files may be stored in bundles; nil means that they may
	bundling func() bool
	locks    [keyLocks]keyLock

	mu      sync.Mutex
	earlier map[string]int64  // lengths of the files that may have no record, by key: see marker
	damage  map[string]damage // files that were found damaged, by key
}

// staging is the directory of files that are being written. Its name cannot be a key, because keys
// do not begin with a dot. The name must not change, because the next start removes files there
// that a crash has left.
const staging = ".arriving"

// staleAfter is the age from which a file in staging is assumed to be left by a crash, and removed.
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
			_ = os.Remove(filepath.Join(dir, staging, entry.Name())) // if this fails, the next start removes the file
		}
	}
	f := &fileStore{dir: dir, space: disk.On(dir), damage: map[string]damage{}, step: func() {},
		stagingPrefix: rand.Text() + "-"}
	f.syncDir = f.syncer.SyncDir
	if err := f.openDigests(); err != nil {
		return nil, err
	}
	f.journal, err = openJournal(filepath.Join(dir, digests), func() error { return disk.SyncAll(dir) }, log)
	if err == nil && f.journal != nil {
		f.space = nil // recover may use the free space that other writes must leave, so that a start on a full disk succeeds
		if err = (journaled{f}).recover(log); err != nil {
			f.journal.close()
		}
		f.space = disk.On(dir)
	}
	return f, err
}

// put writes the content of r to a file in staging, and calls commit to rename it to the file under
// key.
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

// place durably renames the file temp, whose content is complete, to target.
func (f *fileStore) place(temp, target string) error {
	if err := move(temp, target); err != nil {
		return err
	}
	return f.syncer.SyncUp(filepath.Dir(target), f.dir)
}

// move renames the file temp to target, and creates the directory of target if needed. It retries,
// because other calls may concurrently remove the directory while it is empty.
func move(temp, target string) (err error) {
	for range maxRetries {
		err = disk.Rename(temp, target)
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		err = os.MkdirAll(filepath.Dir(target), 0o700)
		if err != nil && !errors.Is(err, os.ErrExist) && !errors.Is(err, os.ErrNotExist) {
			return err // for the other errors, retry: a directory was removed concurrently
		}
	}
	return err
}

// delete removes the file under key, and the directories that become empty.
func (f *fileStore) delete(key string) error {
	unlock, err := f.lock(lockNames(key)...)
	if err != nil {
		return err
	}
	defer unlock()
	if err := bundlesOf(f).removeFile(key); err != nil {
		return err
	}
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

// deleteAll is like delete for several files that are not in bundles. It syncs each directory once.
func (f journaled) deleteAll(keys []string) error {
	unlock, err := f.lock(keys...)
	if err != nil {
		return err
	}
	defer unlock()
	parents := map[string]bool{}
	for _, key := range keys {
		if removed := os.Remove(f.path(key)); removed != nil && !errors.Is(removed, os.ErrNotExist) {
			err = errors.Join(err, removed)
			continue
		}
		f.step()
		f.removeRecord(key)
		parents[filepath.Dir(f.path(key))] = true
	}
	for dir := range parents {
		err = errors.Join(err, f.syncRemoved(filepath.Join(dir, "removed")))
	}
	if err != nil {
		return err
	}
	f.step()
	if err := f.journal.supersede(keys...); err != nil {
		return err
	}
	for dir := range parents {
		for ; len(dir) > len(f.dir) && os.Remove(dir) == nil; dir = filepath.Dir(dir) {
		}
	}
	return nil
}

// maxRetries is the maximum number of retries of a change that fails because of concurrent changes
// in the same directory.
const maxRetries = 1000

func (f *fileStore) removeAll(prefix string) (err error) {
	files, err := f.lengths(prefix)
	if err != nil {
		return err
	}
	bundled, err := bundlesOf(f).list(prefix)
	if err != nil {
		return err
	}
	for _, file := range bundled {
		if err := f.delete(file.Key); err != nil {
			return err
		}
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

// syncRemoved makes the removal of a path durable. Otherwise a power failure could bring back the
// old content. recover would then assume that another process had stored it, and would not restore
// a later content from the journal.
func (f *fileStore) syncRemoved(path string) error {
	for {
		path = filepath.Dir(path)
		err := f.syncDir(path)
		if !errors.Is(err, os.ErrNotExist) || len(path) <= len(f.dir) {
			return err
		}
	}
}

// forgetRemoved removes the record of a removed file and supersedes its entries in the journal,
// unless the removal has failed, or the file is stored again.
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

// A reader reads from Reader until its context is done; its Read then returns the error of the
// context.
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
