// Package embedded is the engine that needs nothing but this program: it
// trains and serves models of the Llama architecture on the processor's cores,
// and carries a small base model with it.
package embedded

import (
	"context"
	"embed"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/serve"
	"anneal/engines/embedded/train"
)

// Options bound what the engine may use. A zero field takes its default.
type Options struct {
	Parallelism int   // cores that a training or a model keeps busy; default one less than the machine has
	Slots       int   // requests that a model answers at once; default 32
	Queue       int   // requests that may wait for a model; default 256
	CacheBytes  int64 // memory for a model's keys and values; default what a replica's memory leaves, 1 GiB where none was set aside
}

// New makes the engine. It trains and completes.
func New(o Options) engines.Engine {
	return engines.Engine{
		Name:    "embedded",
		Trainer: trainer{o.Parallelism},
		Methods: []string{engines.DPO, engines.Reinforcement, engines.RLOR},
		Completer: serve.New(serve.Options{
			Parallelism: o.Parallelism, Slots: o.Slots, Queue: o.Queue, CacheBytes: o.CacheBytes,
		}),
		Why: map[string]string{
			"transcribe": "the embedded engine has no speech model; start a worker with a transcription server's adapter",
			"score":      "the embedded engine runs no evaluator code; start a worker with a Python interpreter",
		},
	}
}

// A trainer gives orders that name no number of cores the engine's.
type trainer struct{ parallelism int }

func (t trainer) Train(ctx context.Context, order engines.TrainOrder, watch engines.TrainWatcher) (engines.TrainResult, error) {
	if order.Parallelism == 0 {
		order.Parallelism = t.parallelism
	}
	return train.Trainer{}.Train(ctx, order, watch)
}

// base is the shipped model's Hugging Face directory.
//
//go:embed base/model
var base embed.FS

const baseDir = "base/model"

// WriteBase writes the shipped model's Hugging Face directory to dir, which it
// makes if need be.
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

// Info describes the shipped model.
type Info struct {
	ParameterCount int64
	ContextLength  int   // tokens
	Bytes          int64 // of its directory
}

// BaseInfo describes the shipped model.
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
		panic("embedded: the program was built without its base model: " + err.Error())
	}
	return info
})
