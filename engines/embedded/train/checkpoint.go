package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/safetensors"
)

// Names of the files in a checkpoint. modelDir is a directory in the format that engines serve.
const (
	stateFile     = "state.json"
	optimizerFile = "optimizer.safetensors"
	metricsFile   = "metrics.jsonl"
	modelDir      = "model"
)

// checkpoint writes the complete state of the training to a directory, and passes the directory to
// the watcher. It removes the directory when the watcher has returned without an error.
func (j *job) checkpoint(ctx context.Context) error {
	dir := filepath.Join(j.request.WorkDir, fmt.Sprintf("checkpoint-%d", j.state.Step))
	if err := j.writeModel(filepath.Join(dir, modelDir), false); err != nil {
		return err
	}
	tensor := func(name string, v []float32) safetensors.Tensor {
		return safetensors.Tensor{Info: safetensors.Info{Name: name, DType: safetensors.F32, Shape: []int{len(v)}}, Data: v}
	}
	tensors := []safetensors.Tensor{tensor("mean", j.loop.optimizer.Mean), tensor("variance", j.loop.optimizer.Variance)}
	if len(j.best) > 0 {
		tensors = append(tensors, tensor("best", j.best))
	}
	if err := safetensors.WriteFile(filepath.Join(dir, optimizerFile), tensors, nil); err != nil {
		return err
	}
	if r, ok := j.procedure.(*rollouts); ok {
		if err := r.saveSamples(dir); err != nil {
			return err
		}
	}
	if err := copyFile(filepath.Join(dir, metricsFile), j.metrics.Name()); err != nil {
		return err
	}
	data, err := json.MarshalIndent(j.state, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, stateFile), append(data, '\n'), 0o644); err != nil {
		return err
	}
	if err := j.watch.Checkpoint(ctx, j.state.Step, dir); err != nil {
		return fmt.Errorf("checkpoint of step %d: %w", j.state.Step, err)
	}
	return os.RemoveAll(dir)
}

// restore loads a checkpoint. It returns FailedPrecondition if the method, the base model, the
// dataset, the seed or the settings of the checkpoint differ from those of the job.
func (j *job) restore(dir string) error {
	s, err := readState(dir)
	if err != nil {
		return err
	}
	var differ []string
	note := func(same bool, what string) {
		if !same {
			differ = append(differ, what)
		}
	}
	note(cmp.Or(s.Method, engines.Supervised) == j.state.Method, "method")
	note(s.Base == j.state.Base, "base model")
	note(s.Data == j.state.Data, "dataset")
	note(s.Seed == j.state.Seed, "seed")
	if here, there := j.state.Settings.Rollouts, s.Settings.Rollouts; here != nil && there != nil {
		there.MaxReplicas = here.MaxReplicas // this setting does not affect the results
	}
	note(reflect.DeepEqual(s.Settings, j.state.Settings), "settings")
	if len(differ) > 0 {
		return domain.Errorf(domain.FailedPrecondition,
			"the checkpoint to resume from was written with another %s: start a new job without it",
			strings.Join(differ, ", "))
	}
	j.state = s
	j.state.Method = j.request.Method
	if r, ok := j.procedure.(*rollouts); ok {
		if err := r.restoreSamples(dir); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
	}
	if err := j.restoreParameters(dir); err != nil {
		return err
	}
	return j.restoreMetrics(filepath.Join(dir, metricsFile))
}

func readState(dir string) (s state, err error) {
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return s, fmt.Errorf("checkpoint: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("checkpoint: %s: %w", stateFile, err)
	}
	return s, nil
}

// restoreParameters loads the trained parameters and the optimizer's moments of a checkpoint.
func (j *job) restoreParameters(dir string) error {
	if err := j.restoreModel(filepath.Join(dir, modelDir)); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if err := j.restoreOptimizer(filepath.Join(dir, optimizerFile)); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

func (j *job) restoreModel(dir string) error {
	net := j.loop.Net
	var saved []float32
	if net.Adapter != nil {
		a, err := llama.LoadAdapter(dir, j.base, net.Weights.Config)
		if err != nil {
			return err
		}
		saved = a.Flat()
	} else {
		w, err := llama.Load(dir)
		if err != nil {
			return err
		}
		saved = w.Flat()
	}
	if len(saved) != len(net.Trained()) {
		return fmt.Errorf("%s has %d parameters, but this job trains %d", modelDir, len(saved), len(net.Trained()))
	}
	copy(net.Trained(), saved)
	net.Pack(j.loop.workers)
	return nil
}

func (j *job) restoreOptimizer(path string) error {
	file, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	n := len(j.loop.optimizer.Mean)
	if _, ok := file.Lookup("best"); ok {
		j.best = make([]float32, n)
		if err := file.Read(j.best, "best", n); err != nil {
			return err
		}
	}
	j.loop.optimizer.Steps = j.state.Step - j.state.Idle
	return errors.Join(file.Read(j.loop.optimizer.Mean, "mean", n), file.Read(j.loop.optimizer.Variance, "variance", n))
}

// restoreMetrics copies the rows of a checkpoint's metrics file to the job's, and sets j.values to
// the last value of each metric.
func (j *job) restoreMetrics(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	defer file.Close()
	rows := json.NewDecoder(io.TeeReader(file, j.metrics))
	for {
		var row engines.Metrics
		err := rows.Decode(&row)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("checkpoint: %s: %w", metricsFile, err)
		}
		for name, value := range row.Values {
			j.values[name] = value
		}
	}
}

// companions are the files of a model directory that training copies unchanged.
var companions = []string{
	"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
	"chat_template.jinja", "vocab.json", "merges.txt", "LICENSE",
}

func copyCompanions(to, from string) error {
	for _, name := range companions {
		err := copyFile(filepath.Join(to, name), filepath.Join(from, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
