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

// RepairOptions say how a stopped server's log is repaired.
type RepairOptions struct {
	Dir        string                   // of the streams, as in ServerOptions
	Mark       string                   // as in ServerOptions
	Holds      Checkpoint               // as in ServerOptions
	AcceptLoss bool                     // cut the log off before the first event that cannot be restored
	BeforeLoss func(RepairReport) error // called before events are given up; its error stops the repair
	Now        time.Time                // names what is kept of the former files
}

// A RepairReport tells what a repair found and did.
type RepairReport struct {
	Events   uint64 `json:"events"`             // whole events from the first one on, after the repair
	Restored []Gap  `json:"restored,omitempty"` // taken from the readers' copy
	Lost     []Gap  `json:"lost,omitempty"`     // held by nobody
	GivenUp  uint64 `json:"givenUp,omitempty"`  // whole events behind the loss, cut off with it
	Altered  bool   `json:"altered,omitempty"`  // the events are not those of the mark, and no copy has those
	Differs  []Gap  `json:"differs,omitempty"`  // where the readers' copy has other events than the log had
	Changed  bool   `json:"changed"`            // files were written
	Aside    string `json:"aside,omitempty"`    // folder with the files as they were, and with the events given up
}

// Whole tells whether nothing stays lost.
func (r RepairReport) Whole() bool { return len(r.Lost) == 0 && !r.Altered }

// Repair restores missing and damaged events of a stopped server's log from the
// copies that the same server keeps for its readers, when the running hash of
// the result is the mark's. What no copy has is reported; then nothing is
// changed, unless AcceptLoss is set. Former files are kept aside. The caller
// must hold the folder's lock.
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
	if !report.Whole() && !opts.AcceptLoss {
		return report, nil
	}
	report.Changed = !report.Whole() || len(report.Restored) > 0 || r.log.damaged() || !r.have || len(r.stale) > 0
	if !report.Changed {
		return report, nil
	}
	report.Aside = filepath.Clean(opts.Dir) + ".repaired-" + opts.Now.UTC().Format("20060102T150405.000Z")
	if err := os.MkdirAll(report.Aside, 0o700); err != nil {
		return report, err
	}
	if !report.Whole() && opts.BeforeLoss != nil {
		if err := opts.BeforeLoss(report); err != nil {
			return report, err
		}
	}
	if err := r.writeGivenUp(report, uint64(len(order))); err != nil {
		return report, err
	}
	return report, r.write(order, report)
}

// markOf is where the mark of a server's log is when nothing else is said.
func MarkPath(dir string) string { return filepath.Clean(dir) + ".mark" }

type repair struct {
	RepairOptions
	dir   string // of the log's blocks
	mark  HighWaterMark
	have  bool
	must  uint64 // the log must reach it
	log   inventory
	full  inventory // the readers' copy of everything
	parts []inventory
	stale []string // folders of copies that the repaired log does not fit
}

// An inventory is where the whole records of a stream lie.
type inventory struct {
	dir    string // of blocks
	blocks []block
	places map[uint64]place
	last   uint64
	flaws  []flaw
	double bool // a position is there twice
}

// A place is where a record lies. Equal sums are equal events.
type place struct {
	from   *inventory
	block  int
	offset int64
	size   int
	sum    [16]byte
}

func (i inventory) damaged() bool { return len(i.flaws) > 0 || i.double }

func inventoryOf(dir string) (inv inventory, err error) {
	inv = inventory{dir: dir, places: map[uint64]place{}}
	if inv.blocks, err = blocksOf(dir); err != nil {
		return inv, err
	}
	for n, b := range inv.blocks {
		_, err := b.scan(logStream, 0, func(r record) {
			e, ok := r.stored()
			if !ok {
				inv.flaws = append(inv.flaws, flaw{path: b.path, offset: r.at, reason: "a header that cannot be read"})
				return
			}
			if _, there := inv.places[r.position]; there {
				inv.double = true
				return
			}
			p := place{block: n, offset: r.at, size: len(r.raw)}
			sum := Hash{}.next(e)
			copy(p.sum[:], sum[:])
			inv.places[r.position] = p
			inv.last = max(inv.last, r.position)
		}, func(f flaw) { inv.flaws = append(inv.flaws, f) })
		if err != nil {
			return inv, err
		}
	}
	return inv, nil
}

