package transparency

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/mod/sumdb/tlog"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog/integrity"
)

// A record is what the tree's file has for each event: the entry, which is public, and fields that
// only the server uses.
type record struct {
	Entry
	account  accountTag
	sequence uint64 // number of the event among the account's events, from 1
	previous uint64 // position of the account's previous event; 0 for the first
}

// An accountTag identifies an account in the tree's file: the first bytes of the SHA-256 of its
// name.
type accountTag [16]byte

func tagOf(account []byte) (tag accountTag) {
	sum := sha256.Sum256(account)
	copy(tag[:], sum[:])
	return tag
}

const (
	recordSize  = EntrySize + 16 + 8 + 8 + 4
	blockSize   = 256 // number of leaves in a block, as in a tile
	blockHeight = 8

	maxSpare = 1 << 20 // maximum size in bytes of the memory that Flush keeps for the next records
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (r record) append(b []byte) []byte {
	begin := len(b)
	b = append(r.Entry.Append(b), r.account[:]...)
	b = binary.BigEndian.AppendUint64(b, r.sequence)
	b = binary.BigEndian.AppendUint64(b, r.previous)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[begin:], castagnoli))
}

func decodeRecord(b []byte) (r record, ok bool) {
	if len(b) != recordSize ||
		crc32.Checksum(b[:recordSize-4], castagnoli) != binary.BigEndian.Uint32(b[recordSize-4:]) {
		return r, false
	}
	if r.Entry, ok = decodeEntry(b[:EntrySize]); !ok {
		return r, false
	}
	b = b[EntrySize+copy(r.account[:], b[EntrySize:]):]
	r.sequence, r.previous = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	return r, true
}

// A newestEvent describes the newest event of an account in the tree.
type newestEvent struct {
	sequence uint64 // number of the event among the account's events
	position uint64 // log position of the event
	leaf     tlog.Hash
}

// A Tree is a Merkle tree whose entries are in an append-only file. One goroutine may append; any
// number of goroutines may read what was flushed.
type Tree struct {
	path  string
	space *disk.Space // free space of the disk with the file

	mu       sync.RWMutex
	file     *os.File
	size     uint64        // number of entries in the tree
	written  uint64        // number of entries that are in the file
	pending  []byte        // records that are not in the file yet
	spare    []byte        // memory for pending after the next Flush
	tail     []tlog.Hash   // leaf hashes of the last, incomplete block
	levels   [][]tlog.Hash // levels[i] has the hashes of the complete subtrees with 2^(8+i) leaves
	accounts map[accountTag]*newestEvent
}

// OpenTree opens the tree in the file at path, or creates it. It cuts the file off at the first
// record that is incomplete or damaged, and returns the number of removed bytes. The caller must
// append the events of the removed records again.
func OpenTree(path string) (t *Tree, removed int64, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, 0, err
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, 0, err
	}
	t = &Tree{path: path, file: file, space: disk.On(filepath.Dir(path)), accounts: map[accountTag]*newestEvent{}}
	if removed, err = t.load(); err != nil {
		file.Close()
		return nil, 0, err
	}
	return t, removed, disk.Sync(filepath.Dir(path))
}

func (t *Tree) load() (removed int64, err error) {
	in := bufio.NewReaderSize(t.file, blockSize*recordSize)
	b := make([]byte, recordSize)
	for {
		_, err := io.ReadFull(in, b)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return 0, err
		}
		r, ok := decodeRecord(b)
		newest := t.newest(r.account)
		if err != nil || !ok || r.Position != t.size+1 || r.sequence != newest.sequence+1 ||
			r.previous != newest.position {
			break
		}
		t.add(r, newest)
	}
	t.written = t.size
	info, err := t.file.Stat()
	if err != nil {
		return 0, err
	}
	end := int64(t.size) * recordSize
	if removed = info.Size() - end; removed > 0 {
		err = t.file.Truncate(end)
	}
	return removed, err
}

// newest returns the newest event of an account; one with zeros when the account has none. Only the
// goroutine that appends may call it.
func (t *Tree) newest(account accountTag) *newestEvent {
	newest := t.accounts[account]
	if newest == nil {
		newest = &newestEvent{}
		t.accounts[account] = newest
	}
	return newest
}

// Close closes the tree's file.
func (t *Tree) Close() error { return t.file.Close() }

// Size returns the number of entries, which is the number of events in the tree.
func (t *Tree) Size() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.size
}

// Append appends the entry of the next event to the tree. Flush writes it to the file.
func (t *Tree) Append(m integrity.Message, salts Salts) error {
	e := encodeEvent(m)
	return t.append(e, tagOf(e.account()), salts)
}

func (t *Tree) append(e encodedEvent, account accountTag, salts Salts) error {
	if e.position != t.size+1 {
		return integrity.GapError(t.size+1, e.position)
	}
	newest := t.newest(account)
	link := Link{newest.sequence + 1, newest.leaf}
	r := record{Entry: e.entry(salts, link), account: account, sequence: link.Sequence, previous: newest.position}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.add(r, newest)
	t.pending = r.append(t.pending)
	return nil
}

// add adds a record's leaf to the tree's hashes in memory. newest is the newest event of the
// record's account, which add updates.
func (t *Tree) add(r record, newest *newestEvent) {
	leaf := r.Leaf()
	t.size++
	*newest = newestEvent{r.sequence, r.Position, leaf}
	if t.tail = append(t.tail, leaf); len(t.tail) < blockSize {
		return
	}
	hash := rootOf(t.tail)
	t.tail = t.tail[:0]
	for level := 0; ; level++ {
		if level == len(t.levels) {
			t.levels = append(t.levels, nil)
		}
		t.levels[level] = append(t.levels[level], hash)
		n := len(t.levels[level])
		if n%2 != 0 {
			return
		}
		hash = nodeHash(t.levels[level][n-2], hash)
	}
}

