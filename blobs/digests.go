package blobs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/minio/highwayhash"

	"anneal/disk"
	"anneal/domain"
)

// digests is the directory with one record for each file: the length and the SHA-256 digest of the
// file's content, and a checksum of each block. The directory is inside the bucket's directory, so
// that a copy of the bucket includes the records. Its name cannot be a key, because keys do not
// begin with a dot.
//
// A record is durable before the content that it describes is renamed into place:
//
//   - Put and Copy of a new key: record, then content. After a crash between the two
//     there is no file, and the next start deletes the record.
//   - Overwriting: a record with the digests of both contents, then the content,
//     then a record with the new digest alone. After a crash at any point the file
//     has the old or the new content, and either is accepted.
//   - Deleting: content, then record. After a power failure a deleted file may
//     exist again without a record: reading it fails, and the reconciler deletes it again.
//
// So a file without a record, or with other content than its record describes, is damaged: reading
// it returns DataLoss. The only exceptions are files of earlier versions of anneal, which are
// listed in the file that is named by marker.
const digests = ".digests"

// blockSize is the number of bytes of a file that one checksum covers. To verify any part of a
// file, the blocks that contain the part are read completely.
const blockSize = 1 << 20

const recordHead = "anneal digests 1"

// A digest describes one content of a file. Its SHA-256 is also sent to agents, which compare it
// with what they receive. Reads compare the checksums of blocks, so that a part of a file can be
// verified. The checksums are HighwayHash, which takes a fiftieth of the time of SHA-256.
type digest struct {
	length int64
	sha256 [sha256.Size]byte
	blocks [][highwayhash.Size128]byte
}

// checksumKey is the key for HighwayHash. It is constant, because HighwayHash is used as a
// checksum, not as a MAC.
var checksumKey [highwayhash.Size]byte

func checksum(block []byte) [highwayhash.Size128]byte {
	return highwayhash.Sum128(block, checksumKey[:])
}

var (
	errNoRecord     = errors.New("the digest is missing")
	errBrokenRecord = errors.New("the digest is damaged")
)

// damaged returns the DataLoss error for the file under key. why says how the content differs from
// what was stored.
func damaged(key, why string) error {
	return &domain.Error{Code: domain.DataLoss, Reason: "FILE_DAMAGED",
		Message: fmt.Sprintf("file %s is damaged in the file store (%s): restore it from a backup, upload it again, or "+
			"run the job or the request that created it again", key, why)}
}

func (f *fileStore) path(key string) string { return filepath.Join(f.dir, filepath.FromSlash(key)) }

func (f *fileStore) recordPath(key string) string {
	name := sha256.Sum256([]byte(key))
	return filepath.Join(f.dir, digests, hex.EncodeToString(name[:]))
}

// seal returns text followed by its SHA-256 digest, which unseal verifies and removes.
func seal(text []byte) []byte {
	sum := sha256.Sum256(text)
	return append(hex.AppendEncode(text, sum[:]), '\n')
}

func unseal(data []byte) (text []byte, ok bool) {
	at := len(data) - 2*sha256.Size - 1
	if at < 0 {
		return nil, false
	}
	sum := sha256.Sum256(data[:at])
	return data[:at], string(data[at:]) == hex.EncodeToString(sum[:])+"\n"
}

// record returns the digests in the record of a file, one of which the content of the file must
// match. The error is errNoRecord, errBrokenRecord, or an error of reading the record.
func (f *fileStore) record(key string) ([]digest, error) {
	data, err := os.ReadFile(f.recordPath(key))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, errNoRecord
	case errors.Is(err, syscall.EIO):
		return nil, errBrokenRecord
	case err != nil:
		return nil, err
	}
	text, ok := unseal(data)
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if !ok || len(lines) < 2 || lines[0] != recordHead || lines[1] != key {
		return nil, errBrokenRecord
	}
	return parseDigests(strings.Join(lines[2:], "\n"))
}

// parseDigests decodes lines that appendDigests has encoded.
func parseDigests(text string) (contents []digest, err error) {
	for line := range strings.Lines(text) {
		var d digest
		length, sums, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if d.length, err = strconv.ParseInt(length, 10, 64); err != nil || d.length < 0 {
			return nil, errBrokenRecord
		}
		raw, err := hex.DecodeString(sums)
		if want := (d.length + blockSize - 1) / blockSize; err != nil ||
			int64(len(raw)) != sha256.Size+want*highwayhash.Size128 {
			return nil, errBrokenRecord
		}
		copy(d.sha256[:], raw)
		for raw = raw[sha256.Size:]; len(raw) > 0; raw = raw[highwayhash.Size128:] {
			d.blocks = append(d.blocks, [highwayhash.Size128]byte(raw))
		}
		contents = append(contents, d)
	}
	return contents, nil
}

