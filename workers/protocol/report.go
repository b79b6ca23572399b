package protocol

import (
	"maps"
	"slices"
	"time"

	"anneal/domain"
	"anneal/engines"
)

// Kinds of reports.
const (
	ReportCheckpoint = "checkpoint" // the files of a checkpoint are stored
	ReportWriting    = "writing"    // training is over, results are being stored
	ReportCompleted  = "completed"  // results are stored
	ReportFailed     = "failed"     // the attempt failed
	ReportStopped    = "stopped"    // canceled; the last checkpoint was reported before
)

// A Report records one event of an attempt. The agent repeats it until it receives a reply.
type Report struct {
	Version    int                `json:"version"`
	Boot       string             `json:"boot"`
	Kind       string             `json:"kind"`
	Job        domain.Name        `json:"job"`
	Attempt    int                `json:"attempt"`
	CreateTime time.Time          `json:"made"`              // see TrainAssignment
	Step       int                `json:"step,omitempty"`    // of a checkpoint
	Sizes      map[string]int64   `json:"sizes,omitempty"`   // of a checkpoint or results: file → bytes
	Sums       map[string]string  `json:"sums,omitempty"`    // of the same files: file → SHA-256 in hexadecimal
	Metrics    map[string]float64 `json:"metrics,omitempty"` // of a checkpoint: the latest value of each
	Result     *Result            `json:"result,omitempty"`  // of a completed attempt
	Error      *Error             `json:"fault,omitempty"`   // of a failed attempt
}

// A Result describes what a completed attempt produced.
type Result struct {
	Adapter      bool   `json:"adapter"`
	StoppedEarly bool   `json:"stoppedEarly"`
	Reason       string `json:"reason,omitempty"` // for stopping early
}

// Outcomes of a report.
const (
	Accepted   = "accepted"   // recorded, now or before
	Stale      = "stale"      // the attempt is over: stop it, and report nothing more of it
	Incomplete = "incomplete" // stored files are missing or truncated: store them again
	RetryLater = "later"      // it could not be recorded now: report again
)

// A ReportReply answers a Report.
type ReportReply struct {
	Version  int    `json:"version"`
	Outcome  string `json:"verdict"`
	Message  string `json:"message,omitempty"`
	Position uint64 `json:"position"` // of the log, at which it is recorded
}

// Purposes of a SignRequest.
const (
	ForCheckpoint = "checkpoint"
	ForResults    = "results"
)

// MaxFiles is the maximum number of files of a checkpoint or of results.
const MaxFiles = 1000

// A SignRequest asks for signed URLs to store files of an attempt.
type SignRequest struct {
	Version    int              `json:"version"`
	Job        domain.Name      `json:"job"`
	Attempt    int              `json:"attempt"`
	CreateTime time.Time        `json:"made"` // see TrainAssignment
	For        string           `json:"for"`
	Step       int              `json:"step,omitempty"` // of a checkpoint
	Sizes      map[string]int64 `json:"sizes"`          // file → bytes
}

// A SignReply holds a signed URL for the PUT of each file. The outcomes Stale and RetryLater mean
// the same as in a ReportReply.
type SignReply struct {
	Version int               `json:"version"`
	Outcome string            `json:"verdict"`
	Message string            `json:"message,omitempty"`
	URLs    map[string]string `json:"urls,omitempty"`
}

// MergeRows adds rows to those of a metrics file, which are sorted by step. The values of rows of
// one step are merged, the newer value of a metric replacing the older, so that an evaluation
// adds its metrics to the row of its step.
func MergeRows(rows []engines.Metrics, more ...engines.Metrics) []engines.Metrics {
	for _, row := range more {
		at, found := slices.BinarySearchFunc(rows, row.Step, func(r engines.Metrics, step int) int {
			return r.Step - step
		})
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
