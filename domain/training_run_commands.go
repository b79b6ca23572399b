package domain

import (
	"fmt"
	"math"
	"time"
)

// CreateTrainingRun creates a run. The name of a run is derived from its session and ModelSeq, so a
// retried command is recognized.
type CreateTrainingRun struct{ TrainingRunSpec }

func (c CreateTrainingRun) Decide(r TrainingRun, _ time.Time) (Event[TrainingRun], error) {
	if r.Exists() {
		if sameJSON(r.TrainingRunSpec, c.TrainingRunSpec) {
			return nil, nil
		}
		return nil, alreadyExists("a training run")
	}
	var v Violations
	checkTrainingJob(&v, c.Job, c.JobEvent)
	reference(&v, "session_id", string(c.Session), TrainingSessions.Collection)
	v.Require(c.Session != "", "session_id", "is required")
	v.Require(c.ModelSeq >= 0 && c.ModelSeq <= math.MaxInt32, "model_seq_id", "is %d: it must be from 0 to %d", c.ModelSeq,
		math.MaxInt32)
	v.Require(c.BaseModel != "", "base_model", "is required")
	reference(&v, "base_model", string(c.BaseModel), Models.Collection)
	checkTrainingMetadata(&v, "user_metadata", c.UserMetadata)
	c.Config.check(&v)
	return TrainingRunCreated(c), v.Err()
}

func (c TrainingRunConfig) check(v *Violations) {
	v.Require(c.Rank >= 1 && c.Rank <= MaxTrainingRank, "lora_config.rank", "is %d: it must be from 1 to %d", c.Rank,
		MaxTrainingRank)
	v.Require(c.Alpha > 0 && c.Alpha <= math.MaxFloat32, "lora_config.alpha", "is %v: it must be a positive number",
		c.Alpha)
	v.Require(c.Seed <= MaxTrainingSeed, "lora_config.seed", "is %d: it must be from 0 to %d", c.Seed,
		uint64(MaxTrainingSeed))
	v.Require(c.TrainAttn || c.TrainMLP || c.TrainUnembed, "lora_config",
		"trains no layers: set train_attn, train_mlp or train_unembed")
}

// MustLive returns an error unless the run accepts operations.
func (r TrainingRun) MustLive() error {
	switch r.State {
	case "":
		return notFound("training run")
	case TrainingRunUnloadedState:
		return precondition("RUN_UNLOADED",
			"the training run was unloaded and accepts no more operations: create another run and load a checkpoint into it")
	case TrainingRunCorruptedState:
		return r.CorruptionError()
	}
	return nil
}

// CorruptionError returns the error of every operation of a CORRUPTED run.
func (r TrainingRun) CorruptionError() error {
	wayOut := "the run has no checkpoint: create another run"
	if r.Corruption.LastCheckpoint != "" {
		wayOut = "create another run and load the checkpoint " + r.Corruption.LastCheckpoint + " into it"
	}
	return &Error{Code: DataLoss, Reason: "RUN_CORRUPTED",
		Message: "the training run cannot continue (" + r.Corruption.Reason + "): " + wayOut}
}

// OpenTrainingRun records that an attempt of the job has the run in memory.
type OpenTrainingRun struct {
	Attempt  int
	BaseHash string
	Kernel   string
}

func (c OpenTrainingRun) Decide(r TrainingRun, now time.Time) (Event[TrainingRun], error) {
	if err := r.MustLive(); err != nil {
		return nil, err
	}
	switch o := r.Opening; {
	case c.Attempt < 1:
		return nil, precondition("STALE_ATTEMPT", "attempts are numbered from 1: attempt %d cannot open the run", c.Attempt)
	case o == nil:
	case c.Attempt < o.Attempt:
		return nil, precondition("STALE_ATTEMPT", "attempt %d is over: attempt %d has opened the run", c.Attempt, o.Attempt)
	case c.BaseHash != o.BaseHash:
		return nil, precondition("BASE_MODEL_CHANGED",
			"the run was trained on a base model with the hash %s and cannot continue on one with the hash %s", o.BaseHash,
			c.BaseHash)
	case c.Attempt == o.Attempt:
		return nil, nil
	}
	return TrainingRunOpened{TrainingRunOpening{c.Attempt, c.BaseHash, c.Kernel, now}}, nil
}

// SaveTrainingCheckpoint records a checkpoint whose files are stored. It must be from the attempt
// that opened the run. Overwrite allows it to replace a checkpoint with the same kind and name.
// Time is ignored.
type SaveTrainingCheckpoint struct {
	TrainingCheckpoint
	Overwrite bool
}