// writeRecord replaces the record of a file by one with the digests in contents, durably.
func (f *fileStore) writeRecord(key string, contents []digest) error {
	return f.writeDigests(f.recordPath(key), recordOf(key, contents))
}

// recordOf returns the text of a record with the given digests for the file under key.
func recordOf(key string, contents []digest) []byte {
	return seal(appendDigests([]byte(recordHead+"\n"+key+"\n"), contents))
}

// appendDigests appends a line of a record to text for each digest.
func appendDigests(text []byte, contents []digest) []byte {
	for _, d := range contents {
		text = append(strconv.AppendInt(text, d.length, 10), ' ')
		text = hex.AppendEncode(text, d.sha256[:])
		for _, block := range d.blocks {
			text = hex.AppendEncode(text, block[:])
		}
		text = append(text, '\n')
	}
	return text
}

// writeDigests durably replaces a file in the digests directory.
func (f *fileStore) writeDigests(path string, data []byte) error {
	temp, err := os.CreateTemp(filepath.Join(f.dir, staging), "digest-*")
	if err != nil {
		return err
	}
	_, err = f.space.Watch(temp).Write(data)
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	return f.syncer.SyncDir(filepath.Dir(path))
}

// commit calls place, which replaces the file under key by its new content. It writes the record of
// the file before and after that call, as described at digests. The new content must match one of
// contents, which has several digests only if the file is a copy of a file whose last change was
// interrupted by a crash.
func (f *fileStore) commit(key string, contents []digest, place func() error) error {
	unlock, err := f.lock(key)
	if err != nil {
		return err
	}
	defer unlock()
	return f.commitLocked(key, contents, place)
}

// commitNew is commit for a new file: if the file exists, it returns AlreadyExists and does not
// call place.
func (f *fileStore) commitNew(key string, contents []digest, place func() error) error {
	unlock, err := f.lock(key)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Lstat(f.path(key)); !errors.Is(err, os.ErrNotExist) {
		return cmp.Or(err, alreadyExists(key))
	}
	return f.commitLocked(key, contents, place)
}

func (f *fileStore) commitLocked(key string, contents []digest, place func() error) error {
	before, err := f.currentDigests(key)
	if err != nil {
		return err
	}
	if err := f.writeRecord(key, append(before, contents...)); err != nil {
		return err
	}
	f.step()
	if err := place(); err != nil {
		f.removeRecord(key)
		return err
	}
	f.step()
	f.clearState(key)
	if len(before) > 0 {
		_ = f.writeRecord(key, contents) // if this fails, the record keeps the old and the new digests, which is valid too
	}
	return f.journal.supersede(key)
}

// currentDigests returns the digests in the record of a file that match the file's length, or, for
// a file in a bundle or a file of an earlier version without a record, the digest of its content. It
// returns none when the file does not exist, or its record is missing or damaged. The caller holds
// the lock of key.
func (f *fileStore) currentDigests(key string) (contents []digest, err error) {
	info, err := os.Stat(f.path(key))
	if errors.Is(err, os.ErrNotExist) {
		if d, ok := bundlesOf(f).digest(key); ok {
			return []digest{d}, nil
		}
	}
	if err != nil || !info.Mode().IsRegular() {
		return nil, nil // if key is a directory, the later rename returns the error
	}
	all, err := f.record(key)
	switch {
	case err == nil:
	case errors.Is(err, errNoRecord) && f.isEarlier(key, info.Size()):
		d, err := digestOf(context.Background(), f.path(key))
		if errors.Is(err, syscall.EIO) {
			return nil, nil
		}
		return []digest{d}, err
	case errors.Is(err, errNoRecord), errors.Is(err, errBrokenRecord):
		return nil, nil
	default:
		return nil, err
	}
	return ofLength(all, info.Size()), nil
}

func ofLength(all []digest, length int64) (some []digest) {
	for _, d := range all {
		if d.length == length {
			some = append(some, d)
		}
	}
	return some
}

// removeRecord removes the record of key if the file under key does not exist. The caller holds the
// lock of key. If the removal fails, the next start removes the record.
func (f *fileStore) removeRecord(key string) {
	if _, err := os.Lstat(f.path(key)); errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		_ = os.Remove(f.recordPath(key))
		f.clearState(key)
	}
}

