package domain

import (
	"slices"
	"strings"
	"time"
)

// A training run is one adapter that a client of a training service trains. The client submits
// operations, which are stored with their results in a journal outside of the log (package
// blobs/operations). An attempt of the job opens the run: it restores the newest recovery
// checkpoint and executes the operations after it.
//
//	(none)         --CreateTrainingRun-->  CREATING
//	CREATING, OPEN --OpenTrainingRun-->    OPEN: an attempt of the job has the run in memory
//	OPEN           --SaveTrainingCheckpoint--> OPEN
//	CREATING, OPEN --UnloadTrainingRun-->  UNLOADED: the run accepts no operations
//	CREATING, OPEN --CorruptTrainingRun--> CORRUPTED: operations or checkpoints are lost
//	any            --DeleteTrainingRun-->  (none), when its job no longer exists
//
// Checkpoints can be deleted, and their expiry changed, in every state.
var TrainingRuns = NewKind("trainingRuns", map[string]Event[TrainingRun]{
	"trainingRun.created.v1":                 TrainingRunCreated{},
	"trainingRun.opened.v1":                  TrainingRunOpened{},
	"trainingRun.checkpointSaved.v1":         TrainingCheckpointSaved{},
	"trainingRun.checkpointDeleted.v1":       TrainingCheckpointDeleted{},
	"trainingRun.checkpointExpiryChanged.v1": TrainingCheckpointExpiryChanged{},
	"trainingRun.unloaded.v1":                TrainingRunUnloaded{},
	"trainingRun.corrupted.v1":               TrainingRunCorrupted{},
	"trainingRun.deleted.v1":                 TrainingRunDeleted{},
})

// Training run states.
const (
	TrainingRunCreatingState  = "CREATING"
	TrainingRunOpenState      = "OPEN"
	TrainingRunUnloadedState  = "UNLOADED"
	TrainingRunCorruptedState = "CORRUPTED"
)

// Kinds of training checkpoints.
const (
	TrainingCheckpointTraining = "training" // state from which a run continues, saved on request
	TrainingCheckpointSampler  = "sampler"  // adapter for sampling, saved on request
	TrainingCheckpointRecovery = "recovery" // state from which the next attempt continues, saved periodically
)

// Limits of training runs and their checkpoints.
const (
	MaxTrainingRank        = 64  // maximum rank of the adapter
	MaxTrainingCheckpoints = 500 // maximum number of the checkpoints of a run that are not ephemeral
	MaxEphemeralSamplers   = 16  // number of the newest ephemeral checkpoints of a run that are kept
	MaxTrainingName        = 255 // maximum length of the name of a checkpoint
	MaxTrainingSeed        = 1<<53 - 1
	MaxTrainingTTLSeconds  = 10 * 365 * 24 * 3600
)

// TrainingRunConfig describes the adapter of a training run, with all defaults resolved.
type TrainingRunConfig struct {
	Rank         int     `json:"rank"`
	Alpha        float64 `json:"alpha"` // the adapter's update is scaled by Alpha/Rank
	Seed         uint64  `json:"seed"`
	TrainAttn    bool    `json:"trainAttn"`
	TrainMLP     bool    `json:"trainMlp"`
	TrainUnembed bool    `json:"trainUnembed"`
}

// TrainingRunSpec holds the fields of a training run that do not change.
type TrainingRunSpec struct {
	Job          Name              `json:"job"`      // trainer job that offers the training service
	JobEvent     string            `json:"jobEvent"` // ID of the event that created the job
	Session      Name              `json:"session"`
	ModelSeq     int64             `json:"modelSeq"` // number of the run in its session, which the client chose
	BaseModel    Name              `json:"baseModel"`
	Config       TrainingRunConfig `json:"config"`
	UserMetadata map[string]string `json:"userMetadata,omitempty"`
	CreatedBy    string            `json:"createdBy,omitempty"`
}

// A TrainingCheckpoint is a stored state of a training run.
type TrainingCheckpoint struct {
	Kind       string     `json:"kind"` // training, sampler or recovery
	Name       string     `json:"name"` // unique among the checkpoints of the run and the kind
	Seq        int64      `json:"seq"`  // sequence number of the last operation in the state
	Steps      int        `json:"steps"`
	Files      Files      `json:"files"`
	ExpireTime *time.Time `json:"expireTime,omitempty"`
	Ephemeral  bool       `json:"ephemeral,omitempty"` // not listed, and deleted after newer ones
	Attempt    int        `json:"attempt"`
	Time       time.Time  `json:"time"`
}

// Expired reports whether the checkpoint's expireTime has passed.
func (c TrainingCheckpoint) Expired(now time.Time) bool {
	return c.ExpireTime != nil && !now.Before(*c.ExpireTime)
}

// A TrainingRunOpening describes the attempt that has a run in memory.
type TrainingRunOpening struct {
	Attempt  int       `json:"attempt"`
	BaseHash string    `json:"baseHash"`
	Kernel   string    `json:"kernel"` // kernel (instruction set) that computes the run; others round differently
	Time     time.Time `json:"time"`
}

// A TrainingRunCorruption says why a run cannot continue.
type TrainingRunCorruption struct {
	Reason string `json:"reason"`
	// name of the newest checkpoint of the kind training; "" if there is none
	LastCheckpoint string    `json:"lastCheckpoint,omitempty"`
	Time           time.Time `json:"time"`
}

// TrainingRun is the state of one training run.
type TrainingRun struct {
	TrainingRunSpec
	State       string                 `json:"state"`
	Opening     *TrainingRunOpening    `json:"opening,omitempty"` // nil before an attempt has opened the run
	Checkpoints []TrainingCheckpoint   `json:"checkpoints,omitempty"`
	Corruption  *TrainingRunCorruption `json:"corruption,omitempty"`
	UnloadTime  *time.Time             `json:"unloadTime,omitempty"`
}

