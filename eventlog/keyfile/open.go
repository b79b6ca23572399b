package keyfile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// A Lost describes a record that is damaged in both copies.
type Lost struct {
	Index uint64 // number of the record in the order of writing, from 1
	Key   string // key of the record; "" when the key is damaged too
}

// A LossError is the error of Open for a store with damage that the other copy cannot repair. Lost
// lists the records that are valid in neither copy.
type LossError struct {
	Dir  string
	Lost []Lost
	What string // what is lost, when it is more than single records; otherwise ""
}

func (e *LossError) Error() string {
	const shown = 20
	what := e.What
	if what == "" {
		var names []string
		for i, lost := range e.Lost {
			if i == shown {
				names = append(names, fmt.Sprintf("and %d more records", len(e.Lost)-shown))
				break
			}
			key := lost.Key
			if key == "" {
				key = "key unreadable"
			}
			names = append(names, fmt.Sprintf("record %d (%s)", lost.Index, key))
		}
		what = fmt.Sprintf("%d records are damaged in both keys.1 and keys.2: %s", len(e.Lost), strings.Join(names, ", "))
	}
	return fmt.Sprintf("the key store in %s has lost data: %s; restore the directory from a backup, or create the file "+
		"%s/%s to continue without the lost data", e.Dir, what, e.Dir, acceptFile)
}

// acceptFile is the name of the file by which an operator accepts the loss: while it exists, Open
// opens the store without the lost records.
const acceptFile = "accept-loss"

// A source is one of the two copies as Open found it on disk.
type source struct {
	name    string
	file    file // open file of the copy; nil when the copy is missing
	header  header
	headed  bool // the header of the copy is valid
	mark    mark
	marked  bool // at least one commit mark of the copy is valid
	size    int64
	current bool // the copy belongs to the newest generation
}

type sources [copies]source

func copyName(i int) string { return []string{"keys.1", "keys.2"}[i] }

// find opens both copies and reads their headers. A missing copy has a nil file.
func find(d disk) (found sources, err error) {
	for i := range found {
		s := &found[i]
		s.name = copyName(i)
		if s.file, err = d.open(s.name, false); errors.Is(err, fs.ErrNotExist) {
			s.file = nil
			continue
		}
		if err == nil {
			s.size, err = s.file.Size()
		}
		if err != nil {
			found.close()
			return found, fmt.Errorf("keyfile: open %s: %w", s.name, err)
		}
		s.header, s.headed = readHeader(s.file)
	}
	return found, nil
}

func (found sources) close() {
	for _, s := range found {
		if s.file != nil {
			_ = s.file.Close()
		}
	}
}

// value reads the value of a record from one of the copies. It returns ErrDamaged when the value is
// valid in neither.
func (found sources) value(h header, rec record) ([]byte, error) {
	for _, s := range found {
		if !s.current {
			continue
		}
		if value, ok := readValue(s.file, h, rec); ok {
			return value, nil
		}
	}
	return nil, ErrDamaged
}

// A recovery combines the content of the two copies.
type recovery struct {
	found    sources
	wipe     bool
	header   header
	mark     mark   // newest commit mark; after scan, the mark of the records that scan has read
	required uint64 // number of records that were certainly acknowledged and must therefore be valid
	live     map[string]*entry
	garbage  int64
	lost     []Lost
	unmarked bool     // no commit mark is valid, so it is unknown how many records there were
	reasons  []string // why both copies are rewritten; empty when they are intact
}

func (r *recovery) repair(reason string) {
	if !slices.Contains(r.reasons, reason) {
		r.reasons = append(r.reasons, reason)
	}
}

// merge combines the copies of the newest generation. A commit is synced to the first copy, then to
// the second, and then acknowledged. So the records of a commit that is in both copies are
// required. The records of a commit that is in only one copy may not have been acknowledged; they
// are kept if they are valid.
func merge(found sources, wipe bool) *recovery {
	r := &recovery{found: found, wipe: wipe, live: map[string]*entry{}}
	for _, s := range found {
		if s.headed && s.header.generation >= r.header.generation {
			r.header = s.header
		}
	}
	marked := false
	for i := range r.found {
		s := &r.found[i]
		// A copy with a damaged header is used as well: its sums include the salt of the other copy's
		// header, and so show which records belong to the same generation.
		s.current = s.file != nil && (!s.headed || s.header == r.header)
		switch {
		case s.file == nil:
			r.repair(s.name + " is missing")
		case !s.headed:
			r.repair("the header of " + s.name + " is damaged")
		case !s.current:
			r.repair(s.name + " was left by an interrupted compaction")
		}
		if !s.current {
			continue
		}
		damaged := false
		if s.mark, s.marked, damaged = readMark(s.file, r.header); damaged {
			r.repair("a commit mark of " + s.name + " is damaged or its write was interrupted")
		}
		if !s.marked {
			continue
		}
		if !marked {
			r.required, r.mark = s.mark.records, s.mark
		} else if s.mark != r.mark {
			r.repair("a crash interrupted the last write: keys.1 and keys.2 differ")
		}
		r.required = min(r.required, s.mark.records)
		if s.mark.commit > r.mark.commit {
			r.mark = s.mark
		}
		marked = true
	}
	if !marked {
		r.unmarked = true
	}
	r.scan()
	return r
}

