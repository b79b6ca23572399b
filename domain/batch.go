package domain

import (
	"time"
	"unicode/utf8"
)

// A batch sends the requests of a file to a model, at low priority, and stores the results as
// files.
//
//	(none)      --CreateBatch-->    validating
//	validating  --StartBatch-->     in_progress
//	in_progress --ReportBatch-->    in_progress, with the number of processed requests
//	in_progress --FinalizeBatch-->  finalizing: all requests are processed, or expireTime has passed
//	finalizing  --EndBatch-->       completed | expired
//	validating, in_progress --CancelBatch--> cancelling --EndBatch--> cancelled
//	any that has not ended  --FailBatch-->   failed
//	ended       --RemoveBatch-->    (none)
var Batches = NewKind("batches", map[string]Event[Batch]{
	"batch.created.v1":    BatchCreated{},
	"batch.started.v1":    BatchStarted{},
	"batch.progressed.v1": BatchProgressed{},
	"batch.finalizing.v1": BatchFinalizing{},
	"batch.completed.v1":  BatchCompleted{},
	"batch.expired.v1":    BatchExpired{},
	"batch.cancelling.v1": BatchCancelling{},
	"batch.cancelled.v1":  BatchCancelled{},
	"batch.failed.v1":     BatchFailed{},
	"batch.removed.v1":    BatchRemoved{},
})

// Batch states, as the OpenAI API shows them.
const (
	BatchValidating      = "validating"
	BatchFailedState     = "failed"
	BatchInProgress      = "in_progress"
	BatchFinalizingState = "finalizing"
	BatchCompletedState  = "completed"
	BatchExpiredState    = "expired"
	BatchCancellingState = "cancelling"
	BatchCancelledState  = "cancelled"
)

// Limits of batches.
const (
	MaxLiveBatches    = 100     // maximum number of batches of one account that have not ended
	MaxBatchRequests  = 50_000  // maximum number of requests in an input file, one per line
	MaxBatchLine      = 4 << 20 // maximum length of a line of an input file in bytes
	MaxBatchErrors    = 100     // maximum number of BatchErrors of a failed batch
	BatchWindow       = "24h"
	BatchTime         = 24 * time.Hour
	EndedBatchesStay  = 30 * 24 * time.Hour // time from the end of a batch to its removal; its result files stay
	batchMetadataPath = "metadata"
)

// BatchEndpoints are the paths to which batches send requests.
var BatchEndpoints = []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings"}

// BatchResultFiles are the names of the result files of a batch. The first has the responses with
// status 200, and the second all other responses.
var BatchResultFiles = []string{"output", "errors"}

// BatchSpec holds the fields of a batch that the caller sets.
type BatchSpec struct {
	Input    Name              `json:"input"` // name of the batch file with the requests
	Endpoint string            `json:"endpoint"`
	Window   string            `json:"window"`
	Metadata map[string]string `json:"metadata,omitempty"` // key-value pairs of the client
}

// BatchCounts counts the requests of a batch by their result.
type BatchCounts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"` // number of requests answered with HTTP status 200
	Failed    int `json:"failed"`    // number of requests answered with another status
}

// A BatchError is a reason why a batch has failed.
type BatchError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Line    int    `json:"line,omitempty"` // line of the input file, from 1; 0 if the error is not in one line
	Param   string `json:"param,omitempty"`
}

// BatchResults holds the names of the batch files with the results; "" if a file would be empty.
type BatchResults struct {
	Output Name `json:"output,omitempty"`
	Errors Name `json:"errors,omitempty"`
}

// Batch is the state of one batch.
type Batch struct {
	BatchSpec
	State      string       `json:"state"`
	CreatedBy  string       `json:"createdBy"`
	Model      string       `json:"model,omitempty"` // model that all requests name; "" until they are validated
	Counts     BatchCounts  `json:"counts"`
	Failures   []BatchError `json:"failures,omitempty"`
	Results    BatchResults `json:"results"`
	Overdue    bool         `json:"overdue,omitempty"` // the batch ends because its ExpireTime has passed
	ExpireTime time.Time    `json:"expireTime"`
	StartTime  *time.Time   `json:"startTime,omitempty"`
	FinalTime  *time.Time   `json:"finalTime,omitempty"`  // when the batch became finalizing; nil before
	CancelTime *time.Time   `json:"cancelTime,omitempty"` // when the cancellation was requested; nil without a request
	EndTime    *time.Time   `json:"endTime,omitempty"`
}

