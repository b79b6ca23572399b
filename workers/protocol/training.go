package protocol

import (
	"time"

	"anneal/domain"
	"anneal/engines"
)

// Subjects on which the agent of an attempt that serves training runs sends requests to the
// coordinator. Requests for runs, operations and samples are long polls: the coordinator holds them
// until it has something to send, at most TrainingHold. It replies to the others at once.
//
//	agents.<node>.training.runs        TrainingRunsRequest; the reply is TrainingRunsReply
//	agents.<node>.training.pull        TrainingPull; the reply is TrainingOperations
//	agents.<node>.training.samples     TrainingSamplesPull; the reply is TrainingOperations
//	agents.<node>.training.body        TrainingBodyRequest; the reply is TrainingBody
//	agents.<node>.training.result      TrainingResult; the reply is TrainingReply
//	agents.<node>.training.checkpoint  TrainingCheckpoint; the reply is TrainingReply
const (
	TrainingRuns        = "runs"
	TrainingPulls       = "pull"
	TrainingSamples     = "samples"
	TrainingBodies      = "body"
	TrainingResults     = "result"
	TrainingCheckpoints = "checkpoint"
)

// TrainingSubject returns the subject of one of the messages above. With "*" as the node's ID, it
// matches the messages of all nodes.
func TrainingSubject(node, message string) string { return "agents." + node + ".training." + message }

// TrainingHold is the maximum time for which the coordinator holds a long poll.
const TrainingHold = 10 * time.Second

// MaxTrainingInline is the maximum length in bytes of an operation's part or of a result in a
// message. A longer operation is sent in several parts, and a longer result is uploaded.
const MaxTrainingInline = 384 << 10

// MaxTrainingResult is the maximum length in bytes of a result that is uploaded.
const MaxTrainingResult = 256 << 20

// A TrainingAttempt identifies the attempt that serves the runs of a job. CreateTime is the
// creation time of the job: see TrainAssignment.
type TrainingAttempt struct {
	Job        domain.Name `json:"job"`
	Attempt    int         `json:"attempt"`
	CreateTime time.Time   `json:"made"`
}

// Outcomes of requests about a training run, besides those of a ReportReply. With Stale, the
// attempt is over.
const (
	RunEnded = "ended" // the run was unloaded, deleted or corrupted: the agent closes it
)

// A TrainingRunsRequest requests the runs of a job that the attempt does not serve yet.
type TrainingRunsRequest struct {
	Version int `json:"version"`
	TrainingAttempt
	Have []string `json:"have,omitempty"` // IDs of the runs that the attempt serves
}

// A TrainingRunsReply lists the runs that the attempt must open, and those that it must close.
type TrainingRunsReply struct {
	Version int           `json:"version"`
	Outcome string        `json:"verdict"`
	Message string        `json:"message,omitempty"`
	Open    []TrainingRun `json:"open,omitempty"`
	Close   []string      `json:"close,omitempty"` // IDs of runs that have ended
}

// A TrainingRun is a run that an attempt must open.
type TrainingRun struct {
	ID     string                 `json:"id"`
	Config engines.TrainRunConfig `json:"config"`
	State  *FileSet               `json:"state,omitempty"` // recovery checkpoint; nil for a new run
	Seq    int64                  `json:"seq,omitempty"`   // sequence number of the last operation in State
}

// TrainingState is the name of the file with the state of a run, in checkpoints for training and
// for recovery.
const TrainingState = "state"

// A TrainingPull requests the operation of a run that follows the operation with the number After.
type TrainingPull struct {
	Version int `json:"version"`
	TrainingAttempt
	Run   string `json:"run"`
	After int64  `json:"after"`
}

// A TrainingSamplesPull requests operations of the sampling sessions of a job.
type TrainingSamplesPull struct {
	Version int `json:"version"`
	TrainingAttempt
	// Running has the sequence numbers of the operations in progress, by sampling session.
	Running map[string][]int64 `json:"running,omitempty"`
	Max     int                `json:"max"` // maximum number of operations in the reply
}

