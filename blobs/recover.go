package blobs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/minio/highwayhash"

	"anneal/disk"
)

// recover repeats the changes in the journal of an earlier process, whose files may be missing
// after a power failure, and removes the journal. It skips a change if the file has other valid
// content than before and after the change, because another process has stored that content later.
func (f journaled) recover(log *slog.Logger) error {
	dir := filepath.Join(f.dir, digests)
	paths, err := segments(dir)
	if err != nil || len(paths) == 0 {
		return err
	}
	var entries []entry
	last := map[string]int{} // by key, the index that follows that of the last superseded entry of the key
	damaged := map[string]bool{}
	for i, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		found, lost, torn := entriesOf(data)
		for _, e := range found {
			entries = append(entries, e)
			if e.superseded {
				last[e.key] = len(entries)
			}
		}
		if followed := slices.ContainsFunc(paths[i+1:], isSegment); lost > 0 && (!torn || followed) {
			damaged[path] = true
			log.Error("the journal of small files is damaged, so files in it may be lost: compare the stored files "+
				"with a backup; the damaged journal is kept", "kept", path+damagedSuffix, "bytes", lost)
		} else if lost > 0 {
			log.Info("the journal of small files ends with incomplete entries, which are ignored: they were not acknowledged",
				"journal", path, "bytes", lost)
		}
	}
	final, before := map[string]int{}, map[string][]digest{}
	for i, e := range entries {
		if i < last[e.key] {
			continue
		}
		// Also accept the contents before earlier entries: after a power failure, the file may
		// still have one of them. The last entry does not have their digests if the file was
		// removed in between.
		before[e.key] = append(before[e.key], e.before...)
		if previous, ok := final[e.key]; ok {
			before[e.key] = append(before[e.key], smallDigest(entries[previous].content))
		}
		final[e.key] = i
	}
	for i, e := range entries {
		if at, ok := final[e.key]; !ok || at != i {
			continue
		}
		e.before = before[e.key]
		if err := f.repeat(e); err != nil {
			return fmt.Errorf("repeat the change of %s in the journal: %w", e.key, err)
		}
	}
	if len(damaged) == 0 { // a damaged journal may lack files that a damaged bundle has
		err = bundlesOf(f.fileStore).removeDamaged(entries)
	}
	if err = errors.Join(err, disk.SyncAll(f.dir)); err != nil {
		return err
	}
	for _, path := range paths {
		if damaged[path] {
			err = os.Rename(path, path+damagedSuffix)
		} else {
			err = os.Remove(path)
		}
		// A segment may supersede entries of an earlier one, so the earlier one must not exist
		// alone after a power failure.
		if err = errors.Join(err, disk.Sync(dir)); err != nil {
			return err
		}
	}
	return nil
}

// damagedSuffix is appended to the name of a damaged segment, which recover keeps.
const damagedSuffix = ".damaged"

func isSegment(path string) bool { return filepath.Base(path) != voids }

// entriesOf decodes the entries of a segment. lost is the number of bytes that it could not decode.
// torn reports whether only the end of the segment is damaged, as after a crash during the last
// write.
func entriesOf(data []byte) (entries []entry, lost int, torn bool) {
	torn = true
	for len(data) > 0 {
		e, rest, ok := cutEntry(data)
		if ok {
			torn = lost == 0
			entries = append(entries, e)
		} else {
			lost += len(data) - len(rest)
		}
		data = rest
	}
	return entries, lost, torn
}

// errStored is returned by repeat when the file has content that was stored after the entry.
var errStored = errors.New("the file has content that was stored later")

// repeat makes the change of an entry again, unless the file already has the content of the entry.
func (f journaled) repeat(e entry) error {
	if !f.needsRepeat(e) {
		return nil
	}
	f.step()
	_, err := f.put(context.Background(), e.key, bytes.NewReader(e.content),
		func(key string, contents []digest, place func() error) error {
			unlock, err := f.lock(key)
			if err != nil {
				return err
			}
			defer unlock()
			if !f.needsRepeat(e) { // another process has changed the file since the entry
				return errStored
			}
			return f.commitLocked(key, contents, place)
		})
	if errors.Is(err, errStored) || isNameConflict(err) {
		return nil // the change has failed before for the same reason, so its caller got an error
	}
	return err
}

// needsRepeat reports whether the file of an entry has no valid content, or still has the content
// before the change.
func (f journaled) needsRepeat(e entry) bool {
	found, valid := f.validDigest(e.key)
	return !valid || !found.same(smallDigest(e.content)) && slices.ContainsFunc(e.before, found.same)
}

// segments returns the paths of the journal's segments in a directory, in their order, followed by
// the path of the file voids.
func segments(dir string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, e := range entries {
		rest, is := strings.CutPrefix(e.Name(), "journal-")
		if number, err := strconv.Atoi(rest); is && err == nil && segmentName(number) == e.Name() {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	for _, number := range numbers {
		paths = append(paths, filepath.Join(dir, segmentName(number)))
	}
	if _, err := os.Lstat(filepath.Join(dir, voids)); err == nil {
		paths = append(paths, filepath.Join(dir, voids))
	}
	return paths, nil
}

// appendEntry encodes an entry and appends it to dst: its length, a checksum, and then three parts,
// each after its length: the key, the lines of a record with the digests before, and the content.
// Lengths are little-endian. A superseded entry has only the key, and a bundled one only the key and
// the content.
func appendEntry(dst []byte, e entry) []byte {
	begin := len(dst)
	dst = append(dst, make([]byte, 4+highwayhash.Size128)...)
	parts := [][]byte{[]byte(e.key)}
	if e.bundled {
		parts = append(parts, e.content)
	} else if !e.superseded {
		parts = append(parts, appendDigests(nil, e.before), e.content)
	}
	for _, part := range parts {
		dst = append(binary.LittleEndian.AppendUint32(dst, uint32(len(part))), part...)
	}
	body := dst[begin+4+highwayhash.Size128:]
	binary.LittleEndian.PutUint32(dst[begin:], uint32(len(body)))
	sum := checksum(body)
	copy(dst[begin+4:], sum[:])
	return dst
}

// cutEntry decodes the first entry of data. ok is false if data is empty, or the entry is
// incomplete or damaged. rest is what follows the entry; nil if the length of the entry is damaged.
func cutEntry(data []byte) (e entry, rest []byte, ok bool) {
	const head = 4 + highwayhash.Size128
	if len(data) < head || uint64(len(data)-head) < uint64(binary.LittleEndian.Uint32(data)) {
		return e, nil, false
	}
	body := data[head : head+int(binary.LittleEndian.Uint32(data))]
	rest = data[head+len(body):]
	if len(body) == 0 {
		return e, nil, false
	}
	if sum := checksum(body); string(sum[:]) != string(data[4:head]) {
		return e, rest, false
	}
	var parts [][]byte
	for len(body) >= 4 && uint64(len(body)-4) >= uint64(binary.LittleEndian.Uint32(body)) {
		n := 4 + int(binary.LittleEndian.Uint32(body))
		parts, body = append(parts, body[4:n]), body[n:]
	}
	if len(body) > 0 || len(parts) < 1 || len(parts) > 3 {
		return e, rest, false
	}
	if e.key = string(parts[0]); checkKey(e.key) != nil {
		return e, rest, false
	}
	switch len(parts) {
	case 1:
		e.superseded = true
	case 2:
		e.bundled, e.content = true, parts[1]
	default:
		var err error
		if e.before, err = parseDigests(string(parts[1])); err != nil {
			return e, rest, false
		}
		e.content = parts[2]
	}
	return e, rest, true
}
