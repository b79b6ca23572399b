package blobs

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"anneal/disk"
)

// bundles is the directory of bundles, ACCOUNT/EVENT. A bundle is one file with the small files
// that an attempt of a job returns as its results: the model, the metrics and the log. They are
// stored together, because creating files and directories takes most of the time of storing them.
// EVENT is the ID of the event that created the job.
//
// A bundle has a header, the length of the rest, and a sequence of entries as in the journal, each
// with a checksum of its key and content. It is written once. Deleting one of its files replaces it
// by a bundle without the entry of the file, and with all its other bytes, also those that cannot be
// decoded. A file that is stored later under the same key takes precedence over the one in the
// bundle.
const bundles = ".bundles"

const bundleHead = "anneal bundle 1\n"

// maxBundle is the maximum number of bytes of the contents in a bundle. To read a file, its bundle
// is read completely.
const maxBundle = 64 << 10

// bundleOf returns the name of the bundle that may have the file under key, ACCOUNT/EVENT; "" when
// no bundle has such a file. See MetricsFile, TrainerLog and InlinePrefix.
func bundleOf(key string) string {
	root, rest, _ := strings.Cut(key, "/")
	account, rest, _ := strings.Cut(rest, "/")
	resource, file, _ := strings.Cut(rest, "/")
	if file == "" || strings.Contains(file, "/") {
		return ""
	}
	event, _, attempt := strings.Cut(resource, inlineAttempt)
	isLog := strings.HasPrefix(file, trainerLog) && strings.HasSuffix(file, logSuffix)
	if root+"/" == JobRoot && !attempt && (file == metricsFile || isLog) || root+"/" == ModelRoot && attempt {
		return account + "/" + event
	}
	return ""
}

// bundleStore is a fileStore with the methods for bundles.
type bundleStore struct{ *fileStore }

func bundlesOf(f *fileStore) bundleStore { return bundleStore{f} }

// A bundle is a decoded bundle.
type bundle struct {
	files   []entry // with different keys
	damaged bool    // some entries could not be decoded, or are missing
	data    []byte  // encoded bundle
	time    time.Time
}

// read reads a bundle. The error is os.ErrNotExist when there is none.
func (f bundleStore) read(name string) (b bundle, err error) {
	if name == "" {
		return b, os.ErrNotExist
	}
	file, err := os.Open(f.bundlePath(name))
	if err != nil {
		return b, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return b, err
	}
	b.time = info.ModTime()
	data, err := io.ReadAll(file)
	if errors.Is(err, syscall.EIO) {
		b.damaged = true
		return b, nil
	}
	b.data = data
	entries, complete := decodeBundle(data)
	for _, e := range entries {
		if bundleOf(e.key) == name {
			b.files = append(b.files, e)
		}
	}
	b.damaged = !complete || len(b.files) == 0
	return b, err
}

// decodeBundle returns the entries of a bundle that can be decoded. complete reports whether these
// are all of its entries.
func decodeBundle(data []byte) (entries []entry, complete bool) {
	const head = len(bundleHead) + 4
	if len(data) < head {
		return nil, false
	}
	rest := data[head:]
	entries, lost, _ := entriesOf(rest)
	return entries, lost == 0 && string(data[:len(bundleHead)]) == bundleHead &&
		uint64(binary.LittleEndian.Uint32(data[len(bundleHead):])) == uint64(len(rest))
}

// encodeBundle returns the bundle with the given entries.
func encodeBundle(entries []entry) []byte {
	const head = len(bundleHead) + 4
	data := append(make([]byte, 0, 4<<10), bundleHead+"0000"...)
	for _, e := range entries {
		data = appendEntry(data, e)
	}
	binary.LittleEndian.PutUint32(data[len(bundleHead):], uint32(len(data)-head))
	return data
}

// without returns the encoded bundle without the entry of key. It changes nothing else, so what is
// damaged or missing stays so.
func (b bundle) without(key string) []byte {
	const head = len(bundleHead) + 4
	data := slices.Clone(b.data[:head])
	for rest := b.data[head:]; len(rest) > 0; {
		e, next, ok := cutEntry(rest)
		one := rest[:len(rest)-len(next)]
		if ok && e.key == key {
			length := binary.LittleEndian.Uint32(data[len(bundleHead):])
			binary.LittleEndian.PutUint32(data[len(bundleHead):], length-uint32(len(one)))
		} else {
			data = append(data, one...)
		}
		rest = next
	}
	return data
}

