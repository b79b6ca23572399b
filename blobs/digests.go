package blobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
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

	"anneal/domain"
)

// digests is the folder with one record for each file: the length and the SHA-256
// digest of its content, and a checksum of each block. It lies in the bucket's folder, so that it is copied
// with it, and no key names it: keys do not begin with a dot.
//
// A record is durable before the content that it describes gets its name:
//
//   - Put and Copy of a new key: record, then content. After a crash between them
//     there is no file, and the next start deletes the record.
//   - Overwriting: a record with the digests of both contents, then the content,
//     then a record with the new digests alone. After a crash anywhere the file is
//     the old one or the new one, and is accepted as such.
//   - Deleting: content, then record. After a power failure a deleted file may be
//     there again and have no record: it is refused, and deleted again.
//
// So a file without a record, or with another content than its record says, is
// damaged: it is refused, with DataLoss. The exceptions are files of earlier
// versions, which marker lists.
const digests = ".digests"

// blockSize is how much of a file one checksum is of: the least that is read to
// verify any part of it.
const blockSize = 1 << 20

const recordHead = "anneal digests 1"

// A digest describes one content. SHA-256 names it, to agents also, which compare
// it with what they have received. Reading compares blocks, so that a part can be
// verified alone, with a hash that costs a fiftieth of SHA-256.
type digest struct {
	length int64
	sha256 [sha256.Size]byte
	blocks [][highwayhash.Size128]byte
}

// checksumKey makes a checksum of the hash: it is no secret.
var checksumKey [highwayhash.Size]byte

func checksum(block []byte) [highwayhash.Size128]byte {
	return highwayhash.Sum128(block, checksumKey[:])
}

var (
	errNoRecord     = errors.New("its digest is missing")
	errBrokenRecord = errors.New("its digest is damaged")
)

// damaged is the fault of a file whose content is not what was stored.
func damaged(key, why string) error {
	return &domain.Error{Code: domain.DataLoss, Reason: "FILE_DAMAGED",
		Message: fmt.Sprintf("file %s: is damaged in the store for files (%s): restore it from a backup, or upload it again or run again what made it", key, why)}
}

func (f *folder) path(key string) string { return filepath.Join(f.dir, filepath.FromSlash(key)) }

func (f *folder) recordPath(key string) string {
	name := sha256.Sum256([]byte(key))
	return filepath.Join(f.dir, digests, hex.EncodeToString(name[:]))
}

// seal ends a text with its own digest; unseal takes it off again.
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