// Exists implements State.
func (b Batch) Exists() bool { return b.State != "" }

// StateName implements StateNamer.
func (b Batch) StateName() string { return b.State }

// Live reports whether the batch has not ended.
func (b Batch) Live() bool { return b.Exists() && b.EndTime == nil }

// References implements Referrer. A live batch refers to its input file.
func (b Batch) References(Name) []string {
	if !b.Live() {
		return nil
	}
	return []string{string(b.Input)}
}

type BatchCreated struct {
	BatchSpec
	CreatedBy  string    `json:"createdBy"`
	ExpireTime time.Time `json:"expireTime"`
}

func (e BatchCreated) Evolve(b *Batch) {
	*b = Batch{BatchSpec: e.BatchSpec, CreatedBy: e.CreatedBy, ExpireTime: e.ExpireTime, State: BatchValidating}
}

type BatchStarted struct {
	Total int       `json:"total"`
	Model string    `json:"model"`
	Time  time.Time `json:"time"`
}

func (e BatchStarted) Evolve(b *Batch) {
	b.State, b.Model, b.Counts, b.StartTime = BatchInProgress, e.Model, BatchCounts{Total: e.Total}, &e.Time
}

type BatchProgressed struct {
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

func (e BatchProgressed) Evolve(b *Batch) {
	b.Counts.Completed, b.Counts.Failed = e.Completed, e.Failed
}

type BatchFinalizing struct {
	Completed int       `json:"completed"`
	Failed    int       `json:"failed"`
	Overdue   bool      `json:"overdue,omitempty"`
	Time      time.Time `json:"time"`
}

func (e BatchFinalizing) Evolve(b *Batch) {
	b.State, b.Overdue, b.FinalTime = BatchFinalizingState, e.Overdue, &e.Time
	b.Counts.Completed, b.Counts.Failed = e.Completed, e.Failed
}

type BatchCancelling struct {
	Time time.Time `json:"time"`
}

func (e BatchCancelling) Evolve(b *Batch) { b.State, b.CancelTime = BatchCancellingState, &e.Time }

// A BatchEnd holds the result files and the counts of a batch that has ended.
type BatchEnd struct {
	BatchResults
	Completed int       `json:"completed"`
	Failed    int       `json:"failed"`
	Time      time.Time `json:"time"`
}

func (e BatchEnd) evolve(b *Batch, state string) {
	b.State, b.Results, b.EndTime = state, e.BatchResults, &e.Time
	b.Counts.Completed, b.Counts.Failed = e.Completed, e.Failed
}

type BatchCompleted struct{ BatchEnd }

func (e BatchCompleted) Evolve(b *Batch) { e.evolve(b, BatchCompletedState) }

type BatchExpired struct{ BatchEnd }

func (e BatchExpired) Evolve(b *Batch) { e.evolve(b, BatchExpiredState) }

type BatchCancelled struct{ BatchEnd }

func (e BatchCancelled) Evolve(b *Batch) { e.evolve(b, BatchCancelledState) }

type BatchFailed struct {
	Failures []BatchError `json:"failures"`
	Time     time.Time    `json:"time"`
}

func (e BatchFailed) Evolve(b *Batch) {
	b.State, b.Failures, b.EndTime = BatchFailedState, e.Failures, &e.Time
}

type BatchRemoved struct{}

func (BatchRemoved) Evolve(b *Batch) { *b = Batch{} }

// check returns an error that lists the violations under the field names of the OpenAI API; nil
// without violations.
func (s BatchSpec) check() error {
	var v Violations
	oneOf(&v, "endpoint", s.Endpoint, BatchEndpoints...)
	v.Require(s.Endpoint != "", "endpoint", "is required")
	v.Require(s.Window == BatchWindow, "completion_window", "must be %s", BatchWindow)
	v.Require(s.Input != "", "input_file_id", "is required")
	v.Require(len(s.Metadata) <= MaxMetadata, batchMetadataPath, "must have at most %d entries, not %d", MaxMetadata,
		len(s.Metadata))
	for key, value := range s.Metadata {
		if utf8.RuneCountInString(key) > MaxMetadataKey || utf8.RuneCountInString(value) > MaxMetadataValue {
			v.Add(batchMetadataPath, "a key must have at most %d characters, and a value at most %d", MaxMetadataKey,
				MaxMetadataValue)
			break
		}
	}
	return v.Err()
}