func (f bundleStore) bundlePath(name string) string {
	return filepath.Join(f.dir, bundles, filepath.FromSlash(name))
}

// file returns the content of the file under key; false when the bundle does not have the file, or
// the file could not be decoded.
func (b bundle) file(key string) (content []byte, ok bool) {
	at := slices.IndexFunc(b.files, func(e entry) bool { return e.key == key })
	if at < 0 {
		return nil, false
	}
	return b.files[at].content, true
}

// digest returns the digest of the file under key in its bundle; ok is false if no bundle has it.
func (f bundleStore) digest(key string) (d digest, ok bool) {
	b, err := f.read(bundleOf(key))
	if err != nil {
		return d, false
	}
	content, ok := b.file(key)
	if !ok {
		return d, false
	}
	return smallDigest(content), true
}

// open opens the file under key in its bundle.
func (f bundleStore) open(key string) (*verified, error) {
	b, err := f.read(bundleOf(key))
	if err != nil {
		return nil, err
	}
	content, ok := b.file(key)
	switch {
	case !ok && b.damaged:
		return nil, damaged(key, "the file with all results of the job is damaged")
	case !ok:
		return nil, os.ErrNotExist
	}
	size := int64(len(content))
	return &verified{store: f.fileStore, key: key, file: inMemory{bytes.NewReader(content)}, at: -1, end: size,
		info: bundledInfo{key, size, b.time}, contents: []digest{smallDigest(content)}}, nil
}

// inMemory is the content of a file in a bundle.
type inMemory struct{ *bytes.Reader }

// Close implements io.Closer.
func (inMemory) Close() error { return nil }

// bundledInfo is the os.FileInfo of a file in a bundle.
type bundledInfo struct {
	key  string
	size int64
	time time.Time
}

func (i bundledInfo) Name() string       { return filepath.Base(i.key) }
func (i bundledInfo) Size() int64        { return i.size }
func (i bundledInfo) Mode() fs.FileMode  { return 0o600 }
func (i bundledInfo) ModTime() time.Time { return i.time }
func (i bundledInfo) IsDir() bool        { return false }
func (i bundledInfo) Sys() any           { return nil }

// list returns the files in bundles whose keys begin with prefix, ordered by key. It leaves
// out files that could not be decoded.
func (f bundleStore) list(prefix string) (files []File, err error) {
	names, err := f.namesBelow(prefix)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		b, err := f.read(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, e := range b.files {
			if strings.HasPrefix(e.key, prefix) {
				files = append(files, File{e.key, int64(len(e.content)), b.time})
			}
		}
	}
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Key, b.Key) })
	return files, nil
}

// namesBelow returns the names of the bundles that may have files below prefix.
func (f bundleStore) namesBelow(prefix string) (names []string, err error) {
	root, rest, _ := strings.Cut(prefix, "/")
	if root+"/" != JobRoot && root+"/" != ModelRoot {
		return nil, nil
	}
	account, resource, _ := strings.Cut(rest, "/")
	if resource != "" {
		if name := bundleOf(prefix + metricsFile); name != "" {
			names = append(names, name)
		}
		return names, nil
	}
	accounts := []string{account}
	if account == "" {
		if accounts, err = namesIn(filepath.Join(f.dir, bundles)); err != nil {
			return nil, err
		}
	}
	for _, account := range accounts {
		events, err := namesIn(filepath.Join(f.dir, bundles, account))
		if err != nil {
			return nil, err
		}
		for _, event := range events {
			names = append(names, account+"/"+event)
		}
	}
	return names, nil
}

