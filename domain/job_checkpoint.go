package domain

import (
	"slices"
	"strconv"
	"strings"
)

// CheckpointModel is the directory in a checkpoint with a model that engines can serve. In the
// results of a job, and in the checkpoints of some engines, the model is in the top directory
// instead.
const CheckpointModel = "model/"

// ID returns the ID of the checkpoint, ATTEMPT-STEP, which is unique within the job.
func (c JobCheckpoint) ID() string { return strconv.Itoa(c.Attempt) + "-" + strconv.Itoa(c.Step) }

// Model returns the files of the model in the checkpoint; none if the checkpoint has no model.
func (c JobCheckpoint) Model() Files {
	prefix := CheckpointModel
	for _, config := range []string{"adapter_config.json", "config.json"} {
		if _, ok := c.Files.Sizes[config]; ok {
			prefix = ""
		}
	}
	model := Files{Prefix: c.Files.Prefix + prefix, Sizes: map[string]int64{}, Sums: map[string]string{}}
	for name, size := range c.Files.Sizes {
		if name, found := strings.CutPrefix(name, prefix); found {
			model.Sizes[name] = size
		}
	}
	for name, sum := range c.Files.Sums {
		if name, found := strings.CutPrefix(name, prefix); found {
			model.Sums[name] = sum
		}
	}
	return model
}

// AllCheckpoints returns the checkpoints that the job keeps, from the oldest to the newest. The last
// one of a completed job is its result.
func (l *JobLife) AllCheckpoints() []JobCheckpoint {
	if len(l.Results.Sizes) == 0 || l.CompletedTime == nil {
		return l.Checkpoints
	}
	final := JobCheckpoint{Attempt: l.Attempt, Time: *l.CompletedTime, Files: l.Results}
	if l.Progress != nil {
		final.Step, final.Metrics = l.Progress.Step, l.Progress.Metrics
	}
	same := func(c JobCheckpoint) bool { return c.ID() == final.ID() }
	return append(slices.DeleteFunc(slices.Clone(l.Checkpoints), same), final)
}