// record reads the contents that a file may have. The error is errNoRecord,
// errBrokenRecord, or trouble with reading.
func (f *folder) record(key string) ([]digest, error) {
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
	var contents []digest
	for _, line := range lines[2:] {
		var d digest
		length, sums, _ := strings.Cut(line, " ")
		if d.length, err = strconv.ParseInt(length, 10, 64); err != nil {
			return nil, errBrokenRecord
		}
		raw, err := hex.DecodeString(sums)
		if want := (d.length + blockSize - 1) / blockSize; err != nil || int64(len(raw)) != sha256.Size+want*highwayhash.Size128 {
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

// writeRecord replaces a file's record, durably.
func (f *folder) writeRecord(key string, contents []digest) error {
	text := []byte(recordHead + "\n" + key + "\n")
	for _, d := range contents {
		text = append(strconv.AppendInt(text, d.length, 10), ' ')
		text = hex.AppendEncode(text, d.sha256[:])
		for _, block := range d.blocks {
			text = hex.AppendEncode(text, block[:])
		}
		text = append(text, '\n')
	}
	return f.writeDigests(f.recordPath(key), seal(text))
}

// writeDigests replaces a file of the folder of digests, durably.
func (f *folder) writeDigests(path string, data []byte) error {
	temp, err := os.CreateTemp(filepath.Join(f.dir, arriving), "digest-*")
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
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// lock keeps others, also other processes, from changing a file or its record.
func (f *folder) lock(key string) (unlock func(), err error) {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(key))
	file, err := os.OpenFile(filepath.Join(f.dir, digests, fmt.Sprintf("lock-%02d", hash.Sum32()%32)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() { _ = file.Close() }, nil // which unlocks
}

// commit has place give a file a content of which contents are the digests: see
// digests. More than one is what a crash has left open.
func (f *folder) commit(key string, contents []digest, place func() error) error {
	unlock, err := f.lock(key)
	if err != nil {
		return err
	}
	defer unlock()
	before, err := f.present(key)
	if err != nil {
		return err
	}
	if err := f.writeRecord(key, append(before, contents...)); err != nil {
		return err
	}
	f.step()
	if err := place(); err != nil {
		f.forget(key)
		return err
	}
	f.step()
	f.keeps(key)
	if len(before) > 0 {
		_ = f.writeRecord(key, contents) // the one with both holds as well
	}
	return nil
}

// present is what the content that a file has now may be; nil when there is no
// file, or only one that is refused. The caller holds the lock.
func (f *folder) present(key string) (contents []digest, err error) {
	info, err := os.Stat(f.path(key))
	if err != nil || !info.Mode().IsRegular() {
		return nil, nil // what is in the way is told by the renaming
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

// forget removes the record of a file that is not there. The caller holds the
// lock. What fails is made up for at the next start.
func (f *folder) forget(key string) {
	if _, err := os.Lstat(f.path(key)); errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		_ = os.Remove(f.recordPath(key))
		f.keeps(key)
	}
}

// link gives a file a second name. One that exists is replaced at once.
func (f *folder) link(to, from string) error {
	temp := filepath.Join(f.dir, arriving, uuid.NewString())
	for range removals {
		if err := os.Link(f.path(from), temp); err != nil {
			return err
		}
		contents, same, err := f.consistent(from, temp)
		if err == nil && same {
			now := time.Now()
			err = os.Chtimes(temp, now, now) // both names are as young as the copy: see reconcile.Grace
		}
		if err == nil && same {
			err = f.commit(to, contents, func() error { return f.place(temp, f.path(to)) })
		}
		// Renaming one name of a file onto another of the same file leaves both.
		if removed := os.Remove(temp); removed != nil && !errors.Is(removed, os.ErrNotExist) {
			err = errors.Join(err, removed)
		}
		if err != nil || same {
			return err
		}
	}
	return domain.Errorf(domain.Unavailable, "%s is being written: try again", from)
}

// consistent answers what the content of a file may be; same tells whether it is
// the one that has another name as well.
func (f *folder) consistent(key, name string) (contents []digest, same bool, err error) {
	held, err := os.Stat(name)
	if err != nil {
		return nil, false, err
	}
	contents, err = f.record(key)
	now, gone := os.Stat(f.path(key))
	if gone != nil || !os.SameFile(held, now) {
		return nil, false, nil
	}
	if errors.Is(err, errNoRecord) && f.isEarlier(key, held.Size()) {
		return nil, false, f.adopt(context.Background(), key)
	}
	if contents = ofLength(contents, held.Size()); err == nil && len(contents) == 0 {
		err = fmt.Errorf("it has %d bytes", held.Size())
	}
	if err != nil {
		return nil, false, damaged(key, err.Error())
	}
	return contents, true, nil
}

// blocks are buffers for one block.
var blocks = sync.Pool{New: func() any { return new([blockSize]byte) }}

// copyHashed copies all of r and answers the digest of what it has copied. What
// takes long, SHA-256, is computed while the block is written and the next is read.
func copyHashed(w io.Writer, r io.Reader) (d digest, err error) {
	var buffers [2]*[blockSize]byte
	whole, hashed := sha256.New(), make(chan struct{}, 1)
	hashed <- struct{}{} // whole is free
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
			hash() // the last block, often the only one
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

// readBlock is io.ReadFull that answers the errors of r as they are.
func readBlock(r io.Reader, block []byte) (n int, err error) {
	for n < len(block) && err == nil {
		var m int
		m, err = r.Read(block[n:])
		n += m
	}
	return n, err
}

// digestOf hashes a file as it is.
func digestOf(ctx context.Context, path string) (digest, error) {
	file, err := os.Open(path)
	if err != nil {
		return digest{}, err
	}
	d, err := copyHashed(io.Discard, reader{ctx, file})
	return d, errors.Join(err, file.Close())
}