// record reads the record at a place.
func (i *inventory) record(p place) (r record, err error) {
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

// copiesOf lists the folders of blocks of all copies of the log: those of other
// NATS accounts than CONTROL. The one of all events comes first.
func copiesOf(store string) (dirs []string, err error) {
	all, err := filepath.Glob(filepath.Join(store, "jetstream", "*", "streams", logStream, "msgs"))
	if err != nil {
		return nil, err
	}
	whole := BlockDir(store, "READERS", logStream)
	for _, dir := range all {
		switch dir {
		case BlockDir(store, "CONTROL", logStream):
		case whole:
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
		return domain.Errorf(domain.FailedPrecondition, "the log in %s cannot be repaired here: %s", r.dir, why)
	}
	if r.log, err = inventoryOf(r.dir); err != nil {
		return err
	}
	dirs, err := copiesOf(r.Dir)
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

// compose chooses the events of the repaired log: the log's own, and where it
// has none, a copy's. Where both have one and the hash is not the mark's, the
// copy's is tried too.
func (r *repair) compose() (order []place, report RepairReport) {
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
		if stale := r.unfit(inv, order); stale {
			r.stale = append(r.stale, inv.dir)
		}
	}
	for position, p := range r.log.places {
		if position > report.Events && p.size > 0 {
			report.GivenUp++
		}
	}
	return order, report
}

// unfit tells whether a copy must be made anew: it is damaged, or has other
// events than the repaired log.
func (r *repair) unfit(inv inventory, order []place) bool {
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
	for position, p := range inv.places {
		if order[position-1].sum != p.sum {
			return true
		}
	}
	return inv.dir == r.full.dir && uint64(len(inv.places)) != inv.last
}

func (r *repair) choose(preferCopy bool) (order []place, report RepairReport) {
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
			report.Restored = extendGap(report.Restored, position, "restored from the readers' copy")
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

// at chooses the event of a position among the log and its copies.
func (r *repair) at(position uint64, preferCopy bool) (p place, restored, differs bool) {
	p, there := r.log.places[position]
	p.from = &r.log
	for n := -1; n < len(r.parts); n++ {
		inv := &r.full
		if n >= 0 {
			inv = &r.parts[n]
		}
		c, ok := inv.places[position]
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

func (r *repair) event(p place) (e Message, ok bool) {
	if p.size == 0 {
		return e, false
	}
	rec, err := p.from.record(p)
	if err != nil {
		return e, false
	}
	return rec.stored()
}

// anyAfter tells whether the log or its full copy has an event behind a
// position that is not there, and nothing says that it was never acknowledged.
func (r *repair) anyAfter(position uint64) bool {
	return !r.have && max(r.log.last, r.full.last) > position
}

func (r *repair) lostFrom(first, end uint64) (gaps []Gap) {
	for position := first; position <= end; position++ {
		if p, _, _ := r.at(position, false); p.size == 0 && (position <= r.must || !r.have) {
			gaps = extendGap(gaps, position, "no whole record, neither in the log nor in a copy")
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

// writeGivenUp writes the events that are cut off with a loss to a file, and
// with them the report.
func (r *repair) writeGivenUp(report RepairReport, events uint64) error {
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	if err := disk.WriteFile(filepath.Join(report.Aside, "report.json"), append(text, '\n')); err != nil {
		return err
	}
	if report.Whole() {
		return nil
	}
	var lines []byte
	for position := events + 1; position <= max(r.log.last, r.full.last); position++ {
		p, _, _ := r.at(position, false)
		if e, ok := r.event(p); ok {
			attributes := map[string]string{}
			for _, a := range e.header {
				attributes[a.name] = a.value
			}
			line, err := json.Marshal(map[string]any{"position": e.position, "subject": e.subject, "attributes": attributes, "body": string(e.body)})
			if err != nil {
				return err
			}
			lines = append(append(lines, line...), '\n')
		}
	}
	return disk.WriteFile(filepath.Join(report.Aside, "given-up.jsonl"), lines)
}
