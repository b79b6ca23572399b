package tinker

import (
	"encoding/json"
	"strings"

	"anneal/domain"
)

// An OptimStepRequest requests a step of the optimizer.
type OptimStepRequest struct {
	ModelID    string      `json:"model_id"`
	SeqID      *int64      `json:"seq_id,omitempty"`
	AdamParams *AdamParams `json:"adam_params"`
}

func (r *OptimStepRequest) check(v *domain.Violations) {
	checkModel(v, r.ModelID)
	checkSeq(v, "seq_id", r.SeqID, 1)
	if r.AdamParams == nil {
		v.Add("adam_params", "is required: an empty object stands for the defaults")
		return
	}
	r.AdamParams.check(v, "adam_params.")
}

// An OptimStepResponse is the result of a step.
type OptimStepResponse struct {
	Metrics map[string]float64 `json:"metrics,omitempty"`
}

// A SaveWeightsRequest saves the state of a run for training.
type SaveWeightsRequest struct {
	ModelID    string  `json:"model_id"`
	SeqID      *int64  `json:"seq_id,omitempty"`
	Path       *string `json:"path,omitempty"` // name of the checkpoint; nil stands for a name that the server chooses
	TTLSeconds *int64  `json:"ttl_seconds,omitempty"`
	Overwrite  bool    `json:"overwrite,omitempty"`
}

func (r *SaveWeightsRequest) check(v *domain.Violations) {
	checkModel(v, r.ModelID)
	checkSeq(v, "seq_id", r.SeqID, 1)
	if r.Path != nil {
		checkName(v, "path", *r.Path)
	}
	checkTTL(v, r.TTLSeconds)
}

// A SaveWeightsResponse has the path of a saved state.
type SaveWeightsResponse struct {
	Path string `json:"path"`
	Type string `json:"type"` // "save_weights"
}

// A SaveWeightsForSamplerRequest saves the adapter of a run for sampling: under the name Path, or,
// if Path is nil, as an ephemeral checkpoint of a new sampling session.
type SaveWeightsForSamplerRequest struct {
	ModelID              string  `json:"model_id"`
	SeqID                *int64  `json:"seq_id,omitempty"`
	Path                 *string `json:"path,omitempty"`
	SamplingSessionSeqID *int64  `json:"sampling_session_seq_id,omitempty"`
	TTLSeconds           *int64  `json:"ttl_seconds,omitempty"`
}

// Ephemeral reports whether the request is for a new sampling session.
func (r *SaveWeightsForSamplerRequest) Ephemeral() bool { return r.Path == nil }

func (r *SaveWeightsForSamplerRequest) check(v *domain.Violations) {
	checkModel(v, r.ModelID)
	checkSeq(v, "seq_id", r.SeqID, 1)
	switch {
	case r.Path != nil:
		checkName(v, "path", *r.Path)
	case r.SamplingSessionSeqID == nil:
		v.Add("path", "is required, unless sampling_session_seq_id is set")
	}
	if r.SamplingSessionSeqID != nil {
		checkSeq(v, "sampling_session_seq_id", r.SamplingSessionSeqID, 0)
	}
	checkTTL(v, r.TTLSeconds)
}

// A SaveWeightsForSamplerResponse has the path of a saved adapter, or the ID of a sampling session.
type SaveWeightsForSamplerResponse struct {
	Path              string `json:"path,omitempty"`
	SamplingSessionID string `json:"sampling_session_id,omitempty"`
	Type              string `json:"type"` // "save_weights_for_sampler"
}

// A LoadWeightsRequest loads a checkpoint. It is the first operation of its run.
type LoadWeightsRequest struct {
	ModelID            string `json:"model_id,omitempty"`
	SeqID              *int64 `json:"seq_id,omitempty"`
	Path               string `json:"path"`
	Optimizer          bool   `json:"optimizer"` // also load the optimizer state
	WeightsAccessToken string `json:"weights_access_token,omitempty"`
}

func (r *LoadWeightsRequest) check(v *domain.Violations) {
	checkModel(v, r.ModelID)
	checkSeq(v, "seq_id", r.SeqID, 1)
	v.Require(r.SeqID == nil || *r.SeqID == 1, "seq_id", "must be 1, is %d: load weights before any other operation of "+
		"the run", valueOf(r.SeqID, 1))
	path, err := ParsePath(r.Path)
	switch {
	case err != nil:
		v.Add("path", "%v", err)
	case r.Optimizer && path.Kind != TrainingCheckpoint:
		v.Add("path", "must be the path of a state for training, with /%s/, because optimizer is true; is %s",
			TrainingCheckpoint, quote(r.Path))
	}
	v.Require(r.WeightsAccessToken == "", "weights_access_token", "is not supported: checkpoints are loaded by keys of "+
		"their own account; leave it out")
}