// namesIn returns the names in a directory; none if it does not exist.
func namesIn(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// store durably stores new small files in a bundle, with one sync. stored is false, and
// nothing has changed, if they cannot be in one bundle, or one of them exists, or the journal
// accepts no entries. If the bundle exists with the same files, it does nothing.
func (f bundleStore) store(files []smallFile) (stored bool, err error) {
	name, keys, entries := bundleOf(files[0].key), make([]string, len(files)), make([]entry, len(files))
	size := 0
	for i, file := range files {
		if bundleOf(file.key) != name {
			return false, nil
		}
		keys[i], entries[i] = file.key, entry{key: file.key, bundled: true, content: file.content}
		size += len(file.content)
	}
	if name == "" || size > maxBundle || f.bundling != nil && !f.bundling() {
		return false, nil
	}
	data := encodeBundle(entries)
	done, err := f.space.Reserve(disk.Files, int64(2*len(data)))
	if err != nil {
		return true, err
	}
	defer done()
	unlock, err := f.lock(append(keys, name)...)
	if err != nil {
		return true, err
	}
	defer unlock()
	arrive := f.journal.announce()
	defer arrive()
	if free, same := f.isFree(name, keys, entries); !free {
		return same, nil
	}
	applied, err := f.journal.append(arrive, entries...)
	if err != nil {
		return !errors.Is(err, errNoJournal), err
	}
	defer applied()
	f.step()
	if err := f.write(name, data); err != nil {
		applied() // before supersede: that may wait for journal.close, which waits for applied
		return true, errors.Join(err, f.journal.supersede(keys...))
	}
	f.step()
	return true, nil
}

// isFree reports whether the files of a new bundle do not exist yet. same reports whether the
// bundle exists already with the same files, and no separate file has replaced any of them.
func (f bundleStore) isFree(name string, keys []string, entries []entry) (free, same bool) {
	for _, key := range keys {
		if _, err := os.Lstat(f.path(key)); !errors.Is(err, os.ErrNotExist) {
			return false, false
		}
	}
	b, err := f.read(name)
	if err != nil {
		return errors.Is(err, os.ErrNotExist), false
	}
	return false, !slices.ContainsFunc(entries, func(e entry) bool {
		content, ok := b.file(e.key)
		return !ok || !bytes.Equal(content, e.content)
	})
}

// write creates a bundle without syncing it. Nobody reads its files before they are
// acknowledged, so it is written in place.
func (f bundleStore) write(name string, data []byte) error {
	path := f.bundlePath(name)
	err := disk.WriteNew(path, data)
	if errors.Is(err, os.ErrNotExist) { // the first bundle of the account
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = disk.WriteNew(path, data)
		}
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		if removed := os.Remove(path); !errors.Is(removed, os.ErrNotExist) {
			err = errors.Join(err, removed)
		}
	}
	return err
}

// removeFile durably removes the file under key from its bundle, and the bundle with its last
// file. It keeps a damaged bundle, because the damaged files may be other ones. The caller holds the
// lock of lockNames(key).
func (f bundleStore) removeFile(key string) error {
	name := bundleOf(key)
	b, err := f.read(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, has := b.file(key); !has {
		return nil
	}
	path := f.bundlePath(name)
	if len(b.files) == 1 && !b.damaged {
		err = os.Remove(path)
	} else {
		err = f.replace(path, b.without(key), b.time)
	}
	f.step()
	return errors.Join(err, f.syncDir(filepath.Dir(path)))
}

// replace replaces a bundle by one with the content data and the modification time stored, which is
// when the files of the bundle were stored.
func (f bundleStore) replace(path string, data []byte, stored time.Time) error {
	temp, err := os.CreateTemp(filepath.Join(f.dir, staging), "bundle-*")
	if err != nil {
		return err
	}
	_, err = temp.Write(data)
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err == nil {
		f.step()
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	f.step()
	return os.Chtimes(path, stored, stored) // not before: a start removes old files from the staging directory
}

// lockNames returns the names to lock for a change of the file under key that may change its
// bundle.
func lockNames(key string) []string {
	if name := bundleOf(key); name != "" {
		return []string{key, name}
	}
	return []string{key}
}

// removeDamaged removes the damaged bundles for which the journal has entries. A power failure has
// damaged them, and recover has stored their files separately.
func (f bundleStore) removeDamaged(entries []entry) error {
	for _, e := range entries {
		if !e.bundled {
			continue
		}
		name := bundleOf(e.key)
		if b, err := f.read(name); err == nil && b.damaged {
			if err := os.Remove(f.bundlePath(name)); err != nil {
				return err
			}
		}
	}
	return nil
}
