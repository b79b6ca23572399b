package blobs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"anneal/domain"
)

// A Content is the content of a key, opened for reading. When the bucket is a directory, Read
// verifies the content block by block: for a damaged block, it returns DataLoss and no bytes of the
// block.
type Content interface {
	io.ReadSeekCloser
	Size() int64 // Size returns the size of the content in bytes.
	ModTime() time.Time
}

// A verified is an open file of a fileStore. It implements Content. Close may be called during a
// Read, because net/http may still read the body of a request after it has returned the response.
type verified struct {
	mu    sync.Mutex // guards the fields below; not held while the writer of WriteTo writes
	store *fileStore
	key   string
	file  interface { // an *os.File, or inMemory
		io.ReaderAt
		io.Closer
	}
	info     os.FileInfo
	contents []digest // digests that match all blocks read so far; nil if the file has no record
	pos, end int64
	at       int64  // offset in the file of the block in buffer; -1 if buffer has no block
	block    []byte // part of buffer that the block fills
	buffer   *[blockSize]byte
	writing  bool // the writer of WriteTo is reading buffer
	failed   error
}

// open opens the file under key, and reads the digests in its record.
func (f *fileStore) open(key string) (*verified, error) {
	for range maxRetries {
		v, err := f.tryOpen(key)
		if v != nil || err != nil {
			return v, err
		}
	}
	return nil, domain.Errorf(domain.Unavailable, "the file %s is being written: try again", key)
}

// tryOpen is one attempt of open. It returns nil without an error when the file was replaced after
// it was opened and before its record was read, so that the record may describe other content.
func (f *fileStore) tryOpen(key string) (v *verified, err error) {
	file, err := os.Open(f.path(key))
	if errors.Is(err, os.ErrNotExist) {
		return bundlesOf(f).open(key)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if v == nil {
			err = errors.Join(err, file.Close())
		}
	}()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, os.ErrNotExist
	}
	contents, err := f.record(key)
	now, statErr := os.Stat(f.path(key))
	if statErr != nil || !os.SameFile(info, now) {
		return nil, nil
	}
	v = &verified{store: f, key: key, file: file, info: info, end: info.Size(), at: -1}
	if errors.Is(err, errNoRecord) && f.isEarlier(key, info.Size()) {
		return v, nil
	}
	if err == nil {
		err = f.knownDamage(key, info)
	}
	v.contents = ofLength(contents, info.Size())
	switch {
	case errors.Is(err, errNoRecord), errors.Is(err, errBrokenRecord):
		return nil, damaged(key, err.Error())
	case err != nil:
		return nil, err
	case len(v.contents) == 0:
		return nil, damaged(key, fmt.Sprintf("the content has %d bytes, which is not the recorded length", info.Size()))
	}
	return v, nil
}

// Size implements Content.
func (v *verified) Size() int64 { return v.info.Size() }

// ModTime implements Content.
func (v *verified) ModTime() time.Time { return v.info.ModTime() }

// Close implements io.Closer. If the writer of WriteTo is still reading the buffer, the buffer is
// not returned to the pool.
func (v *verified) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.buffer != nil && !v.writing {
		blocks.Put(v.buffer)
	}
	v.buffer, v.at, v.block, v.failed = nil, -1, nil, os.ErrClosed
	return v.file.Close()
}

// Seek implements io.Seeker.
func (v *verified) Seek(offset int64, whence int) (int64, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		offset += v.pos
	case io.SeekEnd:
		offset += v.info.Size()
	}
	if offset < 0 {
		return 0, fmt.Errorf("file %s: cannot seek to the negative offset %d", v.key, offset)
	}
	v.pos = offset
	return offset, nil
}

// Read implements io.Reader.
func (v *verified) Read(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.load(); err != nil {
		return 0, err
	}
	n := copy(p[:min(int64(len(p)), v.end-v.pos)], v.block[v.pos-v.at:])
	v.pos += int64(n)
	return n, nil
}

// WriteTo implements io.WriterTo.
func (v *verified) WriteTo(w io.Writer) (written int64, err error) {
	for {
		rest, err := v.startWrite()
		if errors.Is(err, io.EOF) {
			return written, nil
		}
		if err != nil {
			return written, err
		}
		n, err := w.Write(rest)
		v.endWrite(n)
		written += int64(n)
		if err != nil {
			return written, err
		}
	}
}

// startWrite returns the bytes from pos to the end of their block, which the writer may read until
// endWrite is called.
func (v *verified) startWrite() ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.load(); err != nil {
		return nil, err
	}
	v.writing = true
	from := v.pos - v.at
	return v.block[from:min(int64(len(v.block)), from+v.end-v.pos)], nil
}

// endWrite adds n, the number of bytes that the writer has written, to pos.
func (v *verified) endWrite(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.writing = false
	v.pos += int64(n)
}

// load reads and verifies the block that contains pos, unless it is in buffer. It returns io.EOF at
// the end of the file. The caller holds mu.
func (v *verified) load() error {
	switch {
	case v.failed != nil:
		return v.failed
	case v.pos >= v.end:
		return io.EOF
	case v.at >= 0 && v.pos >= v.at && v.pos < v.at+int64(len(v.block)):
		return nil
	}
	number := v.pos / blockSize
	size := min(blockSize, v.info.Size()-number*blockSize)
	if v.buffer == nil {
		v.buffer = blocks.Get().(*[blockSize]byte)
	}
	v.at, v.block = -1, v.buffer[:size]
	if v.failed = v.check(number); v.failed != nil {
		return v.failed
	}
	v.at = number * blockSize
	return nil
}

// check reads a block of the file, numbered from 0, into v.block. It removes the digests that do
// not match the block from v.contents, and returns DataLoss if none is left.
func (v *verified) check(number int64) error {
	n, err := v.file.ReadAt(v.block, number*blockSize)
	switch {
	case errors.Is(err, syscall.EIO):
		return v.store.markDamaged(v.key, v.info,
			fmt.Sprintf("the disk cannot read block %d, counting blocks of 1 MiB from 0", number))
	case n < len(v.block) && errors.Is(err, io.EOF):
		return v.store.markDamaged(v.key, v.info, "the file is truncated")
	case n < len(v.block):
		return err
	case v.contents == nil:
		return nil
	}
	sum := checksum(v.block)
	var left []digest
	for _, d := range v.contents {
		if d.blocks[number] == sum {
			left = append(left, d)
		}
	}
	if len(left) == 0 {
		return v.store.markDamaged(v.key, v.info, fmt.Sprintf(
			"block %d, counting blocks of 1 MiB from 0, does not have the content that was stored", number))
	}
	v.contents = left
	return nil
}
