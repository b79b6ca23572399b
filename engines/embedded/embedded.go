// Package embedded is the engine that is part of this program: it trains and serves models of the
// Llama architecture on CPU cores, and contains a small base model.
package embedded

import (
	"context"
	"embed"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/serve"
	"anneal/engines/embedded/train"
	"anneal/engines/embedded/train/pool"
)

// Options limit the engine's resources. A field that is zero has its default.
type Options struct {
	Parallelism int // number of CPU cores for each training run or model; default: all but one
	Slots       int // number of concurrent requests to a model; default 32
	Queue       int // number of requests that may wait for a model; default 256
	// CacheBytes is the maximum size of a model's KV cache. The default is domain.KVCacheCapacity
	// of the replica's memory, or 1 GiB if no memory was allocated to the replica.
	CacheBytes int64
}

// New returns the embedded engine. It trains models and completes prompts.
func New(o Options) engines.Engine {
	return engines.Engine{
		Name:       "embedded",
		Trainer:    trainer{o.Parallelism, &train.Devices{}},
		Methods:    []string{engines.DPO, engines.Reinforcement, engines.RLOR},
		TrainPools: pool.Opener{Parallelism: o.Parallelism},
		Gang:       domain.GangAbility,
		Completer: serve.New(serve.Options{
			Parallelism: o.Parallelism, Slots: o.Slots, Queue: o.Queue, CacheBytes: o.CacheBytes,
		}),
		Missing: map[string]string{
			"transcribe": "the embedded engine has no speech model; start a node with a transcription engine",
			"score":      "the embedded engine cannot run evaluators; start a node with a Python interpreter",
		},
	}
}

// A trainer is a train.Trainer with a default number of cores.
type trainer struct {
	parallelism int
	cores       *train.Devices // cores that trainings share: see train.Trainer
}

func (t trainer) Train(
	ctx context.Context, request engines.TrainRequest, watch engines.TrainWatcher,
) (engines.TrainResult, error) {
	if request.Parallelism == 0 {
		request.Parallelism = t.parallelism
	}
	return train.Trainer{Cores: t.cores}.Train(ctx, request, watch)
}

// Assist implements engines.GangTrainer.
func (t trainer) Assist(ctx context.Context, request engines.TrainRequest) error {
	if request.Parallelism == 0 {
		request.Parallelism = t.parallelism
	}
	return train.Trainer{}.Assist(ctx, request)
}

// base has the Hugging Face directory of the shipped base model.
//
//go:embed base/model
var base embed.FS

const baseDir = "base/model"

// WriteBase writes the shipped base model to the directory dir, which it creates if necessary.
func WriteBase(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files, err := base.ReadDir(baseDir)
	if err != nil {
		return err
	}
	for _, f := range files {
		data, err := base.ReadFile(baseDir + "/" + f.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name()), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Info describes the shipped base model.
type Info struct {
	ParameterCount int64
	ContextLength  int   // maximum number of tokens of prompt and completion
	Bytes          int64 // size of the model's files
}

// BaseInfo returns the description of the shipped base model.
func BaseInfo() Info { return baseInfo() }

var baseInfo = sync.OnceValue(func() Info {
	var config llama.Config
	data, err := base.ReadFile(baseDir + "/config.json")
	if err == nil {
		err = json.Unmarshal(data, &config)
	}
	info := Info{ParameterCount: config.Parameters(), ContextLength: config.MaxPositions}
	if err == nil {
		err = fs.WalkDir(base, baseDir, func(_ string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			file, err := entry.Info()
			if err == nil {
				info.Bytes += file.Size()
			}
			return err
		})
	}
	if err != nil {
		panic("embedded: read the base model of this program: " + err.Error())
	}
	return info
})
