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
	ReportWriting    = "writing"    // training has ended, and the results are being stored
	ReportCompleted  = "completed"  // the results are stored
	ReportFailed     = "failed"     // the attempt failed
	ReportStopped    = "stopped"    // the attempt was canceled; its last checkpoint was reported before
)

// A Report records one event of an attempt. The agent repeats the report until it receives a reply.
type Report struct {
	Version    int               `json:"version"`
	Boot       string            `json:"boot"`
	Kind       string            `json:"kind"`
	Job        domain.Name       `json:"job"`
	Attempt    int               `json:"attempt"`
	CreateTime time.Time         `json:"made"`            // see TrainAssignment
	Step       int               `json:"step,omitempty"`  // step of the checkpoint
	Sizes      map[string]int64  `json:"sizes,omitempty"` // sizes of the stored files: file → bytes
	Sums       map[string]string `json:"sums,omitempty"`  // SHA-256 sums of the stored files: file → hexadecimal
	// Files holds the content of the result's files, and Log the job's log, of at most MaxInline bytes
	// each, if the agent has not stored them. A coordinator that ignores these fields replies
	// Incomplete, and the agent then stores the files.
	Files     map[string][]byte  `json:"files,omitempty"`
	Log       []byte             `json:"log,omitempty"`
	Metrics   map[string]float64 `json:"metrics,omitempty"`   // latest value of each metric at the checkpoint
	Result    *Result            `json:"result,omitempty"`    // result of a completed attempt
	Error     *Error             `json:"fault,omitempty"`     // error of a failed attempt
	Preempted bool               `json:"preempted,omitempty"` // the failure is not counted: the node caused it
}

// A Result describes what a completed attempt produced.
type Result struct {
	Adapter      bool   `json:"adapter"`
	StoppedEarly bool   `json:"stoppedEarly"`
	Reason       string `json:"reason,omitempty"` // reason of stopping early
}

// Outcomes of a report.
const (
	Accepted   = "accepted"   // the report is recorded
	Stale      = "stale"      // the attempt is over: the agent stops it without further reports
	Incomplete = "incomplete" // stored files are missing or truncated: the agent stores them again
	RetryLater = "later"      // the report could not be recorded: the agent sends it again
)

// A ReportReply is the reply to a Report.
type ReportReply struct {
	Version  int    `json:"version"`
	Outcome  string `json:"verdict"`
	Message  string `json:"message,omitempty"`
	Position uint64 `json:"position"` // log position at which the report is recorded

	LogStored bool `json:"logStored,omitempty"` // the Log of the report is stored
}

// MaxInline is the maximum size in bytes of all files in a report, and of the log in a report.
const MaxInline = 64 << 10

// Purposes of a SignRequest.
const (
	ForCheckpoint = "checkpoint"
	ForResults    = "results"
	ForRollouts   = "rollouts" // engines.RolloutsFile only, at most engines.MaxRolloutsBytes
)

// MaxFiles is the maximum number of files of a checkpoint or of results.
const MaxFiles = 1000

// A SignRequest requests signed URLs to store files of an attempt.
type SignRequest struct {
	Version    int              `json:"version"`
	Job        domain.Name      `json:"job"`
	Attempt    int              `json:"attempt"`
	CreateTime time.Time        `json:"made"` // see TrainAssignment
	For        string           `json:"for"`
	Step       int              `json:"step,omitempty"` // step of the checkpoint
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

// MergeRows adds the rows in more to rows, which are sorted by step, and returns the sorted result.
// It merges rows with the same step, so that an evaluation adds its metrics to the row of its step.
// If both rows have a metric, the value of the row in more is kept.
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
