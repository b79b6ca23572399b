package llama

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"anneal/domain"
	"anneal/domain/weights"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/safetensors"
)

// LoadAdapterFor loads the adapter in a PEFT directory for the base model in a Hugging Face
// directory. If the adapter records the hash of its base model, LoadAdapterFor reads all weights of
// base to compare the hashes. It returns FailedPrecondition for an adapter of another base model.
func LoadAdapterFor(ctx context.Context, dir, base string) (*Adapter, error) {
	r, err := Open(base)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	a, err := LoadAdapter(dir, "", r.Config)
	if err != nil || a.BaseHash == "" {
		return a, err
	}
	steps := []func() error{func() error { _, err := r.Embedding(); return err }}
	for i := range r.Config.Layers {
		steps = append(steps, func() error { _, err := r.Layer(i); return err })
	}
	steps = append(steps, func() error { _, err := r.Norm(); return err })
	if !r.Config.TieWordEmbeddings {
		steps = append(steps, func() error { _, err := r.Head(); return err })
	}
	for _, step := range steps {
		if err := errors.Join(ctx.Err(), step()); err != nil {
			return nil, err
		}
	}
	return a, a.Belongs(r.Hash())
}

// MergeOptions configure MergeDir.
type MergeOptions struct {
	Workers int // maximum number of cores
	// Progress is called after each file with weights, with its size in bytes; nil reports nothing.
	Progress func(file string, bytes int64)
}

// MergeDir merges an adapter into the model in the Hugging Face directory base, and writes the
// result to the directory target, which must exist. The result has the same files, tensors and
// number formats as base, but no other files with weights, such as GGUF files. MergeDir returns
// FailedPrecondition if a projection to change is stored in 8 bits.
func MergeDir(ctx context.Context, target, base string, a *Adapter, o MergeOptions) error {
	c, shards, err := openFiles(base)
	if err != nil {
		return err
	}
	defer shards.Close()
	left := a.changes(&c, o.Workers)
	entries, err := os.ReadDir(base)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		file := shards.File(name)
		// Stat follows symbolic links, which the cache of a model hub contains.
		info, err := os.Stat(filepath.Join(base, name))
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() || file == nil && weights.IsWeightsFile(name) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		written, err := writeMerged(ctx, filepath.Join(target, name), filepath.Join(base, name), file, left)
		if err != nil {
			return err
		}
		if file != nil && o.Progress != nil {
			o.Progress(name, written)
		}
	}
	for name := range left {
		return domain.Errorf(domain.FailedPrecondition,
			"the base model has no tensor %s, which the adapter changes: merge the adapter into its own base model", name)
	}
	return nil
}

// changes returns a function for each projection that the adapter modifies, by the name of its
// tensor in checkpoints. The function adds the adapter's update to the projection's weights.
func (a *Adapter) changes(c *Config, workers int) map[string]safetensors.Change {
	all := map[string]safetensors.Change{}
	for i := range a.Layers {
		for _, m := range a.Modules() {
			out, in := m.Shape(c)
			all[projection(i, m)] = func(t safetensors.Info, values []float32) error {
				if !t.Is(out, in) {
					return domain.Errorf(domain.FailedPrecondition,
						"tensor %s has shape %v; the model's configuration needs %v", t.Name, t.Shape, []int{out, in})
				}
				a.MergeModule(i, m, kernel.Matrix{Data: values, Rows: out, Cols: in, Stride: in}, workers)
				return nil
			}
		}
	}
	return all
}

// writeMerged creates the file at the path target, and returns its size. It writes the tensors of
// file with the changes that the map changes has for them, and deletes these changes from the map.
// If file is nil, it copies the file at the path source instead.
func writeMerged(ctx context.Context, target, source string, file *safetensors.File,
	changes map[string]safetensors.Change) (written int64, err error) {
	out, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err == nil {
			err = out.Sync()
		}
		err = errors.Join(err, out.Close())
	}()
	if file != nil {
		return file.Rewrite(out, func(name string) safetensors.Change {
			for _, known := range []string{name, weights.TensorPrefix + name} {
				if change, ok := changes[known]; ok {
					delete(changes, known)
					return change
				}
			}
			return nil
		}, ctx.Err)
	}
	in, err := os.Open(source)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	return io.Copy(out, in)
}
