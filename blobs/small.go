package blobs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"anneal/disk"
)

// journaled are the changes of a fileStore that its journal makes durable.
type journaled struct{ *fileStore }

// store stores the content of r under key, durably: through the journal if the content is small.
func (f journaled) store(ctx context.Context, key string, r io.Reader) (int64, error) {
	if !f.journal.available() {
		return f.put(ctx, key, r, f.commit)
	}
	head, err := io.ReadAll(io.LimitReader(reader{ctx, r}, maxSmall+1))
	if err != nil {
		return int64(len(head)), err
	}
	if len(head) <= maxSmall {
		err := f.putSmall(key, head)
		if !errors.Is(err, errNoJournal) {
			return int64(len(head)), err
		}
	}
	return f.put(ctx, key, io.MultiReader(bytes.NewReader(head), r), f.commit)
}

// smallDigest returns the digest of a content of at most one block.
func smallDigest(content []byte) digest {
	d := digest{length: int64(len(content)), sha256: sha256.Sum256(content)}
	if len(content) > 0 {
		d.blocks = append(d.blocks, checksum(content))
	}
	return d
}

// putSmall stores a small file through the journal. It writes the record and the file in the same order
// as commit, so that a process that is killed leaves no damaged file, and syncs neither of them. The
// error is errNoJournal when the journal accepts no entry; nothing has then changed.
func (f journaled) putSmall(key string, content []byte) error {
	const overhead = 2 << 10 // bytes of the record, and of the entry without the content
	done, err := f.space.Reserve(disk.Files, int64(2*len(content)+overhead))
	if err != nil {
		return err
	}
	defer done()
	unlock, err := f.lock(key)
	if err != nil {
		return err
	}
	defer unlock()
	arrive := f.journal.announce()
	defer arrive()
	before, err := f.currentDigests(key)
	if err != nil {
		return err
	}
	if len(appendDigests(nil, before)) > maxSmall { // the digests of a large file
		return errNoJournal
	}
	temp, err := f.stage(content)
	if err != nil {
		return err
	}
	applied, err := f.journal.append(entry{key: key, before: before, content: content}, arrive)
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	defer applied()
	f.step()
	after := []digest{smallDigest(content)}
	err = f.replaceRecord(key, before, after)
	if err == nil {
		f.step()
		err = move(temp, f.path(key))
	}
	if err != nil {
		f.removeRecord(key)
		applied() // before supersede, which waits for a close, which waits for applied
		return errors.Join(err, os.Remove(temp), f.journal.supersede(key))
	}
	f.step()
	f.clearState(key)
	if len(before) > 0 {
		_ = f.replaceRecord(key, nil, after) // after a failure the record with old and new digests stays, which is valid
	}
	return nil
}

// stage writes content to a new file in the staging directory and returns its path.
func (f journaled) stage(content []byte) (path string, err error) {
	temp, err := os.CreateTemp(filepath.Join(f.dir, staging), "*")
	if err != nil {
		return "", err
	}
	_, err = temp.Write(content)
	if err = errors.Join(err, temp.Close()); err != nil {
		return "", errors.Join(err, os.Remove(temp.Name()))
	}
	return temp.Name(), nil
}

// replaceRecord does the same as writeRecord, but syncs nothing. The caller holds the lock of the key.
func (f journaled) replaceRecord(key string, before, after []digest) error {
	path, text := f.recordPath(key), recordOf(key, slices.Concat(before, after))
	if len(before) == 0 {
		// Nobody reads the record of a file that does not exist yet, so it may be written in place. A file
		// of an earlier version exists without a record.
		file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = file.Write(text)
			return errors.Join(err, file.Close())
		}
		if !errors.Is(err, os.ErrExist) {
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

// isNameConflict reports whether a file cannot have a name because of other files.
func isNameConflict(err error) bool {
	return errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR) || errors.Is(err, os.ErrExist)
}

// validDigest returns the digest of a file; valid is false when there is no such file, or it has no
// record, or differs from its record.
func (f journaled) validDigest(key string) (d digest, valid bool) {
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
