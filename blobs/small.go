package blobs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"anneal/disk"
)

// journaled is a fileStore with the methods that make changes durable through its journal.
type journaled struct{ *fileStore }

// store durably stores the content of r under key: through the journal if the content is small.
func (f journaled) store(ctx context.Context, key string, r io.Reader) (int64, error) {
	if !f.journal.available() {
		return f.put(ctx, key, r, f.commit)
	}
	head, err := io.ReadAll(io.LimitReader(reader{ctx, r}, maxSmall+1))
	if err != nil {
		return int64(len(head)), err
	}
	if len(head) <= maxSmall {
		err := f.putSmall(smallFile{key: key, content: head})
		if !errors.Is(err, errNoJournal) {
			return int64(len(head)), err
		}
	}
	return f.put(ctx, key, io.MultiReader(bytes.NewReader(head), r), f.commit)
}

// create durably stores content under a key that does not exist: through the journal if the content
// is small. If the key exists, it changes nothing and returns AlreadyExists.
func (f journaled) create(ctx context.Context, key string, content []byte) error {
	if len(content) <= maxSmall && f.journal.available() {
		if err := f.putSmall(smallFile{key: key, content: content, isNew: true}); !errors.Is(err, errNoJournal) {
			return err
		}
	}
	_, err := f.put(ctx, key, bytes.NewReader(content), f.commitNew)
	return err
}

// storeAll durably stores several contents, by key, with one sync if all of them are small.
func (f journaled) storeAll(ctx context.Context, contents map[string][]byte) error {
	var files []smallFile
	small := f.journal.available()
	for _, key := range slices.Sorted(maps.Keys(contents)) {
		files = append(files, smallFile{key: key, content: contents[key]})
		small = small && len(contents[key]) <= maxSmall
	}
	if small && len(files) > 1 {
		if stored, err := bundlesOf(f.fileStore).store(files); stored {
			return err
		}
	}
	if small {
		if err := f.putSmall(files...); !errors.Is(err, errNoJournal) {
			return err
		}
	}
	for _, file := range files {
		if _, err := f.store(ctx, file.key, bytes.NewReader(file.content)); err != nil {
			return err
		}
	}
	return nil
}

// smallDigest returns the digest of a content of at most one block.
func smallDigest(content []byte) digest {
	d := digest{length: int64(len(content)), sha256: sha256.Sum256(content)}
	if len(content) > 0 {
		d.blocks = append(d.blocks, checksum(content))
	}
	return d
}

// A smallFile is a small file whose new content is stored through the journal.
type smallFile struct {
	key     string
	content []byte
	isNew   bool     // the file must not exist
	before  []digest // possible digests of the present content
	temp    string   // path of the content in the staging directory
}

// putSmall stores small files through the journal, with an entry of the journal for each file and
// one sync for all. It writes the records and the files in the same order as commit, so that no
// file is damaged if the process is killed, and syncs none of them. The error is errNoJournal when
// the journal accepts no entries; then nothing has changed. After another error, some of the files
// may be stored.
func (f journaled) putSmall(files ...smallFile) error {
	const overhead = 2 << 10 // maximum bytes of a file's digests and journal entry together, without its content
	size, keys := 0, make([]string, len(files))
	for i, file := range files {
		size, keys[i] = size+2*len(file.content)+overhead, file.key
	}
	done, err := f.space.Reserve(disk.Files, int64(size))
	if err != nil {
		return err
	}
	defer done()
	unlock, err := f.lock(keys...)
	if err != nil {
		return err
	}
	defer unlock()
	arrive := f.journal.announce()
	defer arrive()
	files, err = f.stageAll(files)
	if err != nil {
		return err
	}
	entries := make([]entry, len(files))
	for i, file := range files {
		entries[i] = entry{key: file.key, before: file.before, content: file.content}
	}
	applied, err := f.journal.append(arrive, entries...)
	if err != nil {
		return errors.Join(err, unstage(files))
	}
	defer applied()
	var failed []string
	for _, file := range files {
		if placed := f.placeSmall(file); placed != nil {
			err, failed = errors.Join(err, placed), append(failed, file.key)
		}
	}
	applied() // before supersede: that may wait for journal.close, which waits for applied
	return errors.Join(err, f.journal.supersede(failed...))
}

