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
	ReportCheckpoint = "checkpoint" // the files of a checkpoint were uploaded
	ReportWriting    = "writing"    // the training is complete, and the results are being uploaded
	ReportCompleted  = "completed"  // the training is complete, and its results were uploaded or are in the report
	ReportFailed     = "failed"     // the attempt failed
	ReportStopped    = "stopped"    // the attempt was canceled and has stopped; it reported its last checkpoint before
	// the attempt served training runs and has stopped, because the coordinator listed it in
	// Assignments.Idle; it reported the last checkpoints of its runs before
	ReportIdle = "idle"
)

// A Report tells the coordinator about a change of an attempt. The agent sends it until it gets a
// reply.
type Report struct {
	Version    int               `json:"version"`
	Boot       string            `json:"boot"`
	Kind       string            `json:"kind"`
	Job        domain.Name       `json:"job"`
	Attempt    int               `json:"attempt"`
	CreateTime time.Time         `json:"made"`            // creation time of the job; see TrainAssignment
	Step       int               `json:"step,omitempty"`  // training step of the checkpoint
	Sizes      map[string]int64  `json:"sizes,omitempty"` // by file name: length of each uploaded file in bytes
	Sums       map[string]string `json:"sums,omitempty"`  // by file name: SHA-256 of each uploaded file in hexadecimal
	// Files has the content of result files that the agent has not uploaded, and Log the log of the
	// job, each of at most MaxInline bytes in total. A coordinator of an earlier version ignores them
	// and replies Incomplete, after which the agent uploads the files.
	Files map[string][]byte `json:"files,omitempty"`
	Log   []byte            `json:"log,omitempty"`
	// in a report of the kind ReportCheckpoint: newest value of each metric at its step
	Metrics map[string]float64 `json:"metrics,omitempty"`
	// what the attempt produced; only in a report of the kind ReportCompleted
	Result *Result `json:"result,omitempty"`
	// why the attempt failed; only in a report of the kind ReportFailed
	Error *Error `json:"fault,omitempty"`
	// the node caused the failure, so it does not count toward the job's maximum number of failures
	Preempted bool `json:"preempted,omitempty"`
}

// A Result describes what a completed attempt produced, besides its files.
type Result struct {
	Adapter      bool   `json:"adapter"`
	StoppedEarly bool   `json:"stoppedEarly"`
	Reason       string `json:"reason,omitempty"` // why the training stopped early; "" when it did not
}

// Outcomes of a report or a SignRequest.
const (
	Accepted   = "accepted"   // the coordinator has recorded the report
	Stale      = "stale"      // the attempt is over; the agent stops it and reports nothing more
	Incomplete = "incomplete" // the store lacks files, or has them with another length; the agent uploads them again
	RetryLater = "later"      // the control plane cannot process the report now; the agent sends it again
)

// A ReportReply is the reply to a Report.
type ReportReply struct {
	Version  int    `json:"version"`
	Outcome  string `json:"verdict"`
	Message  string `json:"message,omitempty"`
	Position uint64 `json:"position"` // log position at which the report is recorded

	LogStored bool `json:"logStored,omitempty"` // the log in the report was stored
}

// MaxInline is the maximum length in bytes of all Files of a report together, and that of its Log.
const MaxInline = 64 << 10

// Purposes of a SignRequest: the kind of files to upload.
const (
	ForCheckpoint = "checkpoint"
	ForResults    = "results"
	ForRollouts   = "rollouts" // only the file engines.RolloutsFile, of at most engines.MaxRolloutsBytes
	ForTraining   = "training" // a checkpoint of a run: see SignRequest.Run
	// only the file TrainingResultFile, of at most MaxTrainingResult bytes: see TrainingResult.Upload
	ForTrainingResult = "trainingResult"
)

// MaxFiles is the maximum number of files in a checkpoint or in results.
const MaxFiles = 1000

// A SignRequest requests signed URLs for uploading files of an attempt.
type SignRequest struct {
	Version    int              `json:"version"`
	Job        domain.Name      `json:"job"`
	Attempt    int              `json:"attempt"`
	CreateTime time.Time        `json:"made"` // creation time of the job; see TrainAssignment
	For        string           `json:"for"`
	Step       int              `json:"step,omitempty"` // training step of the checkpoint
	Sizes      map[string]int64 `json:"sizes"`          // by file name: length in bytes of each file to upload

	Run        string `json:"run,omitempty"`        // run of a checkpoint for ForTraining
	Checkpoint string `json:"checkpoint,omitempty"` // ID of the checkpoint for ForTraining, unique within the run
	// number of the upload for ForTrainingResult, unique within the attempt
	Upload int `json:"upload,omitempty"`
}

// TrainingResultFile is the name of the file with a result in a SignRequest for ForTrainingResult.
const TrainingResultFile = "result"

// A SignReply has a signed URL for uploading each file (HTTP PUT). The outcomes Stale and
// RetryLater mean the same as in a ReportReply.
type SignReply struct {
	Version int               `json:"version"`
	Outcome string            `json:"verdict"`
	Message string            `json:"message,omitempty"`
	URLs    map[string]string `json:"urls,omitempty"`
	Prefix  string            `json:"prefix,omitempty"` // for ForTraining: where the files will be stored
}

// MergeRows adds the rows in more to rows and returns the result in ascending order of steps. rows
// must be in that order. Rows of the same step become one row, because an evaluation adds metrics
// to the row of its step. When both have a metric, the value in more is kept.
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