// TrainingOperations is the reply to a TrainingPull, with at most one operation, and to a
// TrainingSamplesPull. It has none if there was none within TrainingHold.
type TrainingOperations struct {
	Version    int                 `json:"version"`
	Outcome    string              `json:"verdict"`
	Message    string              `json:"message,omitempty"`
	Operations []TrainingOperation `json:"operations,omitempty"`
}

// A TrainingOperation is an operation of a run or of a sampling session.
type TrainingOperation struct {
	Lane string `json:"lane"` // ID of the run or the sampling session
	Seq  int64  `json:"seq"`
	// Body is the beginning of the encoded engines.TrainOperation, and Size its complete length. The
	// rest is requested with TrainingBodyRequests.
	Body []byte `json:"body"`
	Size int64  `json:"size"`
	// Files has the checkpoint that the operation loads, or the adapter that it samples from.
	Files *FileSet `json:"files,omitempty"`
	// Done is set if the operation of a run has a result, because an earlier attempt executed it. The
	// agent replays it to restore the state of the run. Skip is set if the operation failed without
	// changing the state, so that it is not replayed.
	Done bool `json:"done,omitempty"`
	Skip bool `json:"skip,omitempty"`
}

// A TrainingBodyRequest requests the part of an operation that begins at an offset.
type TrainingBodyRequest struct {
	Version int `json:"version"`
	TrainingAttempt
	Lane    string `json:"lane"`
	Samples bool   `json:"samples,omitempty"` // whether Lane is a sampling session
	Seq     int64  `json:"seq"`
	Offset  int64  `json:"offset"`
}

// A TrainingBody is the reply to a TrainingBodyRequest.
type TrainingBody struct {
	Version int    `json:"version"`
	Outcome string `json:"verdict"`
	Message string `json:"message,omitempty"`
	Part    []byte `json:"part,omitempty"`
}

// A TrainingResult is the result of an operation. The first result of an operation is stored;
// others are ignored.
type TrainingResult struct {
	Version int `json:"version"`
	TrainingAttempt
	Lane    string `json:"lane"`
	Samples bool   `json:"samples,omitempty"` // whether Lane is a sampling session
	Seq     int64  `json:"seq"`               // 0 for opening a run, with Opened or Error
	Body    []byte `json:"body,omitempty"`    // encoded engines.TrainOperationResult
	// Upload is the number of the upload of the encoded result, if it is longer than
	// MaxTrainingInline; 0 if Body has the result.
	Upload int     `json:"upload,omitempty"`
	Error  *Error  `json:"fault,omitempty"`
	Opened *Opened `json:"opened,omitempty"`
	// Saved is the checkpoint that the operation has saved.
	Saved    *SavedTraining `json:"saved,omitempty"`
	Unloaded bool           `json:"unloaded,omitempty"` // the operation has unloaded the run
}

// Opened describes a run that an attempt has opened.
type Opened struct {
	BaseHash string   `json:"baseHash"`
	Kernel   string   `json:"kernel"`
	Warnings []string `json:"warnings,omitempty"`
}

// SavedTraining describes the uploaded files of a checkpoint of a run.
type SavedTraining struct {
	Checkpoint string            `json:"checkpoint"` // ID of the checkpoint: see SignRequest
	Kind       string            `json:"kind"`       // kind of domain.TrainingCheckpoint
	Save       engines.TrainSave `json:"save"`
	Steps      int               `json:"steps"` // number of steps that the run had taken
	Sizes      map[string]int64  `json:"sizes"`
	Sums       map[string]string `json:"sums"`
}

// A TrainingCheckpoint reports that the recovery checkpoint of a run is uploaded. It contains the
// operations up to Seq, whose results the coordinator has acknowledged.
type TrainingCheckpoint struct {
	Version int `json:"version"`
	TrainingAttempt
	Run   string        `json:"run"`
	Seq   int64         `json:"seq"`
	Saved SavedTraining `json:"saved"`
}

// A TrainingReply is the reply to a TrainingResult and a TrainingCheckpoint.
type TrainingReply struct {
	Version int    `json:"version"`
	Outcome string `json:"verdict"`
	Message string `json:"message,omitempty"`
}
