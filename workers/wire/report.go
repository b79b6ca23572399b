package wire

import (
	"maps"
	"slices"
	"time"

	"anneal/domain"
	"anneal/engines"
)

// What a report is of.
const (
	ReportCheckpoint = "checkpoint" // its files are stored
	ReportWriting    = "writing"    // training is over, results are being stored
	ReportCompleted  = "completed"  // results are stored
	ReportFailed     = "failed"     // it cannot go on
	ReportStopped    = "stopped"    // cancelled; the last checkpoint was reported before
)

// A Report tells of one thing that happened to an attempt. The agent repeats
// it until it has a receipt.
type Report struct {
	Version int                `json:"version"`
	Boot    string             `json:"boot"`
	Kind    string             `json:"kind"`
	Job     domain.Name        `json:"job"`
	Attempt int                `json:"attempt"`
	Made    time.Time          `json:"made"`              // see Train
	Step    int                `json:"step,omitempty"`    // of a checkpoint
	Sizes   map[string]int64   `json:"sizes,omitempty"`   // of a checkpoint or of results: file → bytes
	Sums    map[string]string  `json:"sums,omitempty"`    // of the same files: file → SHA-256 in hexadecimal
	Metrics map[string]float64 `json:"metrics,omitempty"` // of a checkpoint: the last of each
	Result  *Result            `json:"result,omitempty"`  // of a completed attempt
	Fault   *Fault             `json:"fault,omitempty"`   // of a failed one
}

// A Result is what came of an attempt.
type Result struct {
	Adapter      bool   `json:"adapter"`
	StoppedEarly bool   `json:"stoppedEarly"`
	Reason       string `json:"reason,omitempty"` // why it stopped early
}

// Verdicts on a report.
const (
	Accepted   = "accepted"   // recorded, or already so: the report is done
	Stale      = "stale"      // the attempt is not wanted any more: stop it, and say no more of it
	Incomplete = "incomplete" // stored files are missing or cut: store them again
	Later      = "later"      // it could not be recorded now: report again
)

// A Receipt answers a Report.
type Receipt struct {
	Version  int    `json:"version"`
	Verdict  string `json:"verdict"`
	Message  string `json:"message,omitempty"`
	Position uint64 `json:"position"` // at which it is recorded
}

// What files are to be stored for.
const (
	ForCheckpoint = "checkpoint"
	ForResults    = "results"
)

// MaxFiles is the most files of a checkpoint or a result.
const MaxFiles = 1000

// A SignRequest asks where to store files of an attempt.
type SignRequest struct {
	Version int              `json:"version"`
	Job     domain.Name      `json:"job"`
	Attempt int              `json:"attempt"`
	Made    time.Time        `json:"made"` // see Train
	For     string           `json:"for"`
	Step    int              `json:"step,omitempty"` // of a checkpoint
	Sizes   map[string]int64 `json:"sizes"`          // file → bytes
}

// A SignReply answers with a URL to PUT each file to. Stale and Later are as
// for reports.
type SignReply struct {
	Version int               `json:"version"`
	Verdict string            `json:"verdict"`
	Message string            `json:"message,omitempty"`
	URLs    map[string]string `json:"urls,omitempty"`
}

// MergeRows adds rows to those of a metrics file, which are in the order of
// steps: a step's figures are joined, the newer counting, so that an
// evaluation adds to its step's row.
func MergeRows(rows []engines.Metrics, more ...engines.Metrics) []engines.Metrics {
	for _, row := range more {
		at, found := slices.BinarySearchFunc(rows, row.Step, func(r engines.Metrics, step int) int { return r.Step - step })
		if !found {
			rows = slices.Insert(rows, at, row)
			continue
		}
		values := maps.Clone(rows[at].Values)
		if values == nil {
			values = map[string]float64{}
		}
		maps.Copy(values, row.Values)
		row.Values = values
		rows[at] = row
	}
	return rows
}
