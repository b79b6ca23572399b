package blobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// marker lists the files that were in the folder before there were digests, with
// their lengths. It is written before the first record. Files in it that have no
// record are read as they are, and get one in the background; any other file
// without a record is refused. A marker that is missing beside records, or is
// damaged, lists nothing.
const marker = "earlier"

const markerHead = "anneal files without digests 1"

// openDigests reads the marker, or makes one.
func (f *folder) openDigests() error {
	dir := filepath.Join(f.dir, digests)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(dir, marker))
	if err == nil {
		if f.earlier, err = parseMarker(data); err == nil {
			maps.DeleteFunc(f.earlier, func(key string, _ int64) bool {
				_, err := os.Stat(f.recordPath(key))
				return err == nil
			})
			return nil
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	} else if has, listErr := hasRecords(dir); listErr != nil {
		return listErr
	} else if !has {
		if f.earlier, err = f.below(""); err != nil {
			return err
		}
		if err := f.writeMarker(); err != nil {
			return err
		}
		return f.syncUp(dir)
	}
	f.earlier, f.strict = map[string]int64{}, true
	return f.writeMarker()
}

func parseMarker(data []byte) (map[string]int64, error) {
	text, ok := unseal(data)
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if !ok || lines[0] != markerHead {
		return nil, errBrokenRecord
	}
	files := map[string]int64{}
	for _, line := range lines[1:] {
		length, key, _ := strings.Cut(line, " ")
		n, err := strconv.ParseInt(length, 10, 64)
		if err != nil {
			return nil, errBrokenRecord
		}
		files[key] = n
	}
	return files, nil
}

func (f *folder) writeMarker() error {
	f.mu.Lock()
	text := []byte(markerHead + "\n")
	for _, key := range slices.Sorted(maps.Keys(f.earlier)) {
		text = fmt.Appendf(text, "%d %s\n", f.earlier[key], key)
	}
	f.mu.Unlock()
	return f.writeDigests(filepath.Join(f.dir, digests, marker), seal(text))
}

// hasRecords tells whether there is at least one record.
func hasRecords(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return isRecord(e.Name()) }), err
}

func isRecord(name string) bool { return len(name) == 64 }

// below are all files with keys below a folder, and their lengths.
func (f *folder) below(folder string) (map[string]int64, error) {
	files := map[string]int64{}
	err := filepath.WalkDir(f.path(folder), func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil // gone meanwhile
		}
		if err != nil || path == f.dir {
			return err
		}
		key, err := filepath.Rel(f.dir, path)
		if key = filepath.ToSlash(key); err != nil || checkKey(key) != nil {
			if entry.IsDir() {
				return filepath.SkipDir
			}
			return err
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		if info, err := entry.Info(); err == nil {
			files[key] = info.Size()
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	})
	return files, err
}

// isEarlier tells whether a file has no record because it is older than they are.
func (f *folder) isEarlier(key string, length int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, ok := f.earlier[key]
	return ok && n == length
}

// keeps notes that a file has a record, or is gone.
func (f *folder) keeps(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.earlier, key)
	delete(f.damage, key)
}

// adopt gives a file of an earlier version a record of what it holds now.
func (f *folder) adopt(ctx context.Context, key string) error {
	before, err := os.Stat(f.path(key))
	if errors.Is(err, os.ErrNotExist) {
		f.keeps(key)
		return nil
	}
	if err != nil {
		return err
	}
	d, err := digestOf(ctx, f.path(key))
	if err != nil {
		return err
	}
	unlock, err := f.lock(key)
	if err != nil {
		return err
	}
	defer unlock()
	now, err := os.Stat(f.path(key))
	if err != nil || !os.SameFile(before, now) || d.length != now.Size() || !f.isEarlier(key, now.Size()) {
		return nil // replaced or deleted meanwhile
	}
	if _, err := f.record(key); !errors.Is(err, errNoRecord) {
		return err
	}
	if err := f.writeRecord(key, []digest{d}); err != nil {
		return err
	}
	f.keeps(key)
	return nil
}

// tend does at the start what need not be waited for: it adopts the files of
// earlier versions, and removes the records of files that are not there.
func (f *folder) tend(ctx context.Context, log *slog.Logger) {
	if f.strict {
		log.Warn("the list of files without digests was missing or damaged: files without a digest are refused", "list", filepath.Join(f.dir, digests, marker))
	}
	f.sweep(ctx, log)
	f.mu.Lock()
	keys := slices.Sorted(maps.Keys(f.earlier))
	f.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	log.Info("files of an earlier version get digests: until then they are read unverified", "files", len(keys))
	failed := 0
	for _, key := range keys {
		if err := f.adopt(ctx, key); err != nil {
			if ctx.Err() != nil {
				return
			}
			failed++
			log.Warn("a file of an earlier version has no digest yet: the next start tries again", "file", key, "error", err)
		}
	}
	if err := f.writeMarker(); err != nil {
		log.Warn("the list of files without digests could not be written", "error", err)
	}
	log.Info("files of an earlier version have digests", "files", len(keys)-failed, "failed", failed)
}

// sweep removes the records of files that are not there.
func (f *folder) sweep(ctx context.Context, log *slog.Logger) {
	dir, err := os.Open(filepath.Join(f.dir, digests))
	if err != nil {
		log.Warn("digests of deleted files could not be removed", "error", err)
		return
	}
	defer dir.Close()
	for ctx.Err() == nil {
		names, err := dir.Readdirnames(1000)
		for _, name := range names {
			if !isRecord(name) || ctx.Err() != nil {
				continue
			}
			key, ok := keyOfRecord(filepath.Join(dir.Name(), name))
			if !ok {
				continue // told when the file is read
			}
			if _, err := os.Lstat(f.path(key)); err == nil {
				continue
			}
			if unlock, err := f.lock(key); err == nil {
				f.forget(key)
				unlock()
			}
		}
		if err != nil {
			return
		}
	}
}

// keyOfRecord is the key that a record begins with.
func keyOfRecord(path string) (key string, ok bool) {
	file, err := os.Open(path)
	if err != nil {
		return "", false
	}
	defer file.Close()
	head, err := io.ReadAll(io.LimitReader(file, int64(len(recordHead)+MaxKey+2)))
	if err != nil {
		return "", false
	}
	rest, ok := bytes.CutPrefix(head, []byte(recordHead+"\n"))
	name, _, ended := bytes.Cut(rest, []byte("\n"))
	return string(name), ok && ended && checkKey(string(name)) == nil
}

// A damage is a content that was found damaged, so that whoever reads it next is
// told at once.
type damage struct {
	info os.FileInfo
	err  error
}

// found notes that a content is damaged.
func (f *folder) found(key string, info os.FileInfo, why string) error {
	err := damaged(key, why)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.damage[key] = damage{info, err}
	return err
}

// known is the damage that was found in a content before.
func (f *folder) known(key string, info os.FileInfo) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d, ok := f.damage[key]; ok && os.SameFile(d.info, info) && d.info.ModTime().Equal(info.ModTime()) {
		return d.err
	}
	return nil
}
