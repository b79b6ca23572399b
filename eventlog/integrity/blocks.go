package integrity

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/minio/highwayhash"
)

// A record is one message in a block file, as nats-server 2.15 writes it when neither compressed
// nor encrypted:
//
//	length(4; top bit: has a header) position(8) time(8) subjectLength(2)
//	subject [headerLength(4) header] body hash(8)
//
// All integers are little-endian. The hash is HighwayHash-64 over position,
// time, subject, header and body; its key is the SHA-256 of "STREAM-BLOCK".
type record struct {
	position uint64
	time     uint64
	subject  []byte
	header   []byte
	body     []byte
	raw      []byte // the encoded record, including its length and hash
	at       int64  // offset of the record in its block file
}

const (
	recordHead = 22
	recordHash = 8
	maxRecord  = 32 << 20
	headerFlag = 1 << 31
	// positionMarks are the bits that the NATS server sets in the positions of erased messages and of
	// tombstones.
	positionMarks = 3 << 62
	// maxSkip is how many positions may be missing between a damaged record and the next record that
	// find accepts.
	maxSkip = 1 << 24
)

// stored returns the record as a Message. ok is false when the NATS header in the record is
// invalid.
func (r record) stored() (Message, bool) {
	header, ok := attributesOf(r.header)
	return Message{r.position, string(r.subject), header, r.body}, ok
}

// A blockHash computes the checksums of the records in one block file. Its key depends on the
// stream and the block's number.
type blockHash struct{ hash.Hash }

func hashOf(stream string, number int) blockHash {
	key := sha256.Sum256([]byte(stream + "-" + strconv.Itoa(number)))
	h, err := highwayhash.NewDigest64(key[:])
	if err != nil {
		panic(err) // cannot happen: the key has the length that NewDigest64 requires
	}
	return blockHash{h}
}

func (h blockHash) of(head, subject, header, body []byte) (sum [recordHash]byte) {
	h.Reset()
	_, _ = h.Write(head)
	_, _ = h.Write(subject)
	_, _ = h.Write(header)
	_, _ = h.Write(body)
	h.Sum(sum[:0])
	return sum
}

// next decodes the record at the beginning of b. reason says why the record is invalid; "" means
// that it is valid.
func (h blockHash) next(b []byte) (r record, reason string) {
	if len(b) < recordHead {
		return r, "an incomplete record"
	}
	le := binary.LittleEndian
	length := le.Uint32(b)
	withHeader := length&headerFlag != 0
	length &^= headerFlag
	subject := int(le.Uint16(b[20:]))
	if int(length) < recordHead+subject+recordHash || length > maxRecord || int(length) > len(b) {
		return r, "a record with an impossible length"
	}
	r = record{position: le.Uint64(b[4:]), time: le.Uint64(b[12:]), raw: b[:length]}
	rest := b[recordHead : length-recordHash]
	r.subject, rest = rest[:subject], rest[subject:]
	if withHeader {
		if len(rest) < 4 || uint64(le.Uint32(rest)) > uint64(len(rest)-4) {
			return r, "a record with an impossible header length"
		}
		size := le.Uint32(rest)
		r.header, rest = rest[4:4+size], rest[4+size:]
		if !bytes.HasSuffix(r.header, []byte("\r\n\r\n")) {
			return r, "a record with an incomplete header"
		}
	}
	r.body = rest
	sum := h.of(b[4:20], r.subject, r.header, r.body)
	if !bytes.Equal(sum[:], r.raw[length-recordHash:]) {
		return r, "a record with a wrong checksum"
	}
	return r, ""
}

// find returns the offset in b of the first valid record with a position after previous, by at most
// maxSkip. It returns -1 when there is none. It is used to find the next record after damage.
func (h blockHash) find(b []byte, previous uint64) int {
	le := binary.LittleEndian
	for at := 0; at+recordHead+recordHash <= len(b); at++ {
		length := int(le.Uint32(b[at:]) &^ headerFlag)
		position := le.Uint64(b[at+4:]) &^ positionMarks
		if length < recordHead+recordHash || at+length > len(b) || position <= previous || position > previous+maxSkip {
			continue
		}
		if _, reason := h.next(b[at:]); reason == "" {
			return at
		}
	}
	return -1
}

// A block is one block file of the NATS server, which has consecutive records of a stream.
type block struct {
	path   string
	number int
	size   int64
}

// BlockDir returns the directory with the block files of a stream. store is the storage directory
// of the embedded NATS server, and account the stream's NATS account.
func BlockDir(store, account, stream string) string {
	return filepath.Join(store, "jetstream", account, "streams", stream, "msgs")
}