// A LoadWeightsResponse is the result of a LoadWeightsRequest.
type LoadWeightsResponse struct {
	Path    string `json:"path,omitempty"`
	ModelID string `json:"model_id,omitempty"`
	Type    string `json:"type"` // "load_weights"
}

// A CheckpointKind is the kind of a checkpoint in a path.
type CheckpointKind string

// The kinds of checkpoints.
const (
	TrainingCheckpoint CheckpointKind = "weights"
	SamplerCheckpoint  CheckpointKind = "sampler_weights"
)

// Type returns the kind as lists of checkpoints spell it: training or sampler.
func (k CheckpointKind) Type() string {
	if k == SamplerCheckpoint {
		return "sampler"
	}
	return "training"
}

// A Path names a checkpoint of a run.
type Path struct {
	Run  string
	Kind CheckpointKind
	Name string
}

const scheme = "tinker://"

func (p Path) String() string { return scheme + p.Run + "/" + string(p.Kind) + "/" + p.Name }

// CheckpointID returns the ID of the checkpoint in its run, such as "weights/final".
func (p Path) CheckpointID() string { return string(p.Kind) + "/" + p.Name }

// ParsePath parses a path.
func ParsePath(text string) (Path, error) {
	parts := strings.Split(strings.TrimPrefix(text, scheme), "/")
	if len(text) > MaxPathBytes || !strings.HasPrefix(text, scheme) || len(parts) != 3 {
		return Path{}, badPath(text)
	}
	p := Path{Run: parts[0], Kind: CheckpointKind(parts[1]), Name: parts[2]}
	var v domain.Violations
	checkName(&v, "path", p.Name)
	checkText(&v, "path", p.Run, MaxNameBytes, true)
	if len(v) > 0 || p.Kind != TrainingCheckpoint && p.Kind != SamplerCheckpoint {
		return Path{}, badPath(text)
	}
	return p, nil
}

func badPath(text string) error {
	return domain.Errorf(domain.InvalidArgument, "must be %sRUN/%s/NAME or %sRUN/%s/NAME, is %s", scheme,
		TrainingCheckpoint, scheme, SamplerCheckpoint, quote(text))
}

// A Submitted is the response to an operation that was accepted.
type Submitted struct {
	RequestID string `json:"request_id"`
	ModelID   string `json:"model_id,omitempty"`
}

// A FutureRequest requests the result of an operation.
type FutureRequest struct {
	RequestID         string `json:"request_id"`
	AllowMetadataOnly bool   `json:"allow_metadata_only,omitempty"`
}

func (r *FutureRequest) check(v *domain.Violations) {
	checkText(v, "request_id", r.RequestID, MaxPathBytes, true)
}

// A QueueState says why an operation has no result yet.
type QueueState string

// The states of an operation without a result.
const (
	QueueActive          QueueState = "active"
	QueuePausedCapacity  QueueState = "paused_capacity"
	QueuePausedRateLimit QueueState = "paused_rate_limit"
)

// TryAgain is the response to a FutureRequest for an operation that has no result yet.
type TryAgain struct {
	Type             string     `json:"type"` // "try_again"
	RequestID        string     `json:"request_id"`
	QueueState       QueueState `json:"queue_state"`
	QueueStateReason string     `json:"queue_state_reason,omitempty"`
}

// NewTryAgain returns the response for an operation.
func NewTryAgain(requestID string, state QueueState, reason string) TryAgain {
	return TryAgain{Type: "try_again", RequestID: requestID, QueueState: state, QueueStateReason: reason}
}

// ResultMetadata is the response to a FutureRequest with AllowMetadataOnly for a large result.
type ResultMetadata struct {
	Status              string `json:"status"` // "complete_metadata"
	ResponsePayloadSize int    `json:"response_payload_size"`
}

// A Category says whether the user or the operator of the server can fix the error of an operation.
type Category string

// The categories of errors.
const (
	CategoryUser    Category = "user"
	CategoryServer  Category = "server"
	CategoryUnknown Category = "unknown"
)

// Failed is the result of an operation that failed.
type Failed struct {
	Error    string   `json:"error"`
	Category Category `json:"category"`
}

// NewFailed returns the result for an error.
func NewFailed(err error) Failed {
	category := CategoryServer
	switch domain.CodeOf(err) {
	case domain.InvalidArgument, domain.FailedPrecondition, domain.NotFound, domain.OutOfRange, domain.AlreadyExists,
		domain.PermissionDenied, domain.Unauthenticated, domain.Unimplemented, domain.Canceled:
		category = CategoryUser
	case domain.Unknown:
		category = CategoryUnknown
	}
	return Failed{Error: err.Error(), Category: category}
}

// An Error is the body of a response with an error status. Clients show Detail.
type Error struct {
	Detail  string          `json:"detail"`
	Code    string          `json:"code,omitempty"`   // canonical code, such as INVALID_ARGUMENT
	Reason  string          `json:"reason,omitempty"` // such as INVALID_FIELDS
	Details json.RawMessage `json:"details,omitempty"`
}
