package integrity

import (
	"errors"
	"os"
)

// A FileReport is the result of VerifyFiles.
type FileReport struct {
	Events  uint64 `json:"events"`            // number of valid events before the first gap
	Must    uint64 `json:"must"`              // the mark's durable position
	Hash    string `json:"hash"`              // running hash of the files at the mark's position
	Marked  string `json:"marked,omitempty"`  // the mark's hash; absent without a mark
	Missing []Gap  `json:"missing,omitempty"` // positions up to Must without a valid event
	Differs []Gap  `json:"differs,omitempty"` // positions with different events in the log and the mirror
	Lost    uint64 `json:"lost,omitempty"`    // events discarded by earlier repairs
}

// Whole reports whether the log is complete and unaltered.
func (r FileReport) Whole() bool {
	return len(r.Missing) == 0 && len(r.Differs) == 0 && (r.Marked == "" || r.Hash == r.Marked)
}

// VerifyFiles reads all block files of the log in dir, checks that every event up to the mark is
// valid, computes the running hash, and compares each event with the mirror. A running server may
// have the files open. dir and mark are as in natsserver.Options.
func VerifyFiles(dir, mark string) (report FileReport, err error) {
	if mark == "" {
		mark = MarkPath(dir)
	}
	r := repair{RepairOptions: RepairOptions{Dir: dir, Mark: mark}, dir: BlockDir(dir, "CONTROL", logStream)}
	if err := r.take(); err != nil {
		return report, err
	}
	report.Must, report.Lost = r.must, r.mark.Lost
	if r.have {
		report.Marked = r.mark.Hash.String()
	}
	end := r.must
	if !r.have {
		end = r.log.last
	}
	var chain HashChain
	whole := true
	for position := uint64(1); position <= end; position++ {
		p, there := r.log.places[position]
		p.from = &r.log
		e, ok := r.event(p)
		if !ok {
			report.Missing, whole = extendGap(report.Missing, position, "no valid record"), false
		} else if whole && chain.Extend(e) == nil && position == r.mark.Position {
			report.Hash = chain.Hash.String()
		}
		if _, _, differs := r.at(position, false); there && differs {
			report.Differs = extendGap(report.Differs, position, "the mirror has a different event at this position")
		}
	}
	report.Events = chain.Position
	if !r.have {
		report.Hash = chain.Hash.String()
	}
	if r.log.double && len(report.Missing) == 0 {
		return report, errors.New("two events in the log's files have the same position")
	}
	if _, err := os.Stat(r.dir); errors.Is(err, os.ErrNotExist) && report.Must > 0 {
		report.Missing = []Gap{{1, report.Must, "there are no block files"}}
	}
	return report, nil
}