// Exists implements State.
func (r TrainingRun) Exists() bool { return r.State != "" }

// StateName implements StateNamer.
func (r TrainingRun) StateName() string { return r.State }

// Live reports whether the run accepts operations.
func (r TrainingRun) Live() bool {
	return r.State == TrainingRunCreatingState || r.State == TrainingRunOpenState
}

// Usage counts the bytes of the run's checkpoints.
func (r TrainingRun) Usage() (u Usage) {
	for _, c := range r.Checkpoints {
		u.StorageBytes += c.Files.Bytes()
	}
	return u
}

// Checkpoint returns the checkpoint of a kind with the name; false if there is none.
func (r TrainingRun) Checkpoint(kind, name string) (TrainingCheckpoint, bool) {
	if i := r.indexOf(kind, name); i >= 0 {
		return r.Checkpoints[i], true
	}
	return TrainingCheckpoint{}, false
}

func (r TrainingRun) indexOf(kind, name string) int {
	return slices.IndexFunc(r.Checkpoints, func(c TrainingCheckpoint) bool { return c.Kind == kind && c.Name == name })
}

// Newest returns the checkpoint of a kind that was saved last, except for ephemeral ones; false if
// there is none.
func (r TrainingRun) Newest(kind string) (TrainingCheckpoint, bool) {
	for _, c := range slices.Backward(r.Checkpoints) {
		if c.Kind == kind && !c.Ephemeral {
			return c, true
		}
	}
	return TrainingCheckpoint{}, false
}

// RecoverySeq returns the sequence number of the last operation in the newest recovery checkpoint,
// from which an attempt continues; 0 if there is none.
func (r TrainingRun) RecoverySeq() int64 {
	c, _ := r.Newest(TrainingCheckpointRecovery)
	return c.Seq
}

type TrainingRunCreated struct {
	TrainingRunSpec
}

func (e TrainingRunCreated) Evolve(r *TrainingRun) {
	*r = TrainingRun{TrainingRunSpec: e.TrainingRunSpec, State: TrainingRunCreatingState}
}

type TrainingRunOpened struct {
	TrainingRunOpening
}

func (e TrainingRunOpened) Evolve(r *TrainingRun) {
	r.State, r.Opening = TrainingRunOpenState, &e.TrainingRunOpening
}

type TrainingCheckpointSaved struct {
	TrainingCheckpoint
}

// Evolve adds the checkpoint as the last one. It removes the checkpoint that has the same kind and
// name, an earlier recovery checkpoint, and the oldest ephemeral ones.
func (e TrainingCheckpointSaved) Evolve(r *TrainingRun) {
	c := e.TrainingCheckpoint
	kept := make([]TrainingCheckpoint, 0, len(r.Checkpoints)+1)
	ephemeral := 0
	if c.Ephemeral {
		ephemeral++
	}
	for _, old := range slices.Backward(r.Checkpoints) {
		if old.Ephemeral {
			ephemeral++
		}
		replaced := old.Kind == c.Kind && (old.Name == c.Name || c.Kind == TrainingCheckpointRecovery)
		if !replaced && !(old.Ephemeral && ephemeral > MaxEphemeralSamplers) {
			kept = append(kept, old)
		}
	}
	slices.Reverse(kept)
	r.Checkpoints = append(kept, c)
}

type TrainingCheckpointDeleted struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

func (e TrainingCheckpointDeleted) Evolve(r *TrainingRun) {
	if i := r.indexOf(e.Kind, e.Name); i >= 0 {
		r.Checkpoints = slices.Delete(slices.Clone(r.Checkpoints), i, i+1)
	}
}

type TrainingCheckpointExpiryChanged struct {
	Kind       string     `json:"kind"`
	Name       string     `json:"name"`
	ExpireTime *time.Time `json:"expireTime,omitempty"` // nil: the checkpoint does not expire
}

func (e TrainingCheckpointExpiryChanged) Evolve(r *TrainingRun) {
	if i := r.indexOf(e.Kind, e.Name); i >= 0 {
		r.Checkpoints = slices.Clone(r.Checkpoints)
		r.Checkpoints[i].ExpireTime = e.ExpireTime
	}
}

type TrainingRunUnloaded struct {
	Time time.Time `json:"time"`
}

// Evolve removes the recovery checkpoint: no attempt continues the run.
func (e TrainingRunUnloaded) Evolve(r *TrainingRun) {
	r.State, r.UnloadTime = TrainingRunUnloadedState, &e.Time
	r.Checkpoints = slices.DeleteFunc(slices.Clone(r.Checkpoints), func(c TrainingCheckpoint) bool {
		return c.Kind == TrainingCheckpointRecovery
	})
}

type TrainingRunCorrupted struct {
	TrainingRunCorruption
}

func (e TrainingRunCorrupted) Evolve(r *TrainingRun) {
	r.State, r.Corruption = TrainingRunCorruptedState, &e.TrainingRunCorruption
}

type TrainingRunDeleted struct{}

func (TrainingRunDeleted) Evolve(r *TrainingRun) { *r = TrainingRun{} }

// ValidTrainingCheckpointName reports whether a client may give a checkpoint this name.
func ValidTrainingCheckpointName(name string) bool {
	ok := name != "" && len(name) <= MaxTrainingName && strings.Trim(name, ".") != "" && name[0] != '.'
	for i := range len(name) {
		c := name[i]
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.')
	}
	return ok
}

// TrainingCheckpointNameRule describes what ValidTrainingCheckpointName requires.
const TrainingCheckpointNameRule = "must be 1 to 255 characters of A-Z, a-z, 0-9, -, _ and ., and not begin with a dot"
