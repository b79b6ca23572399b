package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestTheModelOfACheckpoint checks which files of a checkpoint are its model.
func TestTheModelOfACheckpoint(t *testing.T) {
	files := func(names ...string) domain.JobCheckpoint {
		c := domain.JobCheckpoint{Attempt: 2, Step: 30, Files: domain.Files{Prefix: "jobs/x/", Sizes: map[string]int64{},
			Sums: map[string]string{}}}
		for _, name := range names {
			c.Files.Sizes[name], c.Files.Sums[name] = 1, "sum of "+name
		}
		return c
	}
	inside := files("state.json", "model/adapter_config.json", "model/adapter_model.safetensors")
	require.Equal(t, "2-30", inside.ID())
	require.Equal(t, domain.Files{Prefix: "jobs/x/model/",
		Sizes: map[string]int64{"adapter_config.json": 1, "adapter_model.safetensors": 1},
		Sums: map[string]string{"adapter_config.json": "sum of model/adapter_config.json",
			"adapter_model.safetensors": "sum of model/adapter_model.safetensors"}}, inside.Model())
	result := files("config.json", "model.safetensors")
	require.Equal(t, result.Files, result.Model())
	require.Empty(t, files("state.json").Model().Sizes)
}

// TestTheResultIsTheLastCheckpoint checks that a completed job lists its result, once.
func TestTheResultIsTheLastCheckpoint(t *testing.T) {
	at := time.Date(2026, 11, 23, 7, 0, 0, 0, time.UTC)
	life := domain.JobLife{Attempt: 1, Checkpoints: []domain.JobCheckpoint{{Attempt: 1, Step: 10}, {Attempt: 1, Step: 20}}}
	require.Len(t, life.AllCheckpoints(), 2)
	life.CompletedTime, life.Results = &at, domain.Files{Prefix: "models/x/", Sizes: map[string]int64{"config.json": 1}}
	life.Progress = &domain.JobProgress{Step: 25, Metrics: map[string]float64{"train/loss": 0.5}}
	final := domain.JobCheckpoint{Attempt: 1, Step: 25, Time: at, Files: life.Results, Metrics: life.Progress.Metrics}
	require.Equal(t, append(life.Checkpoints[:2:2], final), life.AllCheckpoints())
	life.Progress.Step, final.Step = 20, 20
	require.Equal(t, append(life.Checkpoints[:1:1], final), life.AllCheckpoints())
	require.Len(t, life.Checkpoints, 2)
}