func (c SaveTrainingCheckpoint) Decide(r TrainingRun, now time.Time) (Event[TrainingRun], error) {
	if err := r.MustLive(); err != nil {
		return nil, err
	}
	if r.Opening == nil || c.Attempt != r.Opening.Attempt {
		return nil, precondition("STALE_ATTEMPT", "attempt %d has not opened the run: its checkpoint is not recorded",
			c.Attempt)
	}
	var v Violations
	v.Require(ValidTrainingCheckpointName(c.Name), "name", TrainingCheckpointNameRule)
	oneOf(&v, "kind", c.Kind, TrainingCheckpointTraining, TrainingCheckpointSampler, TrainingCheckpointRecovery)
	v.Require(c.Kind != "", "kind", "is required")
	v.Require(!c.Ephemeral || c.Kind == TrainingCheckpointSampler, "ephemeral", "is for checkpoints of the kind sampler")
	v.Require(c.Seq >= 0 && c.Steps >= 0, "seq", "sequence numbers and steps must not be negative")
	if err := v.Err(); err != nil {
		return nil, err
	}
	old, exists := r.Checkpoint(c.Kind, c.Name)
	switch newest, ok := r.Newest(TrainingCheckpointRecovery); {
	case exists && old.Seq == c.Seq:
		return nil, nil // recorded before, by this attempt or by an earlier one whose operations it replays
	case c.Kind == TrainingCheckpointRecovery && ok && newest.Seq >= c.Seq:
		return nil, nil
	case exists && old.Seq > c.Seq:
		return nil, precondition("STALE_CHECKPOINT", "operation %d has saved a newer checkpoint with the name %q", old.Seq,
			c.Name)
	case exists && !c.Overwrite && c.Kind != TrainingCheckpointRecovery:
		return nil, &Error{Code: AlreadyExists, Reason: "CHECKPOINT_EXISTS",
			Message: "the run has a checkpoint with the name " + c.Name + ": choose another name, delete it first, or set " +
				"overwrite"}
	case !exists && !c.Ephemeral && c.Kind != TrainingCheckpointRecovery && r.durable() >= MaxTrainingCheckpoints:
		return nil, &Error{Code: ResourceExhausted, Reason: "TOO_MANY_CHECKPOINTS",
			Message: fmt.Sprintf("the run has %d checkpoints, which is the maximum: delete some, or let some expire",
				MaxTrainingCheckpoints)}
	}
	c.Time = now
	return TrainingCheckpointSaved{c.TrainingCheckpoint}, nil
}

// durable returns the number of checkpoints that count toward MaxTrainingCheckpoints: neither
// ephemeral nor for recovery.
func (r TrainingRun) durable() (n int) {
	for _, c := range r.Checkpoints {
		if !c.Ephemeral && c.Kind != TrainingCheckpointRecovery {
			n++
		}
	}
	return n
}

// DeleteTrainingCheckpoint removes a checkpoint, except for recovery checkpoints.
type DeleteTrainingCheckpoint struct{ Kind, Name string }

func (c DeleteTrainingCheckpoint) Decide(r TrainingRun, _ time.Time) (Event[TrainingRun], error) {
	if _, err := r.userCheckpoint(c.Kind, c.Name); err != nil {
		return nil, err
	}
	return TrainingCheckpointDeleted(c), nil
}

func (r TrainingRun) userCheckpoint(kind, name string) (TrainingCheckpoint, error) {
	if !r.Exists() {
		return TrainingCheckpoint{}, notFound("training run")
	}
	c, ok := r.Checkpoint(kind, name)
	if !ok || kind == TrainingCheckpointRecovery {
		return c, &Error{Code: NotFound, Reason: "CHECKPOINT_NOT_FOUND",
			Message: "the training run has no " + kind + " checkpoint with the name " + name + ": list its checkpoints"}
	}
	return c, nil
}

// SetTrainingCheckpointExpiry changes when a checkpoint is deleted; nil stands for never.
type SetTrainingCheckpointExpiry struct {
	Kind, Name string
	ExpireTime *time.Time
}

func (c SetTrainingCheckpointExpiry) Decide(r TrainingRun, now time.Time) (Event[TrainingRun], error) {
	old, err := r.userCheckpoint(c.Kind, c.Name)
	if err != nil {
		return nil, err
	}
	if sameJSON(old.ExpireTime, c.ExpireTime) {
		return nil, nil
	}
	var v Violations
	inFuture(&v, "expireTime", c.ExpireTime, now)
	return TrainingCheckpointExpiryChanged(c), v.Err()
}

// UnloadTrainingRun ends a run. Its checkpoints are kept, except that for recovery.
type UnloadTrainingRun struct{}

func (UnloadTrainingRun) Decide(r TrainingRun, now time.Time) (Event[TrainingRun], error) {
	if r.State == TrainingRunUnloadedState {
		return nil, nil
	}
	return TrainingRunUnloaded{now}, r.MustLive()
}

// CorruptTrainingRun records that operations of a run, or the checkpoint that it continues from,
// are lost, so that it cannot continue. Recovery is the sequence number of the recovery checkpoint by
// which that was found: if the run has a newer one by now, it can continue from there. Nil stands for a
// loss that no checkpoint repairs.
type CorruptTrainingRun struct {
	Reason   string
	Recovery *int64
}

func (c CorruptTrainingRun) Decide(r TrainingRun, now time.Time) (Event[TrainingRun], error) {
	if r.State == TrainingRunCorruptedState {
		return nil, nil
	}
	if c.Recovery != nil && *c.Recovery < r.RecoverySeq() {
		return nil, precondition("NEWER_CHECKPOINT", "the run continues from operation %d, not from operation %d",
			r.RecoverySeq(), *c.Recovery)
	}
	last, _ := r.Newest(TrainingCheckpointTraining)
	return TrainingRunCorrupted{TrainingRunCorruption{c.Reason, last.Name, now}}, r.MustLive()
}

// DeleteTrainingRun removes a run whose job no longer exists.
type DeleteTrainingRun struct{}

func (DeleteTrainingRun) Decide(r TrainingRun, _ time.Time) (Event[TrainingRun], error) {
	if !r.Exists() {
		return nil, nil
	}
	return TrainingRunDeleted{}, nil
}