// scan reads the records in order, each from a copy in which it is valid. It adds to lost the
// required records that are valid in neither copy.
func (r *recovery) scan() {
	at, index, chain := int64(recordsAt), uint64(1), sum{}
	broken := false // a record is missing, so the chain of sums cannot be checked from here on
	for {
		rec, have := r.headAt(at, index)
		if index > r.required && !(have && r.isValid(rec)) {
			break // an interrupted write, which was not acknowledged
		}
		if !have {
			rec, have = r.resync(at, index)
			for lost := index; lost <= r.required && (!have || lost < rec.index); lost++ {
				r.lost = append(r.lost, Lost{Index: lost})
			}
			if broken = true; !have {
				break
			}
		}
		chain = chained(chain, rec)
		r.replay(rec)
		at, index = rec.end(), rec.index+1
		if rec.index == r.mark.records && !broken && chain != r.mark.chain {
			r.lost = append(r.lost, Lost{Index: rec.index, Key: "running checksum"})
		}
	}
	for _, s := range r.found {
		if s.current && s.size != at {
			r.repair(s.name + " is cut off, or has a damaged end")
		}
	}
	if index-1 != r.mark.records {
		r.repair("the last write was not completed")
	}
	r.mark.records, r.mark.end, r.mark.chain = index-1, uint64(at), chain
	for key, e := range r.live {
		if !e.intact {
			r.lost = append(r.lost, Lost{e.index, key})
			delete(r.live, key)
		}
	}
	slices.SortFunc(r.lost, func(a, b Lost) int { return cmp.Compare(a.Index, b.Index) })
}

// headAt reads the record at an offset, without its value, from a copy in which it is valid. The
// record must have the given index; 0 accepts any. have is false when neither copy has such a
// record.
func (r *recovery) headAt(offset int64, index uint64) (rec record, have bool) {
	missing := ""
	for _, s := range r.found {
		if !s.current {
			continue
		}
		one, err := readRecord(s.file, r.header, offset)
		if err != nil || index > 0 && one.index != index {
			missing = s.name
			continue
		}
		rec, have = one, true
	}
	if have && missing != "" {
		r.repair("records of " + missing + " are damaged or their write was interrupted")
	}
	return rec, have
}

// isValid reports whether the value of a record is valid in at least one copy.
func (r *recovery) isValid(rec record) bool {
	_, err := r.found.value(r.header, rec)
	return err == nil
}

// resync finds the next record after a part that is damaged in both copies. It returns the first
// valid record whose offset and index are greater than the given ones;
// false when there is none.
func (r *recovery) resync(offset int64, index uint64) (record, bool) {
	for offset++; offset+recordHead <= max(r.found[0].size, r.found[1].size); offset++ {
		if rec, ok := r.headAt(offset, 0); ok && rec.index > index {
			return rec, true
		}
	}
	return record{}, false
}

// replay applies a record to the live entries: it sets or erases the value of the record's key.
func (r *recovery) replay(rec record) {
	r.mark.revision = max(r.mark.revision, rec.revision)
	if before := r.live[rec.key]; before != nil {
		r.garbage += before.end() - before.at
		if r.wipe && !r.wiped(before.record) {
			r.repair("an erased or replaced value was not overwritten with zeros")
		}
		delete(r.live, rec.key)
	}
	if rec.kind != kindPut {
		r.garbage += rec.end() - rec.at
		return
	}
	e := &entry{record: rec}
	r.live[rec.key] = e
	for _, s := range r.found {
		if !s.current {
			continue
		}
		if _, ok := readValue(s.file, r.header, rec); ok {
			e.intact = true
		} else { // the value is damaged, or it was overwritten because a later record replaces it
			e.flawed = s.name
		}
	}
}

// wiped reports whether the value of a record is overwritten with zeros in every current copy.
func (r *recovery) wiped(rec record) bool {
	for _, s := range r.found {
		if !s.current {
			continue
		}
		value := make([]byte, min(rec.size, maxValueSize))
		_, _ = s.file.ReadAt(value, rec.valueAt())
		for _, b := range value {
			if b != 0 {
				return false
			}
		}
	}
	return true
}
