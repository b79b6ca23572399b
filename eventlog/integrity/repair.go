package integrity

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"anneal/disk"
	"anneal/domain"
)

// RepairOptions configure Repair.
type RepairOptions struct {
	Dir        string                   // storage directory of the NATS server, as in natsserver.Options
	Mark       string                   // file of the high-water mark, as in natsserver.Options
	Holds      Checkpoint               // an event that the log must have; zero when there is none
	AcceptLoss bool                     // when events cannot be restored, end the log before the first of them
	BeforeLoss func(RepairReport) error // called before events are discarded; an error stops the repair
	Now        time.Time                // current time, which becomes a part of the name of RepairReport.Aside
}

// A RepairReport describes what Repair found and changed.
type RepairReport struct {
	Events   uint64 `json:"events"`             // number of events in the repaired log
	Restored []Gap  `json:"restored,omitempty"` // positions whose events were restored from a mirror
	Lost     []Gap  `json:"lost,omitempty"`     // positions whose event is valid neither in the log nor in a mirror
	GivenUp  uint64 `json:"givenUp,omitempty"`  // number of valid events after the first lost one, which are discarded
	// the events do not match the high-water mark, and no mirror has events that do
	Altered bool   `json:"altered,omitempty"`
	Differs []Gap  `json:"differs,omitempty"` // positions at which the mirror and the log have different events
	Changed bool   `json:"changed"`           // the log's files were replaced
	Aside   string `json:"aside,omitempty"`   // directory with the replaced files and the discarded events
}

// Intact reports whether the repaired log is complete and unaltered.
func (r RepairReport) Intact() bool { return len(r.Lost) == 0 && !r.Altered }

// Repair restores missing and damaged events of a stopped server's log from the log's mirrors. The
// report has the events that are valid neither in the log nor in a mirror, and says whether the
// hash of the repaired log matches the high-water mark. If events are lost or the hash does not
// match, Repair changes nothing unless AcceptLoss is set. It moves replaced files to
// RepairReport.Aside. The caller must hold the lock of the data directory.
func Repair(opts RepairOptions) (report RepairReport, err error) {
	if opts.Mark == "" {
		opts.Mark = MarkPath(opts.Dir)
	}
	r := repair{RepairOptions: opts, dir: BlockDir(opts.Dir, "CONTROL", logStream)}
	if err := undoReplacement(opts.Dir, r.dir); err != nil {
		return report, err
	}
	if err := r.take(); err != nil {
		return report, err
	}
	order, report := r.compose()
	if !report.Intact() && !opts.AcceptLoss {
		return report, nil
	}
	report.Changed = !report.Intact() || len(report.Restored) > 0 || r.log.damaged() || !r.have || len(r.stale) > 0
	if !report.Changed {
		return report, nil
	}
	report.Aside = filepath.Clean(opts.Dir) + ".repaired-" + opts.Now.UTC().Format("20060102T150405.000Z")
	if err := os.MkdirAll(report.Aside, 0o700); err != nil {
		return report, err
	}
	if !report.Intact() && opts.BeforeLoss != nil {
		if err := opts.BeforeLoss(report); err != nil {
			return report, err
		}
	}
	if err := r.writeGivenUp(report, uint64(len(order))); err != nil {
		return report, err
	}
	return report, r.write(order, report)
}

// MarkPath returns the default path of the high-water mark: the storage directory of the NATS
// server with the suffix ".mark".
func MarkPath(dir string) string { return filepath.Clean(dir) + ".mark" }

type repair struct {
	RepairOptions
	dir   string // directory of the log's block files
	mark  HighWaterMark
	have  bool
	must  uint64 // position up to which the log must be complete
	log   inventory
	full  inventory // inventory of the mirror that has all events of the log
	parts []inventory
	stale []string // directories of mirrors that differ from the repaired log
}

// An inventory locates the valid records in the block files of a log or a mirror.
type inventory struct {
	dir     string // directory of the block files of the log or mirror
	blocks  []block
	records map[uint64]recordRef
	last    uint64
	flaws   []flaw
	double  bool // the files have two records with the same position
}

// A recordRef locates a record in a block file. sum is a hash of its event: two recordRefs with
// equal sums have equal events.
type recordRef struct {
	from   *inventory
	block  int
	offset int64
	size   int
	sum    [16]byte
}

