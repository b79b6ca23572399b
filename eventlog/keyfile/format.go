package keyfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
)

// A store has two copies of the same content. A copy is a header, two marks and the records.
// Integers are little-endian. Every sum is the beginning of a SHA-256. All sums except the header's
// include the header's salt, so that no record of another generation is valid.
//
//	0     header: magic 8, generation 8, salt 16, sum 16
//	512   mark: commit 8, records 8, end 8, revision 8, chain 16, sum 16
//	1024  a second mark; commits alternate between the two marks
//	1536  records, one after another:
//	      magic 4, kind 1, 0, key length 2, value length 4, index 8, revision 8,
//	      time 8, sum of the value 16; the key; sum of all that 16; the value
//
// The chain of a mark is a running sum over the records' sums, and records is
// their number, so that a missing tail is noticed.
const (
	headerSize   = 48
	markSize     = 64
	markAt       = 512
	recordsAt    = 3 * 512
	recordHead   = 52
	sumSize      = 16
	maxKey       = 1 << 10
	fileMagic    = "ANNEALK1"
	recordMagic  = 0x4b65_79a1
	kindPut      = 1
	kindErase    = 2
	markSlots    = 2
	copies       = 2
	maxValueSize = 64 << 20
)

type sum [sumSize]byte

func sumOf(parts ...[]byte) (s sum) {
	h := sha256.New()
	for _, part := range parts {
		h.Write(part)
	}
	copy(s[:], h.Sum(nil))
	return s
}

type header struct {
	generation uint64
	salt       [16]byte
}

func (h header) encode() []byte {
	b := append([]byte(fileMagic), make([]byte, 8)...)
	binary.LittleEndian.PutUint64(b[8:], h.generation)
	b = append(b, h.salt[:]...)
	check := sumOf(b)
	return append(b, check[:]...)
}

func readHeader(r io.ReaderAt) (h header, ok bool) {
	b := make([]byte, headerSize)
	if n, _ := r.ReadAt(b, 0); n < headerSize || string(b[:8]) != fileMagic {
		return h, false
	}
	check := sumOf(b[:headerSize-sumSize])
	if !bytes.Equal(check[:], b[headerSize-sumSize:]) {
		return h, false
	}
	h.generation = binary.LittleEndian.Uint64(b[8:])
	copy(h.salt[:], b[16:])
	return h, true
}

// A mark (commit mark) describes the content of a copy after a commit: the numbers of commits and
// records, the end of the records in bytes, the highest revision, and the chain of sums.
type mark struct {
	commit, records, end, revision uint64
	chain                          sum
}

func (m mark) encode(h header) []byte {
	b := make([]byte, 0, markSize)
	for _, n := range []uint64{m.commit, m.records, m.end, m.revision} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	b = append(b, m.chain[:]...)
	check := sumOf(h.salt[:], b)
	return append(b, check[:]...)
}

// offset returns the offset of the commit mark in the copy.
func (m mark) offset() int64 { return markAt * int64(1+m.commit%markSlots) }

// readMark returns the newest valid commit mark of a copy with the header h. ok is false when both
// marks are invalid; damaged is true when at least one is.
func readMark(r io.ReaderAt, h header) (m mark, ok, damaged bool) {
	for slot := range int64(markSlots) {
		b := make([]byte, markSize)
		n, _ := r.ReadAt(b, markAt*(1+slot))
		check := sumOf(h.salt[:], b[:markSize-sumSize])
		if n < markSize || !bytes.Equal(check[:], b[markSize-sumSize:]) {
			damaged = true
			continue
		}
		at := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
		if one := (mark{at(0), at(1), at(2), at(3), sum(b[32:48])}); !ok || one.commit > m.commit {
			m, ok = one, true
		}
	}
	return m, ok, damaged
}

// A record describes a stored record without its value, which is read from disk when needed.
type record struct {
	kind            byte
	key             string
	index, revision uint64
	time            int64 // when the record was written, in nanoseconds since 1970
	size            uint32
	valueSum        sum
	check           sum
	at              int64 // offset of the record, the same in both copies
}

func (r record) headSize() int64 { return recordHead + int64(len(r.key)) + sumSize }
func (r record) valueAt() int64  { return r.at + r.headSize() }
func (r record) end() int64      { return r.valueAt() + int64(r.size) }

// encode sets the size and the sums of the record for a value, and returns the bytes that precede
// the value in a copy: head, key and sum.
func (r *record) encode(h header, value []byte) []byte {
	r.size = uint32(len(value))
	r.valueSum = sumOf(h.salt[:], value)
	b := make([]byte, 0, r.headSize())
	b = binary.LittleEndian.AppendUint32(b, recordMagic)
	b = append(b, r.kind, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(r.key)))
	b = binary.LittleEndian.AppendUint32(b, r.size)
	for _, n := range []uint64{r.index, r.revision, uint64(r.time)} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	b = append(b, r.valueSum[:]...)
	b = append(b, r.key...)
	r.check = sumOf(h.salt[:], b)
	return append(b, r.check[:]...)
}

var errNoRecord = errors.New("keyfile: no valid record at this offset")

// readRecord reads the record at an offset of a copy, without its value. It returns errNoRecord
// when there is no valid record.
func readRecord(source io.ReaderAt, h header, offset int64) (r record, err error) {
	b := make([]byte, recordHead)
	if n, _ := source.ReadAt(b, offset); n < recordHead || binary.LittleEndian.Uint32(b) != recordMagic {
		return r, errNoRecord
	}
	keySize := int(binary.LittleEndian.Uint16(b[6:]))
	rest := make([]byte, keySize+sumSize)
	if n, _ := source.ReadAt(rest, offset+recordHead); keySize > maxKey || n < len(rest) {
		return r, errNoRecord
	}
	r.check = sumOf(h.salt[:], b, rest[:keySize])
	if !bytes.Equal(r.check[:], rest[keySize:]) {
		return r, errNoRecord
	}
	at64 := func(i int) uint64 { return binary.LittleEndian.Uint64(b[12+8*i:]) }
	r.kind, r.key, r.size = b[4], string(rest[:keySize]), binary.LittleEndian.Uint32(b[8:])
	r.index, r.revision, r.time, r.at = at64(0), at64(1), int64(at64(2)), offset
	copy(r.valueSum[:], b[36:])
	return r, nil
}

// readValue reads the value of a record from a copy. ok is false when the value is missing or
// damaged.
func readValue(source io.ReaderAt, h header, r record) ([]byte, bool) {
	if r.size > maxValueSize {
		return nil, false
	}
	value := make([]byte, r.size)
	if n, _ := source.ReadAt(value, r.valueAt()); n < len(value) {
		return nil, false
	}
	return value, sumOf(h.salt[:], value) == r.valueSum
}

// chained returns the running sum after record r; chain is the sum before r.
func chained(chain sum, r record) sum { return sumOf(chain[:], r.check[:]) }
