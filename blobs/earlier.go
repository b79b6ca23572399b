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

// marker is the name of the file that lists the files, with their lengths, that earlier versions of
// anneal stored without digests. It is written before the first record. A listed file without a
// record is read unverified, and gets a record in the background. Any other file without a record
// counts as damaged. If the marker is damaged, or is missing although there are records, no file
// counts as listed.
const marker = "earlier"

const markerHead = "anneal files without digests 1"

// openDigests reads the marker, or creates it if the directory has no records.
func (f *fileStore) openDigests() error {
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
		if f.earlier, err = f.lengths(""); err != nil {
			return err
		}
		if err := f.writeMarker(); err != nil {
			return err
		}
		return f.syncer.SyncUp(dir, f.dir)
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

func (f *fileStore) writeMarker() error {
	f.mu.Lock()
	text := []byte(markerHead + "\n")
	for _, key := range slices.Sorted(maps.Keys(f.earlier)) {
		text = fmt.Appendf(text, "%d %s\n", f.earlier[key], key)
	}
	f.mu.Unlock()
	return f.writeDigests(filepath.Join(f.dir, digests, marker), seal(text))
}

// hasRecords reports whether the directory dir has at least one record.
func hasRecords(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return isRecord(e.Name()) }), err
}

func isRecord(name string) bool { return len(name) == 64 }

// lengths returns the lengths in bytes of the files below a prefix, by key.
func (f *fileStore) lengths(prefix string) (map[string]int64, error) {
	files := map[string]int64{}
	err := walk(context.Background(), f.dir, prefix, func(file File) bool {
		files[file.Key] = file.Size
		return true
	})
	return files, err
}

// isEarlier reports whether marker lists a file with this key and length. Such a file may have no
// record, because an earlier version of anneal stored it.
func (f *fileStore) isEarlier(key string, length int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, ok := f.earlier[key]
	return ok && n == length
}

// clearState removes key from f.earlier and f.damage, because its file has a new record or was
// deleted.
func (f *fileStore) clearState(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.earlier, key)
	delete(f.damage, key)
}

// adopt writes the record of a file that an earlier version stored without a record.
func (f *fileStore) adopt(ctx context.Context, key string) error {
	before, err := os.Stat(f.path(key))
	if errors.Is(err, os.ErrNotExist) {
		f.clearState(key)
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
		return nil // the file was replaced or deleted since the marker was read
	}
	if _, err := f.record(key); !errors.Is(err, errNoRecord) {
		return err
	}
	if err := f.writeRecord(key, []digest{d}); err != nil {
		return err
	}
	f.clearState(key)
	return nil
}

// maintain runs in the background after Open: it calls adopt for the files of earlier versions, and
// removes the records of files that do not exist.
func (f *fileStore) maintain(ctx context.Context, log *slog.Logger) {
	if f.strict {
		log.Warn("the list of files that earlier versions stored without digests is damaged or missing: "+
			"reads of these files fail",
			"list", filepath.Join(f.dir, digests, marker))
	}
	f.sweep(ctx, log)
	f.mu.Lock()
	keys := slices.Sorted(maps.Keys(f.earlier))
	f.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	log.Info("computing digests of files that an earlier version stored: until then they are read unverified",
		"files", len(keys))
	failed := 0
	for _, key := range keys {
		if err := f.adopt(ctx, key); err != nil {
			if ctx.Err() != nil {
				return
			}
			failed++
			log.Warn("cannot write the digest of a file of an earlier version: the next start retries", "file", key, "error",
				err)
		}
	}
	if err := f.writeMarker(); err != nil {
		log.Warn("cannot write the list of files that earlier versions stored without digests: the next start retries",
			"error", err)
		return
	}
	if failed > 0 {
		log.Warn("some files that an earlier version stored have no digests yet: the next start retries", "files", failed)
		return
	}
	log.Info("all files that an earlier version stored have digests", "files", len(keys))
}

// sweep removes the records of files that do not exist.
func (f *fileStore) sweep(ctx context.Context, log *slog.Logger) {
	dir, err := os.Open(filepath.Join(f.dir, digests))
	if err != nil {
		log.Warn("cannot remove the digests of deleted files: the next start retries", "error", err)
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
				continue // reading the file reports the damage
			}
			if _, err := os.Lstat(f.path(key)); err == nil {
				continue
			}
			if unlock, err := f.lock(key); err == nil {
				f.removeRecord(key)
				unlock()
			}
		}
		if err != nil {
			return
		}
	}
}

// keyOfRecord returns the key of the file that the record at path describes; ok is false when the
// file at path is not a valid record.
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

// A damage records that the content of a file was found damaged, so that later readers get the
// error without reading the content again.
type damage struct {
	info os.FileInfo
	err  error
}

// markDamaged records that the content of key is damaged, and returns the DataLoss error for
// readers. info identifies the damaged content, and why is the reason in the error.
func (f *fileStore) markDamaged(key string, info os.FileInfo, why string) error {
	err := damaged(key, why)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.damage[key] = damage{info, err}
	return err
}

// knownDamage returns the error that markDamaged has recorded for this content of key; nil if it
// has recorded none.
func (f *fileStore) knownDamage(key string, info os.FileInfo) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d, ok := f.damage[key]; ok && os.SameFile(d.info, info) && d.info.ModTime().Equal(info.ModTime()) {
		return d.err
	}
	return nil
}