func (i inventory) damaged() bool { return len(i.flaws) > 0 || i.double }

func inventoryOf(dir string) (inv inventory, err error) {
	inv = inventory{dir: dir, records: map[uint64]recordRef{}}
	if inv.blocks, err = blocksOf(dir); err != nil {
		return inv, err
	}
	for n, b := range inv.blocks {
		_, err := b.scan(logStream, 0, func(r record) {
			e, ok := r.stored()
			if !ok {
				inv.flaws = append(inv.flaws, flaw{path: b.path, offset: r.at, reason: "an event with an invalid header"})
				return
			}
			if _, there := inv.records[r.position]; there {
				inv.double = true
				return
			}
			p := recordRef{block: n, offset: r.at, size: len(r.raw)}
			sum := Hash{}.next(e)
			copy(p.sum[:], sum[:])
			inv.records[r.position] = p
			inv.last = max(inv.last, r.position)
		}, func(f flaw) { inv.flaws = append(inv.flaws, f) })
		if err != nil {
			return inv, err
		}
	}
	return inv, nil
}

// record reads the record to which p refers from the block files of i.
func (i *inventory) record(p recordRef) (r record, err error) {
	b := i.blocks[p.block]
	file, err := os.Open(b.path)
	if err != nil {
		return r, err
	}
	defer file.Close()
	raw := make([]byte, p.size)
	if _, err := file.ReadAt(raw, p.offset); err != nil {
		return r, err
	}
	r, reason := hashOf(logStream, b.number).next(raw)
	if reason != "" {
		return r, fmt.Errorf("%s at byte %d of %s", reason, p.offset, b.path)
	}
	return r, nil
}

