package tinker

import (
	"encoding/json"

	"anneal/domain"
)

// A ClientConfigRequest is the first request of a client.
type ClientConfigRequest struct {
	SDKVersion string `json:"sdk_version"`
}

// ClientConfig has the settings that the server sends to clients.
type ClientConfig struct {
	ParallelChunks               bool `json:"parallel_fwdbwd_chunks"`
	CompressPasses               bool `json:"proto_compress_fwdbwd"`
	MaxChunkLen                  int  `json:"fwdbwd_max_chunk_len"`
	MaxChunkBytes                int  `json:"fwdbwd_max_chunk_bytes_count"`
	MaxConcurrentSamples         int  `json:"sample_max_concurrent_requests"`
	CreateModelViaLoadWeights    bool `json:"create_model_via_load_weights"`
	PersonalizedTokenAuthEnabled bool `json:"pjwt_auth_enabled"`
}

// NewClientConfig returns the settings that this server sends.
func NewClientConfig() ClientConfig {
	return ClientConfig{ParallelChunks: true, CompressPasses: true, MaxChunkLen: MaxDatums, MaxChunkBytes: ChunkBytes,
		MaxConcurrentSamples: ConcurrentSamples}
}

// DynamicConfig has the settings that a client requests again while it runs.
type DynamicConfig struct {
	RefreshIntervalSec int `json:"refresh_interval_sec"`
}

// A CreateSessionRequest begins a session.
type CreateSessionRequest struct {
	Tags         []string        `json:"tags"`
	UserMetadata json.RawMessage `json:"user_metadata,omitempty"` // an object
	SDKVersion   string          `json:"sdk_version"`
	ProjectID    string          `json:"project_id,omitempty"`
}

func (r *CreateSessionRequest) check(v *domain.Violations) {
	v.Require(len(r.Tags) <= MaxTags, "tags", "must have at most %d entries, has %d", MaxTags, len(r.Tags))
	for i, tag := range r.Tags {
		checkText(v, index("tags", i), tag, MaxTagBytes, false)
	}
	checkMetadata(v, r.UserMetadata)
	checkText(v, "sdk_version", r.SDKVersion, MaxNameBytes, false)
	v.Require(r.ProjectID == "", "project_id", "is not supported: the account of the API key is the project; leave it out")
}

// A CreateSessionResponse has the ID of a session, and messages that a client prints.
type CreateSessionResponse struct {
	SessionID      string `json:"session_id"`
	InfoMessage    string `json:"info_message,omitempty"`
	WarningMessage string `json:"warning_message,omitempty"`
	ErrorMessage   string `json:"error_message,omitempty"`
	Type           string `json:"type"` // "create_session"
}

// A HeartbeatRequest keeps a session alive.
type HeartbeatRequest struct {
	SessionID string `json:"session_id"`
}

func (r *HeartbeatRequest) check(v *domain.Violations) {
	checkText(v, "session_id", r.SessionID, MaxNameBytes, true)
}

// A HeartbeatResponse is the response to a HeartbeatRequest.
type HeartbeatResponse struct {
	Type string `json:"type"` // "session_heartbeat"
}

// ServerCapabilities lists the models of a server.
type ServerCapabilities struct {
	SupportedModels []SupportedModel `json:"supported_models"`
}

// A SupportedModel is a base model that can be trained.
type SupportedModel struct {
	ModelName        string `json:"model_name"`
	MaxContextLength int    `json:"max_context_length,omitempty"`
}

// Health is the response of healthz.
type Health struct {
	Status string `json:"status"` // "ok"
}

// A TelemetryRequest has events of a client, which the server discards.
type TelemetryRequest struct {
	Events      []json.RawMessage `json:"events"`
	Platform    string            `json:"platform"`
	SDKVersion  string            `json:"sdk_version"`
	SessionID   string            `json:"session_id"`
	ProcessUUID string            `json:"process_uuid"`
}

func (r *TelemetryRequest) check(v *domain.Violations) {
	v.Require(len(r.Events) <= MaxEvents, "events", "must have at most %d entries, has %d", MaxEvents, len(r.Events))
	checkText(v, "session_id", r.SessionID, MaxNameBytes, false)
}

// A TelemetryResponse is the response to a TelemetryRequest.
type TelemetryResponse struct {
	Status string `json:"status"` // "accepted"
}

// A CreateModelRequest creates a training run, which the protocol calls a model.
type CreateModelRequest struct {
	SessionID    string           `json:"session_id"`
	ModelSeqID   *int64           `json:"model_seq_id"` // number of the run in its session, from 0
	BaseModel    string           `json:"base_model"`
	LoraConfig   *LoraConfig      `json:"lora_config,omitempty"`
	UserMetadata json.RawMessage  `json:"user_metadata,omitempty"` // an object
	Optimizer    *OptimizerConfig `json:"optimizer,omitempty"`     // newer clients
}

func (r *CreateModelRequest) check(v *domain.Violations) {
	checkText(v, "session_id", r.SessionID, MaxNameBytes, true)
	checkSeq(v, "model_seq_id", r.ModelSeqID, 0)
	checkText(v, "base_model", r.BaseModel, MaxNameBytes, true)
	checkMetadata(v, r.UserMetadata)
	if r.LoraConfig == nil {
		v.Add("lora_config", "is required: this server trains adapters; set its rank")
	} else {
		r.LoraConfig.check(v, "lora_config.")
	}
	if r.Optimizer != nil {
		v.Require(r.Optimizer.Type == OptimizerAdamW, "optimizer.type", "must be %q, is %s", OptimizerAdamW,
			quote(r.Optimizer.Type))
	}
}

// OptimizerAdamW is the only optimizer.
const OptimizerAdamW = "adamw"

// An OptimizerConfig selects the optimizer of a run.
type OptimizerConfig struct {
	Type string `json:"type"`
}

// A CreateModelResponse is the result of a CreateModelRequest.
type CreateModelResponse struct {
	ModelID string `json:"model_id"`
	Type    string `json:"type"` // "create_model"
}

// An UnloadModelRequest ends a training run.
type UnloadModelRequest struct {
	ModelID string `json:"model_id"`
}

func (r *UnloadModelRequest) check(v *domain.Violations) { checkModel(v, r.ModelID) }

// An UnloadModelResponse is the result of an UnloadModelRequest.
type UnloadModelResponse struct {
	ModelID string `json:"model_id"`
	Type    string `json:"type"` // "unload_model"
}

// A ModelInfoRequest requests facts about a run.
type ModelInfoRequest struct {
	ModelID string `json:"model_id"`
}

func (r *ModelInfoRequest) check(v *domain.Violations) { checkModel(v, r.ModelID) }

// ModelInfo has facts about a run.
type ModelInfo struct {
	ModelID   string    `json:"model_id"`
	ModelData ModelData `json:"model_data"`
	IsLora    bool      `json:"is_lora"`
	LoraRank  int       `json:"lora_rank,omitempty"`
	ModelName string    `json:"model_name,omitempty"`
	Type      string    `json:"type"` // "get_info"
}

// ModelData has facts about the base model of a run.
type ModelData struct {
	Arch        string `json:"arch,omitempty"`
	ModelName   string `json:"model_name,omitempty"`
	TokenizerID string `json:"tokenizer_id,omitempty"`
}