// rootOf returns the root hash of a subtree. The number of leaves is a power of two.
func rootOf(leaves []tlog.Hash) tlog.Hash {
	if len(leaves) == 1 {
		return leaves[0]
	}
	half := len(leaves) / 2
	return nodeHash(rootOf(leaves[:half]), rootOf(leaves[half:]))
}

// Flush writes the appended records to the file and syncs it.
func (t *Tree) Flush() error {
	t.mu.Lock()
	pending, at, size := t.pending, int64(t.written)*recordSize, t.size
	t.pending, t.spare = t.spare, nil
	t.mu.Unlock()
	if len(pending) == 0 {
		return nil
	}
	done, err := t.space.Reserve(disk.Files, int64(len(pending)))
	if err == nil {
		_, err = t.file.WriteAt(pending, at)
		done()
	}
	if err == nil {
		err = disk.Fdatasync(t.file)
	}
	if err != nil {
		return fmt.Errorf("write the file %s of the log's Merkle tree: %w", t.path, err)
	}
	t.mu.Lock()
	t.written = size
	if cap(pending) <= maxSpare {
		t.spare = pending[:0]
	}
	t.mu.Unlock()
	return nil
}

// Root returns the root hash of the tree of the first size entries.
func (t *Tree) Root(size uint64) (tlog.Hash, error) { return tlog.TreeHash(int64(size), t) }

// ReadHashes implements tlog.HashReader. It computes the hashes of subtrees of fewer than 256
// leaves from the file, and compares the hash of each complete block that it reads with the one in
// memory.
func (t *Tree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	hashes, blocks := make([]tlog.Hash, 0, len(indexes)), map[uint64][]tlog.Hash{}
	for _, index := range indexes {
		level, n := tlog.SplitStoredHashIndex(index)
		if level >= blockHeight {
			hash, ok := t.high(level-blockHeight, n)
			if !ok {
				return nil, fmt.Errorf("the Merkle tree has no hash with index %d at level %d", n, level)
			}
			hashes = append(hashes, hash)
			continue
		}
		first := uint64(n) << level
		block := first / blockSize
		leaves, ok := blocks[block]
		if !ok {
			var err error
			if leaves, err = t.leaves(block); err != nil {
				return nil, err
			}
			blocks[block] = leaves
		}
		from := first % blockSize
		if from+1<<level > uint64(len(leaves)) {
			return nil, fmt.Errorf("the Merkle tree has no hash with index %d at level %d", n, level)
		}
		hashes = append(hashes, rootOf(leaves[from:from+1<<level]))
	}
	return hashes, nil
}

func (t *Tree) high(level int, n int64) (hash tlog.Hash, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if level >= len(t.levels) || n >= int64(len(t.levels[level])) {
		return hash, false
	}
	return t.levels[level][n], true
}

// leaves returns the leaf hashes of a block, those of the last block from memory and others from
// the file. The file may not have all of them yet.
func (t *Tree) leaves(block uint64) ([]tlog.Hash, error) {
	t.mu.RLock()
	if block == t.size/blockSize {
		defer t.mu.RUnlock()
		return append([]tlog.Hash{}, t.tail...), nil
	}
	n := min(blockSize, t.written-min(t.written, block*blockSize))
	t.mu.RUnlock()
	records, err := t.records(block*blockSize, n)
	if err != nil {
		return nil, err
	}
	leaves := make([]tlog.Hash, 0, n)
	for _, r := range records {
		leaves = append(leaves, r.Leaf())
	}
	if want, ok := t.high(0, int64(block)); n == blockSize && (!ok || rootOf(leaves) != want) {
		return nil, t.damaged(block*blockSize+1, (block+1)*blockSize)
	}
	return leaves, nil
}

func (t *Tree) damaged(first, last uint64) error {
	return domain.Errorf(domain.DataLoss, "%s is damaged between positions %d and %d: restart the server, which computes "+
		"the entries again from the log", t.path, first, last)
}

// records returns n records of the file, from an index on.
func (t *Tree) records(index, n uint64) ([]record, error) {
	t.mu.RLock()
	written := t.written
	t.mu.RUnlock()
	if index+n > written {
		return nil, domain.Errorf(domain.NotFound, "the Merkle tree has %d entries, but not yet entry %d: try "+
			"again", written, index+n-1)
	}
	b := make([]byte, n*recordSize)
	if _, err := t.file.ReadAt(b, int64(index)*recordSize); err != nil {
		return nil, fmt.Errorf("read the file %s of the log's Merkle tree: %w", t.path, err)
	}
	records := make([]record, 0, n)
	for i := range n {
		r, ok := decodeRecord(b[i*recordSize : (i+1)*recordSize])
		if !ok || r.Position != index+i+1 {
			return nil, t.damaged(index+i+1, index+i+1)
		}
		records = append(records, r)
	}
	return records, nil
}

// Entry returns the entry and the link of the event at a position.
func (t *Tree) Entry(position uint64) (e Entry, link Link, err error) {
	if position == 0 {
		return e, link, domain.Errorf(domain.NotFound, "position 0 has no event: positions begin with 1")
	}
	found, err := t.records(position-1, 1)
	if err != nil {
		return e, link, err
	}
	e, link.Sequence = found[0].Entry, found[0].sequence
	if found[0].previous > 0 {
		before, err := t.records(found[0].previous-1, 1)
		if err != nil {
			return e, link, err
		}
		link.Previous = before[0].Leaf()
	}
	return e, link, nil
}