// link atomically replaces the file under dst, or creates it, as a hard link to the file under src.
func (f *fileStore) link(dst, src string) error {
	temp := filepath.Join(f.dir, staging, uuid.NewString())
	for range maxRetries {
		if err := hardLink(f.path(src), temp); err != nil {
			return err
		}
		contents, same, err := f.linkedDigests(src, temp)
		if err == nil && same {
			now := time.Now()
			// Chtimes changes the times of temp and of src, which are one file. Otherwise the copy
			// could seem older than reconcile.Grace.
			err = os.Chtimes(temp, now, now)
		}
		if err == nil && same {
			err = disk.Sync(temp) // so far, the content may be durable only in the journal, under the key src
		}
		if err == nil && same {
			err = f.commit(dst, contents, func() error { return f.place(temp, f.path(dst)) })
		}
		// If temp and the file under dst are hard links of the same file, renaming temp does
		// nothing, so temp still exists.
		if removed := os.Remove(temp); removed != nil && !errors.Is(removed, os.ErrNotExist) {
			err = errors.Join(err, removed)
		}
		if err != nil || same {
			return err
		}
	}
	return domain.Errorf(domain.Unavailable, "the file %s is being written: try again", src)
}

// hardLink creates link as a hard link to the file at path. link(2) also fails with ENOENT when a
// rename replaces the file during the call, because Linux does not link a file without a name. So
// hardLink retries unless there is no file at path.
func hardLink(path, link string) error {
	for {
		err := os.Link(path, link)
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if _, missing := os.Lstat(path); missing != nil {
			return err
		}
		if _, missing := os.Lstat(filepath.Dir(link)); missing != nil {
			return err
		}
	}
}

// linkedDigests returns the digests in the record of key for the file at path name, a hard link
// that was made to the file under key. same is false when the caller must create the link again:
// the file under key was replaced, so that the record may describe other content, or linkedDigests
// has just written a missing record.
func (f *fileStore) linkedDigests(key, name string) (contents []digest, same bool, err error) {
	held, err := os.Stat(name)
	if err != nil {
		return nil, false, err
	}
	contents, err = f.record(key)
	now, statErr := os.Stat(f.path(key))
	if statErr != nil || !os.SameFile(held, now) {
		return nil, false, nil
	}
	if errors.Is(err, errNoRecord) && f.isEarlier(key, held.Size()) {
		return nil, false, f.adopt(context.Background(), key)
	}
	if contents = ofLength(contents, held.Size()); err == nil && len(contents) == 0 {
		err = fmt.Errorf("the content has %d bytes, which is not the recorded length", held.Size())
	}
	if err != nil {
		return nil, false, damaged(key, err.Error())
	}
	return contents, true, nil
}

// blocks is a pool of buffers, each for one block.
var blocks = sync.Pool{New: func() any { return new([blockSize]byte) }}

// copyHashed copies r to w and returns the digest of the copied bytes. SHA-256 takes longer than
// reading and writing, so it is computed for each block while the block is written and the next one
// is read.
func copyHashed(w io.Writer, r io.Reader) (d digest, err error) {
	var buffers [2]*[blockSize]byte
	whole, hashed := sha256.New(), make(chan struct{}, 1)
	hashed <- struct{}{} // hashed has an element while no block is being hashed
	for i := 0; err == nil; i++ {
		buffer := buffers[i%2]
		if buffer == nil {
			buffer = blocks.Get().(*[blockSize]byte)
			defer blocks.Put(buffer)
			buffers[i%2] = buffer
		}
		var n int
		if n, err = readBlock(r, buffer[:]); n == 0 {
			break
		}
		block := buffer[:n]
		d.blocks = append(d.blocks, checksum(block))
		<-hashed
		hash := func() { whole.Write(block); hashed <- struct{}{} }
		if err == nil {
			go hash()
		} else {
			hash() // after the last block, nothing is left to do concurrently
		}
		written, failed := w.Write(block)
		d.length += int64(written)
		if failed != nil {
			err = failed
		}
	}
	<-hashed
	whole.Sum(d.sha256[:0])
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return d, err
}

// readBlock fills block from r like io.ReadFull, but returns errors of r unchanged.
func readBlock(r io.Reader, block []byte) (n int, err error) {
	for n < len(block) && err == nil {
		var m int
		m, err = r.Read(block[n:])
		n += m
	}
	return n, err
}

// digestOf reads the file at path and returns its digest.
func digestOf(ctx context.Context, path string) (digest, error) {
	file, err := os.Open(path)
	if err != nil {
		return digest{}, err
	}
	d, err := copyHashed(io.Discard, reader{ctx, file})
	return d, errors.Join(err, file.Close())
}
