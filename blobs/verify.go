package blobs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"anneal/domain"
)

// A Content is what is stored under a key, open for reading. What is read from a
// folder is verified block by block before it is answered: a damaged one is
// DataLoss, and nothing of it is answered.
type Content interface {
	io.ReadSeekCloser
	Size() int64 // bytes
	ModTime() time.Time
}

// verified reads a file of a folder.
type verified struct {
	folder   *folder
	key      string
	file     *os.File
	info     os.FileInfo
	contents []digest // of which what was read until now is one; nil: not verified
	pos, end int64
	at       int64  // where the block in buffer begins; -1: none is
	block    []byte // of what lies in buffer, or is small
	buffer   *[blockSize]byte
	failed   error
}

// open opens a file with a record of what it holds.
func (f *folder) open(key string) (*verified, error) {
	for range removals {
		v, err := f.tryOpen(key)
		if v != nil || err != nil {
			return v, err
		}
	}
	return nil, domain.Errorf(domain.Unavailable, "%s is being written: try again", key)
}

// tryOpen answers nil when the file was replaced meanwhile: the record may be
// that of the other content.
func (f *folder) tryOpen(key string) (v *verified, err error) {
	file, err := os.Open(f.path(key))
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
	now, gone := os.Stat(f.path(key))
	if gone != nil || !os.SameFile(info, now) {
		return nil, nil
	}
	v = &verified{folder: f, key: key, file: file, info: info, end: info.Size(), at: -1}
	if errors.Is(err, errNoRecord) && f.isEarlier(key, info.Size()) {
		return v, nil
	}
	if err == nil {
		err = f.known(key, info)
	}
	v.contents = ofLength(contents, info.Size())
	switch {
	case errors.Is(err, errNoRecord), errors.Is(err, errBrokenRecord):
		return nil, damaged(key, err.Error())
	case err != nil:
		return nil, err
	case len(v.contents) == 0:
		return nil, damaged(key, fmt.Sprintf("it has %d bytes, and is not what was stored", info.Size()))
	}
	return v, nil
}

// Size implements Content.
func (v *verified) Size() int64 { return v.info.Size() }

// ModTime implements Content.
func (v *verified) ModTime() time.Time { return v.info.ModTime() }

// Close implements io.Closer.
func (v *verified) Close() error {
	if v.buffer != nil {
		blocks.Put(v.buffer)
		v.buffer = nil
	}
	v.at, v.block, v.failed = -1, nil, os.ErrClosed
	return v.file.Close()
}

// Seek implements io.Seeker.
func (v *verified) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += v.pos
	case io.SeekEnd:
		offset += v.info.Size()
	}
	if offset < 0 {
		return 0, fmt.Errorf("file %s: seek to %d", v.key, offset)
	}
	v.pos = offset
	return offset, nil
}

// Read implements io.Reader.
func (v *verified) Read(p []byte) (int, error) {
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
		if err := v.load(); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return written, err
		}
		from := v.pos - v.at
		n, err := w.Write(v.block[from:min(int64(len(v.block)), from+v.end-v.pos)])
		v.pos, written = v.pos+int64(n), written+int64(n)
		if err != nil {
			return written, err
		}
	}
}

// load has the block that is read next in memory, verified; io.EOF is the end.
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

// check reads a block and compares it with its digest.
func (v *verified) check(number int64) error {
	n, err := v.file.ReadAt(v.block, number*blockSize)
	switch {
	case errors.Is(err, syscall.EIO):
		return v.folder.found(v.key, v.info, fmt.Sprintf("the disk cannot read block %d of 1 MiB", number))
	case n < len(v.block) && errors.Is(err, io.EOF):
		return v.folder.found(v.key, v.info, "it is cut off")
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
		return v.folder.found(v.key, v.info, fmt.Sprintf("block %d of 1 MiB is not what was stored", number))
	}
	v.contents = left
	return nil
}