// blocksOf returns the block files in the directory dir, ordered by their numbers. It returns none
// when the directory does not exist.
func blocksOf(dir string) (all []block, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		name, isBlock := strings.CutSuffix(entry.Name(), ".blk")
		number, err := strconv.Atoi(name)
		if !isBlock || err != nil || number < 1 {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			return nil, err
		}
		all = append(all, block{filepath.Join(dir, entry.Name()), number, info.Size()})
	}
	slices.SortFunc(all, func(a, b block) int { return a.number - b.number })
	return all, nil
}

// first returns the position of the first record in the block file; 0 when the file is empty or
// cannot be read.
func (b block) first() uint64 {
	file, err := os.Open(b.path)
	if err != nil {
		return 0
	}
	defer file.Close()
	var head [recordHead]byte
	if _, err := io.ReadFull(file, head[:]); err != nil {
		return 0
	}
	return binary.LittleEndian.Uint64(head[4:]) &^ positionMarks
}

// A flaw is a damaged part of a block file: bytes that are no valid record.
type flaw struct {
	path   string
	offset int64
	end    int64  // offset of the next valid record, or the length of the file
	last   bool   // no valid record follows in the block file
	reason string // why the record at offset is invalid
}

func (f flaw) String() string {
	return fmt.Sprintf("%s at byte %d of %s", f.reason, f.offset, f.path)
}

// scan reads the block file. In the order of their offsets, it calls visit for every valid record
// and flawed for every damaged part. It skips tombstones of the NATS server. previous is the
// position before the block's first record, from which it searches for records after damage. It
// returns the bytes of the file, which the records refer to.
func (b block) scan(stream string, previous uint64, visit func(record), flawed func(flaw)) (content []byte, err error) {
	content, err = os.ReadFile(b.path)
	if err != nil {
		return nil, err
	}
	sums := hashOf(stream, b.number)
	for at := 0; at < len(content); {
		r, reason := sums.next(content[at:])
		if reason != "" {
			next := sums.find(content[at+1:], previous)
			f := flaw{path: b.path, offset: int64(at), end: int64(len(content)), last: next < 0, reason: reason}
			if next >= 0 {
				f.end = int64(at + 1 + next)
			}
			flawed(f)
			at = int(f.end)
			continue
		}
		r.at = int64(at)
		at += len(r.raw)
		if r.position == 0 || r.position&positionMarks != 0 {
			continue
		}
		previous = r.position
		visit(r)
	}
	return content, nil
}

// appendRecord appends the encoded record r to dst and returns the result. sums computes the
// checksums of the block file to which the record is written.
func appendRecord(dst []byte, sums blockHash, r record) []byte {
	le, begin := binary.LittleEndian, len(dst)
	length := uint32(recordHead + len(r.subject) + len(r.header) + len(r.body) + recordHash)
	if len(r.header) > 0 {
		length = length + 4 | headerFlag
	}
	dst = le.AppendUint32(dst, length)
	dst = le.AppendUint64(dst, r.position)
	dst = le.AppendUint64(dst, r.time)
	dst = le.AppendUint16(dst, uint16(len(r.subject)))
	dst = append(dst, r.subject...)
	if len(r.header) > 0 {
		dst = append(le.AppendUint32(dst, uint32(len(r.header))), r.header...)
	}
	dst = append(dst, r.body...)
	sum := sums.of(dst[begin+4:begin+20], r.subject, r.header, r.body)
	return append(dst, sum[:]...)
}

// foreign returns a reason why this package cannot read the files of a stream, for example that
// they are encrypted. It returns "" when it can read them, or when there are no files.
func foreign(dir string) string {
	if _, err := os.Stat(filepath.Join(filepath.Dir(dir), "meta.key")); err == nil {
		return "its block files are encrypted"
	}
	all, err := blocksOf(dir)
	if err != nil {
		return ""
	}
	if len(all) == 0 {
		entries, _ := os.ReadDir(dir)
		for _, entry := range entries {
			if entry.Name() != "index.db" {
				return "it has no block files, but the file " + entry.Name()
			}
		}
		return ""
	}
	file, err := os.Open(all[0].path)
	if err != nil {
		return ""
	}
	defer file.Close()
	var head [4]byte
	if _, err := io.ReadFull(file, head[:]); err == nil && bytes.HasPrefix(head[:], []byte("cmp")) && head[3] <= 2 {
		return "its block files are compressed"
	}
	return ""
}
