package tinker

import (
	"encoding/json"
	"time"

	"anneal/domain"
)

// A WeightsInfoRequest requests facts about a checkpoint.
type WeightsInfoRequest struct {
	TinkerPath string `json:"tinker_path"`
}

func (r *WeightsInfoRequest) check(v *domain.Violations) {
	if _, err := ParsePath(r.TinkerPath); err != nil {
		v.Add("tinker_path", "%v", err)
	}
}

// WeightsInfo has the settings with which a run must be created to load a checkpoint.
type WeightsInfo struct {
	BaseModel    string `json:"base_model"`
	IsLora       bool   `json:"is_lora"`
	LoraRank     int    `json:"lora_rank,omitempty"`
	TrainUnembed *bool  `json:"train_unembed,omitempty"`
	TrainMLP     *bool  `json:"train_mlp,omitempty"`
	TrainAttn    *bool  `json:"train_attn,omitempty"`
}

// A TrainingRun describes a run.
type TrainingRun struct {
	TrainingRunID         string          `json:"training_run_id"`
	BaseModel             string          `json:"base_model"`
	ModelOwner            string          `json:"model_owner"`
	IsLora                bool            `json:"is_lora"`
	Corrupted             bool            `json:"corrupted"`
	LoraRank              int             `json:"lora_rank,omitempty"`
	LastRequestTime       time.Time       `json:"last_request_time"`
	LastCheckpoint        *Checkpoint     `json:"last_checkpoint,omitempty"`
	LastSamplerCheckpoint *Checkpoint     `json:"last_sampler_checkpoint,omitempty"`
	UserMetadata          json.RawMessage `json:"user_metadata,omitempty"`
}

// A Checkpoint describes a checkpoint of a run.
type Checkpoint struct {
	CheckpointID   string     `json:"checkpoint_id"` // such as "weights/final"
	CheckpointType string     `json:"checkpoint_type"`
	Time           time.Time  `json:"time"`
	TinkerPath     string     `json:"tinker_path"`
	SizeBytes      int64      `json:"size_bytes,omitempty"`
	Public         bool       `json:"public"`
	ExpiresAt      *time.Time `json:"expires_at,omitempty"`
}

// NewCheckpoint returns the description of a checkpoint.
func NewCheckpoint(path Path, created time.Time, size int64, expires *time.Time) Checkpoint {
	return Checkpoint{CheckpointID: path.CheckpointID(), CheckpointType: path.Kind.Type(), Time: created,
		TinkerPath: path.String(), SizeBytes: size, ExpiresAt: expires}
}

// A Cursor describes a page of a list.
type Cursor struct {
	Offset     int `json:"offset"`
	Limit      int `json:"limit"`
	TotalCount int `json:"total_count"`
}

// TrainingRuns is a page of runs.
type TrainingRuns struct {
	TrainingRuns []TrainingRun `json:"training_runs"`
	Cursor       Cursor        `json:"cursor"`
}

// Checkpoints is a page of checkpoints.
type Checkpoints struct {
	Checkpoints []Checkpoint `json:"checkpoints"`
	Cursor      *Cursor      `json:"cursor,omitempty"`
}

// Sessions is a page of IDs of sessions.
type Sessions struct {
	Sessions []string `json:"sessions"`
}

// A Session lists what was created in a session.
type Session struct {
	TrainingRunIDs []string `json:"training_run_ids"`
	SamplerIDs     []string `json:"sampler_ids"`
}

// An ArchiveURL is where the files of a checkpoint can be downloaded.
type ArchiveURL struct {
	URL     string    `json:"url"`
	Expires time.Time `json:"expires"`
}

// A TTLRequest changes when a checkpoint expires. Without TTLSeconds it does not expire.
type TTLRequest struct {
	TTLSeconds *int64 `json:"ttl_seconds"`
}

func (r *TTLRequest) check(v *domain.Violations) { checkTTL(v, r.TTLSeconds) }

// CheckPage checks the parameters limit and offset of a list.
func CheckPage(limit, offset int) error {
	var v domain.Violations
	v.Require(limit >= 1 && limit <= MaxPage, "limit", "must be 1 to %d, is %d; the default is %d", MaxPage, limit,
		DefaultPage)
	v.Require(offset >= 0, "offset", "must be at least 0, is %d", offset)
	return v.Err()
}