// stageAll writes the new contents of files to the staging directory. It returns copies of files
// with temp set, and with the digests of the present contents in before. After an error, it leaves
// no file in the staging directory. The caller holds the locks of the keys.
func (f journaled) stageAll(files []smallFile) ([]smallFile, error) {
	staged := make([]smallFile, 0, len(files))
	for _, file := range files {
		if _, err := os.Lstat(f.path(file.key)); file.isNew && !errors.Is(err, os.ErrNotExist) {
			return nil, errors.Join(cmp.Or(err, alreadyExists(file.key)), unstage(staged))
		}
		before, err := f.currentDigests(file.key)
		if err == nil && len(appendDigests(nil, before)) > maxSmall { // the present content has too many block checksums
			err = errNoJournal
		}
		if err == nil {
			file.before = before
			file.temp, err = f.stage(file.content)
		}
		if err != nil {
			return nil, errors.Join(err, unstage(staged))
		}
		staged = append(staged, file)
	}
	return staged, nil
}

func unstage(files []smallFile) (err error) {
	for _, file := range files {
		err = errors.Join(err, os.Remove(file.temp))
	}
	return err
}

// placeSmall renames the record and the content of a file into place. The journal must have the
// entry of the file, and the caller holds the lock of its key.
func (f journaled) placeSmall(file smallFile) error {
	f.step()
	after := []digest{smallDigest(file.content)}
	err := f.replaceRecord(file.key, file.before, after)
	if err == nil {
		f.step()
		err = move(file.temp, f.path(file.key))
	}
	if err != nil {
		f.removeRecord(file.key)
		return errors.Join(err, os.Remove(file.temp))
	}
	f.step()
	f.clearState(file.key)
	if len(file.before) > 0 {
		// If this fails, the record keeps the old and the new digests, which is valid too.
		_ = f.replaceRecord(file.key, nil, after)
	}
	return nil
}

// stage writes content to a new file in the staging directory and returns its path.
func (f journaled) stage(content []byte) (path string, err error) {
	path = filepath.Join(f.dir, staging, f.stagingPrefix+strconv.FormatUint(f.staged.Add(1), 10))
	if err := disk.WriteNew(path, content); err != nil {
		if removed := os.Remove(path); !errors.Is(removed, os.ErrNotExist) {
			err = errors.Join(err, removed)
		}
		return "", err
	}
	return path, nil
}

// replaceRecord is writeRecord without syncing. existing are the digests that the record has. The
// caller holds the lock of the key.
func (f journaled) replaceRecord(key string, existing, added []digest) error {
	path, text := f.recordPath(key), recordOf(key, slices.Concat(existing, added))
	if len(existing) == 0 {
		// Nobody reads the record of a file that does not exist yet, so it may be written in place. A
		// file of an earlier version exists without a record.
		if err := disk.WriteNew(path, text); !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	temp, err := f.stage(text)
	if err == nil {
		if err = os.Rename(temp, path); err != nil {
			err = errors.Join(err, os.Remove(temp))
		}
	}
	return err
}

// isNameConflict reports whether err says that a file cannot have its name because a file or
// directory with a conflicting name exists.
func isNameConflict(err error) bool {
	return errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR) || errors.Is(err, os.ErrExist)
}

// validDigest reads the file under key, or in its bundle, and returns its digest; valid is false
// when there is no such file, or it has no record, or it differs from its record.
func (f journaled) validDigest(key string) (d digest, valid bool) {
	if _, err := os.Lstat(f.path(key)); errors.Is(err, os.ErrNotExist) {
		b, err := bundlesOf(f.fileStore).read(bundleOf(key))
		content, ok := b.file(key)
		if err != nil || !ok || b.damaged { // recover removes a damaged bundle
			return d, false
		}
		return smallDigest(content), true
	}
	contents, err := f.record(key)
	if err != nil {
		return d, false
	}
	if d, err = digestOf(context.Background(), f.path(key)); err != nil {
		return d, false
	}
	return d, slices.ContainsFunc(contents, d.same)
}

// same reports whether two digests describe the same content.
func (d digest) same(other digest) bool { return d.length == other.length && d.sha256 == other.sha256 }