// copiesOf returns the block directories of all mirrors of a stream. Mirrors are in NATS accounts
// other than CONTROL. The mirror of all messages, in READERS, is the first.
func copiesOf(store, stream string) (dirs []string, err error) {
	all, err := filepath.Glob(filepath.Join(store, "jetstream", "*", "streams", stream, "msgs"))
	if err != nil {
		return nil, err
	}
	full := BlockDir(store, "READERS", stream)
	for _, dir := range all {
		switch dir {
		case BlockDir(store, "CONTROL", stream):
		case full:
			dirs = slices.Insert(dirs, 0, dir)
		default:
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

func (r *repair) take() (err error) {
	r.mark, err = ReadMark(r.Mark)
	r.have = err == nil
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, ErrMarkDamaged) {
		return err
	}
	if why := foreign(r.dir); why != "" {
		return domain.Errorf(domain.FailedPrecondition, "cannot repair the log in %s: %s", r.dir, why)
	}
	if r.log, err = inventoryOf(r.dir); err != nil {
		return err
	}
	dirs, err := copiesOf(r.Dir, logStream)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		inv, err := inventoryOf(dir)
		if err != nil {
			return err
		}
		if dir == BlockDir(r.Dir, "READERS", logStream) {
			r.full = inv
		} else {
			r.parts = append(r.parts, inv)
		}
	}
	r.must = max(r.mark.MinPosition(), r.Holds.Position)
	return nil
}

// compose returns the records of the repaired log in the order of their positions. At each position
// it chooses the log's record, or a mirror's if the log has none. If the resulting hash does not
// match the high-water mark, compose tries again with the mirror's record wherever the log and the
// mirror differ.
func (r *repair) compose() (order []recordRef, report RepairReport) {
	for _, preferCopy := range []bool{false, true} {
		order, report = r.choose(preferCopy)
		if !report.Altered {
			break
		}
	}
	if report.Altered {
		order, report = r.choose(false)
	}
	report.Events = uint64(len(order))
	for _, inv := range append([]inventory{r.full}, r.parts...) {
		if stale := r.mustRecreate(inv, order); stale {
			r.stale = append(r.stale, inv.dir)
		}
	}
	for position, p := range r.log.records {
		if position > report.Events && p.size > 0 {
			report.GivenUp++
		}
	}
	return order, report
}

// mustRecreate reports whether the mirror inv must be created again, because it is damaged or
// differs from order, the records of the repaired log.
func (r *repair) mustRecreate(inv inventory, order []recordRef) bool {
	if len(inv.blocks) == 0 {
		return false
	}
	if inv.double || inv.last > uint64(len(order)) {
		return true
	}
	for _, f := range inv.flaws {
		if !f.last || f.path != inv.blocks[len(inv.blocks)-1].path {
			return true
		}
	}
	for position, p := range inv.records {
		if order[position-1].sum != p.sum {
			return true
		}
	}
	return inv.dir == r.full.dir && uint64(len(inv.records)) != inv.last
}

func (r *repair) choose(preferCopy bool) (order []recordRef, report RepairReport) {
	chain, fits := HashChain{}, !r.have || r.mark.Position == 0
	end := max(r.must, r.log.last, r.full.last)
	for position := uint64(1); position <= end; position++ {
		p, restored, differs := r.at(position, preferCopy)
		if differs {
			report.Differs = extendGap(report.Differs, position, "the mirror has a different event at this position")
		}
		e, ok := r.event(p)
		if !ok || chain.Extend(e) != nil {
			if position <= r.must || r.anyAfter(position) {
				report.Lost = r.lostFrom(position, end)
			}
			break
		}
		if restored {
			report.Restored = extendGap(report.Restored, position, "event restored from the mirror")
		}
		order = append(order, p)
		if position == r.mark.Position {
			fits = chain.Hash == r.mark.Hash
		}
		if position == r.Holds.Position && chain.EventID != r.Holds.EventID {
			report.Altered = true
		}
	}
	if uint64(len(order)) >= r.mark.Position && !fits {
		report.Altered = true
	}
	return order, report
}

// at chooses the record for a position from the log and its mirrors. restored reports that the
// record is from a mirror. differs reports that a mirror has a different event than the log; at
// then returns the log's record, or the mirror's if preferCopy is set.
func (r *repair) at(position uint64, preferCopy bool) (p recordRef, restored, differs bool) {
	p, there := r.log.records[position]
	p.from = &r.log
	for n := -1; n < len(r.parts); n++ {
		inv := &r.full
		if n >= 0 {
			inv = &r.parts[n]
		}
		c, ok := inv.records[position]
		c.from = inv
		switch {
		case !ok:
		case !there:
			return c, true, false
		case c.sum != p.sum:
			if preferCopy {
				return c, true, true
			}
			differs = true
		}
	}
	return p, false, differs
}

func (r *repair) event(p recordRef) (e Message, ok bool) {
	if p.size == 0 {
		return e, false
	}
	rec, err := p.from.record(p)
	if err != nil {
		return e, false
	}
	return rec.stored()
}

// anyAfter reports whether the missing event at a position may have been acknowledged although no
// high-water mark says so: there is no mark, and the log or the mirror has a later event.
func (r *repair) anyAfter(position uint64) bool {
	return !r.have && max(r.log.last, r.full.last) > position
}

func (r *repair) lostFrom(first, end uint64) (gaps []Gap) {
	for position := first; position <= end; position++ {
		if p, _, _ := r.at(position, false); p.size == 0 && (position <= r.must || !r.have) {
			gaps = extendGap(gaps, position, "no valid event in the log or a mirror")
		}
	}
	return gaps
}

func extendGap(gaps []Gap, position uint64, reason string) []Gap {
	if n := len(gaps); n > 0 && gaps[n-1].Last+1 == position && gaps[n-1].Reason == reason {
		gaps[n-1].Last = position
		return gaps
	}
	return append(gaps, Gap{position, position, reason})
}

// writeGivenUp writes the report to report.json and the discarded events to given-up.jsonl in the
// directory report.Aside. The discarded events are those at positions greater than events.
func (r *repair) writeGivenUp(report RepairReport, events uint64) error {
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	if err := disk.WriteFile(filepath.Join(report.Aside, "report.json"), append(text, '\n')); err != nil {
		return err
	}
	if report.Intact() {
		return nil
	}
	var lines []byte
	for position := events + 1; position <= max(r.log.last, r.full.last); position++ {
		p, _, _ := r.at(position, false)
		if e, ok := r.event(p); ok {
			attributes := map[string]string{}
			for _, a := range e.header {
				attributes[a.Name] = a.Value
			}
			line, err := json.Marshal(map[string]any{"position": e.position, "subject": e.subject, "attributes": attributes,
				"body": string(e.body)})
			if err != nil {
				return err
			}
			lines = append(append(lines, line...), '\n')
		}
	}
	return disk.WriteFile(filepath.Join(report.Aside, "given-up.jsonl"), lines)
}
