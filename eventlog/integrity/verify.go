package integrity

import (
	"errors"
	"fmt"
	"iter"
	"os"

	"github.com/nats-io/nats.go"
)

// A FileReport is the result of VerifyFiles.
type FileReport struct {
	Events  uint64 `json:"events"`            // number of valid events before the first gap
	Must    uint64 `json:"must"`              // position up to which the log must be complete
	Hash    string `json:"hash"`              // hash chain at the position of Marked, or at the end of the log
	Marked  string `json:"marked,omitempty"`  // hash in the high-water mark; absent when it has none
	Missing []Gap  `json:"missing,omitempty"` // positions up to Must that have no valid event
	Differs []Gap  `json:"differs,omitempty"` // positions at which the log and the mirror have different events
	Lost    uint64 `json:"lost,omitempty"`    // number of events that earlier repairs discarded
}

// Intact reports whether the log is complete and unaltered.
func (r FileReport) Intact() bool {
	return len(r.Missing) == 0 && len(r.Differs) == 0 && (r.Marked == "" || r.Hash == r.Marked)
}

// VerifyFiles reads all block files of a log. It checks that every event up to the high-water mark
// and up to holds is valid, computes the hash chain, and compares each event with the mirror. It
// changes no file, and a server may be running. dir, mark and holds are as in natsserver.Options.
func VerifyFiles(dir, mark string, holds Checkpoint) (report FileReport, err error) {
	if mark == "" {
		mark = MarkPath(dir)
	}
	r := repair{RepairOptions: RepairOptions{Dir: dir, Mark: mark, Holds: holds},
		dir: BlockDir(dir, "CONTROL", logStream)}
	if err := r.take(); err != nil {
		return report, err
	}
	report.Must, report.Lost = r.must, r.mark.Lost
	// A mark has no hash until the first event after its creation was observed.
	hashed := r.have && r.mark.Position > 0
	if hashed {
		report.Marked = r.mark.Hash.String()
	}
	end := r.must
	if !r.have {
		end = max(r.must, r.log.last)
	}
	var chain HashChain
	complete := true
	for position := uint64(1); position <= end; position++ {
		p, there := r.log.records[position]
		p.from = &r.log
		e, ok := r.event(p)
		if !ok {
			report.Missing, complete = extendGap(report.Missing, position, "no valid event"), false
		} else if complete && chain.Extend(e) == nil && position == r.mark.Position {
			report.Hash = chain.Hash.String()
		}
		if _, _, differs := r.at(position, false); there && differs {
			report.Differs = extendGap(report.Differs, position, "the mirror has a different event at this position")
		}
		if position == holds.Position && ok && e.id() != holds.EventID {
			report.Differs = extendGap(report.Differs, position, "the newest snapshot has a different event at this position")
		}
	}
	report.Events = chain.Position
	if !hashed {
		report.Hash = chain.Hash.String()
	}
	if r.log.double && len(report.Missing) == 0 {
		return report, errors.New("two events in the log's files have the same position")
	}
	if _, err := os.Stat(r.dir); errors.Is(err, os.ErrNotExist) && report.Must > 0 {
		report.Missing = []Gap{{1, report.Must, "the log has no block files"}}
	}
	return report, nil
}

// A StoredEvent is an event in the block files of the log. Header has only the headers that
// HashChain includes.
type StoredEvent struct {
	Position uint64
	Subject  string
	Header   nats.Header
	Body     []byte
}

// Events yields the events after a position from the block files of a log, in order. It yields a
// DataLoss error at the first gap. It changes no file. dir is as in natsserver.Options.
func Events(dir string, cursor uint64) iter.Seq2[StoredEvent, error] {
	return func(yield func(StoredEvent, error) bool) {
		all, err := blocksOf(BlockDir(dir, "CONTROL", logStream))
		if err != nil {
			yield(StoredEvent{}, err)
			return
		}
		last, more := uint64(0), true
		for _, b := range all {
			_, err := b.scan(logStream, last, func(r record) {
				if !more {
					return
				}
				m, readable := r.stored()
				switch {
				case r.position != last+1:
					more, _ = false, yield(StoredEvent{}, GapError(last+1, r.position))
				case !readable:
					more, _ = false, yield(StoredEvent{}, fmt.Errorf("the event at position %d has an invalid NATS "+
						"header", r.position))
				default:
					if last = r.position; last > cursor {
						more = yield(m.event(), nil)
					}
				}
			}, func(flaw) {})
			if err != nil && more {
				more, _ = false, yield(StoredEvent{}, err)
			}
			if !more {
				return
			}
		}
	}
}

func (e Message) event() StoredEvent {
	header := make(nats.Header, len(e.header))
	for _, a := range e.header {
		header[a.Name] = append(header[a.Name], a.Value)
	}
	return StoredEvent{e.position, e.subject, header, e.body}
}
