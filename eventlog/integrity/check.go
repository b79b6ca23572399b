package integrity

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"anneal/disk"
	"anneal/domain"
)

// fullCheckBytes is the size in bytes up to which all of a mirror of the log, or of a stream of
// records, is read before the server starts.
const fullCheckBytes = 1 << 30

// A Gap is a range of positions of the log for which there is no valid event.
type Gap struct {
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
	Reason string `json:"reason"`
}

func (g Gap) String() string {
	if g.First == g.Last {
		return fmt.Sprintf("position %d (%s)", g.First, g.Reason)
	}
	return fmt.Sprintf("positions %d to %d (%s)", g.First, g.Last, g.Reason)
}

// A survey is what surveyor.survey found in the block files of a log.
type survey struct {
	chain HashChain // hash chain over all events before the first gap
	last  uint64    // highest position of a valid record
	gaps  []Gap     // gaps before the position last
	// damaged parts in the order of their offsets; each causes a gap, except one at the end of the
	// last block file
	flaws   []flaw
	marked  HashChain  // hash chain at the position of the high-water mark; zero when no valid event was found there
	witness Checkpoint // event that was found at the position of surveyor.witness
	batch   string     // ID of a batch of events whose last event is missing at the end of the log; "" when there is none
	torn    []uint64   // last position of each earlier batch whose last event is missing
	files   []surveyed // every block file in order, with a summary of its records
}

// A surveyed is a block file with a summary of its records.
type surveyed struct {
	block
	first, last uint64 // positions of the first and last record in the file; 0 when it has none
	validBytes  int64  // number of bytes before the first damaged part
}

// A surveyor reads the block files of a log.
type surveyor struct {
	stream  string
	mark    HighWaterMark          // high-water mark of the log; zero when there is none
	witness Checkpoint             // another event whose position is looked up; zero when there is none
	first   uint64                 // position of the first record in the first block file
	from    HashChain              // hash chain before the first block file; zero at the beginning of the log
	between func(read int64) error // called after each block file with the file's size; may be nil
}

