package rest

import (
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// TrainingRun is the wire type of a training run: an adapter that a client of a training service
// trains. Clients create runs at the direct route of a trainer job: see package api/tinker.
type TrainingRun struct {
	Name         string                        `json:"name" api:"output"`
	Job          domain.Name                   `json:"job" api:"output"`
	Session      domain.Name                   `json:"session" api:"output"`
	BaseModel    domain.Name                   `json:"baseModel" api:"output"`
	Config       TrainingRunConfig             `json:"config" api:"output"`
	UserMetadata map[string]string             `json:"userMetadata,omitempty" api:"output"`
	State        string                        `json:"state" api:"output"`
	Opening      *domain.TrainingRunOpening    `json:"opening,omitempty" api:"output"`
	Checkpoints  []TrainingCheckpoint          `json:"checkpoints,omitempty" api:"output"`
	Corruption   *domain.TrainingRunCorruption `json:"corruption,omitempty" api:"output"`
	UnloadTime   *time.Time                    `json:"unloadTime,omitempty" api:"output"`
	CreateTime   *time.Time                    `json:"createTime,omitempty" api:"output"`
	UpdateTime   *time.Time                    `json:"updateTime,omitempty" api:"output"`
	CreatedBy    string                        `json:"createdBy,omitempty" api:"output"`
}

// TrainingRunConfig is the wire type of the settings of a training run's adapter.
type TrainingRunConfig struct {
	Rank         int          `json:"rank" api:"output"`
	Alpha        float64      `json:"alpha" api:"output"`
	Seed         domain.Count `json:"seed" api:"output"`
	TrainAttn    bool         `json:"trainAttn" api:"output"`
	TrainMLP     bool         `json:"trainMlp" api:"output"`
	TrainUnembed bool         `json:"trainUnembed" api:"output"`
}

// TrainingCheckpoint is the wire type of a checkpoint of a training run.
type TrainingCheckpoint struct {
	Type       string       `json:"checkpointType" api:"output"`
	Name       string       `json:"name" api:"output"`
	Sequence   domain.Count `json:"sequence" api:"output"`
	Steps      int          `json:"steps" api:"output"`
	SizeBytes  domain.Count `json:"sizeBytes" api:"output"`
	Ephemeral  bool         `json:"ephemeral,omitempty" api:"output"`
	Attempt    int          `json:"attempt" api:"output"`
	CreateTime *time.Time   `json:"createTime,omitempty" api:"output"`
	ExpireTime *time.Time   `json:"expireTime,omitempty" api:"output"`
}

var trainingRuns = &resource[domain.TrainingRun, TrainingRun]{
	kind: domain.TrainingRuns, noun: "training run", order: "createTime", reads: request.Read, writes: request.Write,
	fields: storedFieldsOf[domain.TrainingRun, TrainingRun]("name", "job", "session", "baseModel", "state", "unloadTime",
		"createTime", "updateTime"),
	creator:   func(r *domain.TrainingRun) string { return r.CreatedBy },
	dependent: map[string]func(*projections.Row[domain.TrainingRun]) bool{},
	render: func(v *projections.View, row *projections.Row[domain.TrainingRun], out *TrainingRun) {
		r := &row.State
		*out = TrainingRun{Name: string(row.Name), Job: r.Job, Session: r.Session, BaseModel: r.BaseModel,
			Config:       renderRunConfig(r.Config),
			UserMetadata: r.UserMetadata, State: r.State, Opening: r.Opening, Corruption: r.Corruption,
			UnloadTime: r.UnloadTime, CreateTime: wire.TimestampOf(&row.CreateTime),
			UpdateTime: wire.TimestampOf(&row.UpdateTime),
			CreatedBy:  creatorOf(v, r.CreatedBy)}
		for _, c := range r.Checkpoints {
			out.Checkpoints = append(out.Checkpoints, TrainingCheckpoint{Type: c.Kind, Name: c.Name,
				Sequence: domain.Count(c.Seq), Steps: c.Steps, SizeBytes: domain.Count(c.Files.Bytes()),
				Ephemeral: c.Ephemeral, Attempt: c.Attempt, CreateTime: wire.TimestampOf(&c.Time),
				ExpireTime: c.ExpireTime})
		}
	},
}

func renderRunConfig(c domain.TrainingRunConfig) TrainingRunConfig {
	return TrainingRunConfig{c.Rank, c.Alpha, domain.Count(c.Seed), c.TrainAttn, c.TrainMLP, c.TrainUnembed}
}

var _ = register(trainingRuns.operations)

// trainingTexts describe the fields of the wire types of training sessions and runs.
var trainingTexts = map[string]string{
	"trainingSessions":                  "The training sessions of this page.",
	"trainingRuns":                      "The training runs of this page.",
	"TrainingSession.job":               "Resource name of the trainer job whose training service the client uses.",
	"TrainingSession.tags":              "Tags that the client has set.",
	"TrainingSession.userMetadata":      "Metadata that the client has set.",
	"TrainingSession.sdkVersion":        "Version of the client.",
	"TrainingSession.endReason":         "Why the session ended.",
	"TrainingSession.endTime":           "When the session ended.",
	"TrainingRun.job":                   "Resource name of the trainer job that trains the run.",
	"TrainingRun.session":               "Resource name of the session that created the run.",
	"TrainingRun.baseModel":             "Resource name of the base model.",
	"TrainingRun.config":                "Settings of the adapter.",
	"TrainingRun.userMetadata":          "Metadata that the client has set.",
	"TrainingRun.opening":               "Newest attempt that loaded the run into memory; absent before the first.",
	"TrainingRun.checkpoints":           "Stored checkpoints, in the order in which they were saved.",
	"TrainingRun.corruption":            "Why the run cannot continue; absent unless its state is CORRUPTED.",
	"TrainingRun.unloadTime":            "When the client ended the run.",
	"TrainingRunConfig.rank":            "Rank of the adapter.",
	"TrainingRunConfig.alpha":           "The update of the adapter is scaled by alpha/rank.",
	"TrainingRunConfig.seed":            "Seed of the initial adapter.",
	"TrainingRunConfig.trainAttn":       "Whether the attention layers are trained.",
	"TrainingRunConfig.trainMlp":        "Whether the feed-forward layers are trained.",
	"TrainingRunConfig.trainUnembed":    "Whether the unembedding is trained, if the engine supports that.",
	"TrainingRunOpening.attempt":        "Number of the attempt.",
	"TrainingRunOpening.baseHash":       "Hash of the weights of the base model.",
	"TrainingRunOpening.kernel":         "Kernel (instruction set) that computes the run; others round differently.",
	"TrainingRunOpening.time":           "When the attempt loaded the run.",
	"TrainingRunCorruption.reason":      "What is lost.",
	"TrainingRunCorruption.time":        "When the loss was detected.",
	"TrainingCheckpoint.checkpointType": "What the checkpoint is for: training, sampler or recovery.",
	"TrainingCheckpoint.name":           "Name of the checkpoint, unique among those of the run with the same type.",
	"TrainingCheckpoint.sequence":       "Sequence number of the last operation that the checkpoint includes.",
	"TrainingCheckpoint.steps":          "Number of optimizer steps that the checkpoint includes.",
	"TrainingCheckpoint.sizeBytes":      "Size of the files in bytes.",
	"TrainingCheckpoint.ephemeral":      "Whether it is for one sampling session, and is deleted after newer ones.",
	"TrainingCheckpoint.attempt":        "Number of the attempt that saved the checkpoint.",
	"TrainingCheckpoint.expireTime":     "When the checkpoint is deleted; absent if it does not expire.",
	"TrainingRunCorruption.lastCheckpoint": "Name of the newest checkpoint of the type training, from which " +
		"another run can continue; absent if there is none.",
}