// survey reads block files, in order, and returns what it found. It ends early with the error of
// reading a file or of the function between.
func (s surveyor) survey(all []block) (found survey, err error) {
	found.chain, found.last = s.from, s.first-1
	expected := 1 // number in the name of the next block file
	if s.first > 1 && len(all) > 0 {
		expected = all[0].number
	}
	reason := "" // why positions are missing before the next record
	for _, b := range all {
		if b.number != expected {
			reason = fmt.Sprintf("block file %d.blk is missing", expected)
		}
		expected = b.number + 1
		file := surveyed{block: b, validBytes: b.size}
		_, err := b.scan(s.stream, found.last, func(r record) {
			if file.first == 0 {
				file.first = r.position
			}
			file.last = r.position
			s.take(r, reason, &found)
			reason = ""
		}, func(f flaw) {
			file.validBytes = min(file.validBytes, f.offset)
			reason = f.String()
			found.flaws = append(found.flaws, f)
		})
		if err != nil {
			return found, err
		}
		found.files = append(found.files, file)
		if s.between != nil {
			if err := s.between(b.size); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}

// take adds a record to the survey. reason is why positions before the record are missing, if any
// are.
func (s surveyor) take(r record, reason string, found *survey) {
	event, readable := r.stored()
	switch due := found.last + 1; {
	case r.position < due:
		found.gaps = append(found.gaps, Gap{r.position, r.position, "duplicate position"})
		return
	case r.position > due:
		found.gaps = append(found.gaps, Gap{due, r.position - 1, orElse(reason, "no record")})
	}
	found.noteBatch(r)
	found.last = r.position
	if !readable {
		found.gaps = append(found.gaps, Gap{r.position, r.position, "an event with an invalid header"})
	}
	if len(found.gaps) == 0 && r.position > found.chain.Position && found.chain.Extend(event) == nil &&
		r.position == s.mark.Position {
		found.marked = found.chain
	}
	if r.position == s.witness.Position {
		found.witness = Checkpoint{r.position, event.id()}
	}
}

// noteBatch records in torn each batch of events that a power failure left incomplete. Only earlier
// versions of anneal wrote several events as an atomic batch of JetStream, which is not atomic
// across a power failure.
func (s *survey) noteBatch(r record) {
	if s.batch == "" && !bytes.Contains(r.header, []byte("\r\nNats-Batch-")) {
		return
	}
	id := headerValue(r.header, "Nats-Batch-Id")
	if s.batch != "" && id != s.batch {
		s.torn = append(s.torn, s.last)
	}
	if s.batch = id; headerValue(r.header, "Nats-Batch-Commit") != "" {
		s.batch = ""
	}
}

// headerValue returns the first value of a key in an encoded NATS header; "" when the header does
// not have the key.
func headerValue(header []byte, key string) string {
	_, rest, _ := bytes.Cut(header, []byte("\r\n"+key+":"))
	value, _, _ := bytes.Cut(rest, []byte("\r\n"))
	return string(bytes.TrimSpace(value))
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// lacks returns the gaps of the log up to the position must, up to which the log must be complete.
func (s survey) lacks(must uint64) (gaps []Gap) {
	for _, g := range s.gaps {
		if g.First <= must {
			gaps = append(gaps, g)
		}
	}
	if s.last < must {
		reason := "the log ends before this position"
		if n := len(s.flaws); n > 0 && s.flaws[n-1].last {
			reason = s.flaws[n-1].String()
		}
		gaps = append(gaps, Gap{s.last + 1, must, reason})
	}
	return gaps
}

// damaged returns the DataLoss error for a log in the directory dir that has gaps. The error lists
// the first gaps.
func damaged(dir string, gaps []Gap) error {
	lines := make([]string, 0, 10)
	for i, g := range gaps {
		if i == cap(lines)-1 {
			lines = append(lines, fmt.Sprintf("and %d more gaps", len(gaps)-i))
			break
		}
		lines = append(lines, g.String())
	}
	return Damagef("the log in %s is damaged: no valid events at %s", dir, strings.Join(lines, ", "))
}

func Damagef(format string, args ...any) error {
	f := domain.Errorf(domain.FailedPrecondition, format+". The server does not start, so that nothing more is lost; "+
		"with the server stopped, 'anneal log repair --data DIR' restores events from the mirror and reports the rest",
		args...)
	f.Reason = ReasonDamaged
	return f
}

const ReasonDamaged = "LOG_DAMAGED"

// IsDamaged reports whether err says that the log is incomplete or was altered.
func IsDamaged(err error) bool {
	var f *domain.Error
	return errors.As(err, &f) && f.Reason == ReasonDamaged
}

// A CheckResult is the result of CheckStore.
type CheckResult struct {
	Mark    HighWaterMark // high-water mark with which the log is opened
	Last    uint64        // last position of the log; 0 when the block files were not read
	NewMark bool          // there was no valid high-water mark, so Mark is a new one
	Read    bool          // the block files were read and are valid
	Partial bool          // only the block files from the position of the high-water mark on were read
}

// CheckStore checks the log's block files before the embedded NATS server starts, because the
// server would truncate a damaged log and assign the lost positions to other events.
//
// store is the server's storage directory, path the file of the high-water mark, and holds an event
// that the log must have, such as the last event in a snapshot. CheckStore returns an error when
// the log is incomplete up to the mark or up to holds, or has other events at these positions.
//
// CheckStore also cleans up the end of the log. Invalid records after the mark are cut off, because
// they were never acknowledged. Valid events after the mark are written to new files, because after
// a failed fdatasync they may exist only in the page cache.
func CheckStore(store, path string, holds Checkpoint, log *slog.Logger) (CheckResult, error) {
	dir := BlockDir(store, "CONTROL", logStream)
	mark, err := ReadMark(path)
	have := err == nil
	switch {
	case errors.Is(err, os.ErrNotExist):
	case errors.Is(err, ErrMarkDamaged):
		log.Warn("the file of the log's high-water mark is damaged: checking all of the log, then writing a new "+
			"mark", "file", path)
	case err != nil:
		return CheckResult{}, domain.Errorf(domain.FailedPrecondition, "cannot read the file of the log's high-water "+
			"mark: %v: check the disk and the permissions", err)
	}
	result := CheckResult{Mark: mark, NewMark: !have}
	must := max(mark.MinPosition(), holds.Position)
	if why := foreign(dir); why != "" {
		log.Warn("cannot check the block files of the log before the NATS server starts: checking only the positions of "+
			"the mark and the newest snapshot after the start",
			"directory", dir, "reason", why)
		return result, nil
	}
	all, err := blocksOf(dir)
	if err != nil {
		return result, domain.Errorf(domain.FailedPrecondition, "cannot read the block files of the log: %v: check the "+
			"disk and the permissions", err)
	}
	if len(all) == 0 && must > 0 {
		return result, damaged(dir, []Gap{{1, must, "the log has no block files"}})
	}
	s := surveyor{stream: logStream, mark: mark, witness: holds, first: 1}
	begin := 0
	if have && sizeOf(all) > startCheckBytes && mark.Damaged == 0 && mark.Files != (Hash{}) &&
		mark.Files == FilesHash(store) {
		if begin, s.from = beginAt(all, mark); begin > 0 {
			s.first = all[begin].first()
		}
	}
	result.Partial = begin > 0
	found, err := s.survey(all[begin:])
	if err != nil {
		return result, domain.Errorf(domain.FailedPrecondition, "cannot read the block files of the log: %v: check the "+
			"disk and the permissions", err)
	}
	if found.last >= mark.Damaged { // do not cut off damage that Scrub found, even if it is after the mark
		must = max(must, mark.Damaged)
	}
	if err := found.validate(dir, mark, have, must, holds); err != nil {
		return result, err
	}
	if err := found.repairTail(store, dir, mark, have, log); err != nil {
		return result, err
	}
	if found.batch != "" {
		found.torn = append(found.torn, found.last)
	}
	for _, position := range found.torn {
		log.Warn("a batch of events that an earlier version of anneal wrote is incomplete after a power failure: "+
			"the control plane completes it or rolls it back",
			"position", position)
	}
	if !result.Partial {
		if err := checkCopies(store, found.chain.Position, have, log); err != nil {
			return result, err
		}
	}
	result.Read, result.Last = true, found.chain.Position
	result.Mark.HashChain, result.Mark.Durable = found.chain, found.chain.Position
	if !result.Partial { // all of the log was read and is valid, so damage that Scrub found before has been repaired
		result.Mark.Damaged = 0
	}
	if have && mark.Failed {
		log.Warn("a sync to disk failed during the last run: wrote the events after the high-water mark to the disk "+
			"again", "mark", mark.Durable,
			"last", result.Last)
	}
	return result, nil
}

func sizeOf(all []block) (sum int64) {
	for _, b := range all {
		sum += b.size
	}
	return sum
}

// beginAt returns the index of the block file that contains the event of the high-water mark, and
// the hash chain before that event. When no file but the first can contain it, the index is 0 and
// the chain is empty.
func beginAt(all []block, mark HighWaterMark) (index int, from HashChain) {
	for i := len(all) - 1; i > 0; i-- {
		if first := all[i].first(); first > 0 && first <= mark.Position {
			from.Position, from.Hash = mark.Position-1, mark.Before
			return i, from
		}
	}
	return 0, HashChain{}
}

// validate returns an error for a log that is incomplete up to the position must, or whose events
// differ from the high-water mark or from witness. have reports whether there is a mark. dir is the
// directory for the messages.
func (s survey) validate(dir string, mark HighWaterMark, have bool, must uint64, witness Checkpoint) error {
	if !have && len(s.gaps) > 0 { // without a mark, any event before last may have been acknowledged
		must = max(must, s.last)
	}
	if gaps := s.lacks(must); len(gaps) > 0 {
		return damaged(dir, gaps)
	}
	if have && mark.Position > 0 && s.marked.EventID != mark.EventID {
		return Damagef("the log in %s has event %s at position %d, but the high-water mark has event %s: the mark "+
			"belongs to another log, or events were replaced",
			dir, s.marked.EventID, mark.Position, mark.EventID)
	}
	if have && mark.Position > 0 && s.marked.Hash != mark.Hash {
		return Damagef("the log in %s was altered: its running hash at position %d is %s, but the high-water mark has %s",
			dir, mark.Position, s.marked.Hash, mark.Hash)
	}
	if witness.Position > 0 && s.witness.Position == witness.Position && s.witness.EventID != witness.EventID {
		return Damagef("the log in %s has event %s at position %d, but the newest snapshot has event %s: the snapshot "+
			"belongs to another log, or the log lost events",
			dir, s.witness.EventID, witness.Position, witness.EventID)
	}
	return nil
}

// repairTail cleans up the end of the log: it writes the valid events after the high-water mark to
// new files, and cuts off the invalid records after these events. It does nothing when the log has
// neither.
func (s survey) repairTail(store, dir string, mark HighWaterMark, have bool, log *slog.Logger) error {
	keep := s.chain.Position
	if have && keep == mark.Durable && len(s.gaps) == 0 && len(s.flaws) == 0 {
		return nil
	}
	if !have && len(s.flaws) == 0 {
		return nil // without a mark, the server syncs all files after its start
	}
	for i, f := range s.files {
		if f.size == 0 || f.last > 0 && f.last <= keep && f.validBytes == f.size && (f.last <= mark.Durable || !have) {
			continue
		}
		if err := s.rewrite(store, dir, i, keep, log); err != nil {
			return domain.Errorf(domain.FailedPrecondition, "cannot write the newest events of the log to new files: %v: "+
				"check the disk, then start again", err)
		}
	}
	return disk.Sync(dir)
}

// cutsKept is how many files with cut-off records are kept; keepCut deletes older ones.
const cutsKept = 10

// rewrite replaces a block file by a new file that has its events up to the position keep. index is
// the index of the block file in s.files. The remaining bytes of the old file are written to a file
// beside the storage directory: see keepCut.
func (s survey) rewrite(store, dir string, index int, keep uint64, log *slog.Logger) error {
	f := s.files[index]
	content, err := os.ReadFile(f.path)
	if err != nil {
		return err
	}
	sums, end := hashOf(logStream, f.number), 0
	for end < len(content) {
		r, reason := sums.next(content[end:])
		if reason != "" || r.position&positionMarks == 0 && r.position > keep {
			break
		}
		end += len(r.raw)
	}
	kept := content[:end]
	if len(kept) < len(content) {
		aside := filepath.Clean(store) + fmt.Sprintf(".cut-%d-%d.blk", keep, f.number)
		if err := keepCut(store, aside, content[end:]); err != nil {
			return err
		}
		if err := os.Remove(filepath.Join(dir, "index.db")); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		log.Warn("cut off damaged bytes at the end of the log; they had no event that was ever acknowledged",
			"after", keep, "bytes", len(content)-len(kept), "kept", aside)
	}
	if len(kept) == 0 && index > 0 {
		return os.Remove(f.path)
	}
	return disk.WriteFile(f.path, kept)
}

// keepCut writes cut-off bytes of a block file to the file at path, and deletes all but the newest
// cutsKept such files beside the storage directory.
func keepCut(store, path string, cut []byte) error {
	if err := disk.WriteFile(path, cut); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	var all []os.FileInfo
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, filepath.Base(filepath.Clean(store))+".cut-") || !strings.HasSuffix(name, ".blk") ||
			name == filepath.Base(path) {
			continue
		}
		if info, err := entry.Info(); err == nil {
			all = append(all, info)
		}
	}
	slices.SortFunc(all, func(a, b os.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, old := range all[:max(0, len(all)+1-cutsKept)] {
		if err := os.Remove(filepath.Join(filepath.Dir(path), old.Name())); err != nil {
			return err
		}
	}
	return nil
}
