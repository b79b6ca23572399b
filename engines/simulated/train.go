package simulated

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"anneal/domain"
	"anneal/engines"
)

type trainer struct{ options Options }

// stateFile is the name of a checkpoint's file with the state of the training run, from which a
// training resumes. The result of a training has the state in the field stateField of its
// configuration instead, and the tuned model's completions depend on it. Results of earlier
// versions of anneal have stateFile, and can still be loaded.
const (
	stateFile  = "simulated.json"
	stateField = "simulated"
)

// A state is the state of a training run after a step.
type state struct {
	Seed   uint64  `json:"seed"`
	Step   int     `json:"step"`
	Steps  int     `json:"steps"`
	Tokens int64   `json:"tokens"`
	Best   float64 `json:"best"` // lowest evaluation loss so far
}

// A training is one attempt in progress.
type training struct {
	options Options
	request engines.TrainRequest
	state   state
	rows    int
	bytes   int64
	metrics []engines.Metrics
	stopped bool
	reward  *float64 // mean reward of the samples, if the method is engines.RLOR
}

func (t trainer) Train(ctx context.Context, request engines.TrainRequest,
	watch engines.TrainWatcher) (engines.TrainResult, error) {
	run, err := begin(t.options, request)
	if err != nil {
		return engines.TrainResult{}, err
	}
	every := orDefault(request.Settings.CheckpointSteps, 10)
	for run.state.Step < run.state.Steps && !run.stopped {
		if err := run.step(ctx); err != nil {
			if ctx.Err() != nil && run.state.Step > 0 {
				err = errors.Join(err, run.checkpoint(context.WithoutCancel(ctx), watch))
			}
			return engines.TrainResult{}, err
		}
		watch.Step(run.metrics[len(run.metrics)-1])
		if run.state.Step%every == 0 {
			if err := run.checkpoint(ctx, watch); err != nil {
				return engines.TrainResult{}, err
			}
		}
	}
	return run.result()
}

// Assist implements engines.GangTrainer. The leader simulates the work of all nodes.
func (t trainer) Assist(ctx context.Context, _ engines.TrainRequest) error {
	<-ctx.Done()
	return ctx.Err()
}

// begin returns a training run that has read its data and the checkpoint from which it resumes.
func begin(options Options, request engines.TrainRequest) (*training, error) {
	if request.Method != "" && request.Method != engines.Supervised && request.Method != engines.RLOR {
		return nil, domain.Errorf(domain.InvalidArgument,
			"method: the simulated engine does not support %q: use %q or %q", request.Method, engines.Supervised, engines.RLOR)
	}
	if request.BaseDir != "" {
		if _, err := os.Stat(request.BaseDir); err != nil {
			return nil, fmt.Errorf("base model: %w", err)
		}
	}
	run := &training{options: options, request: request}
	for _, file := range request.DataFiles {
		rows, size, err := countRows(file)
		if err != nil {
			return nil, err
		}
		run.rows, run.bytes = run.rows+rows, run.bytes+size
	}
	if run.rows == 0 {
		return nil, domain.Errorf(domain.InvalidArgument, "dataset: has no rows; upload a JSONL file with at least one row")
	}
	if request.Method == engines.RLOR {
		reward, err := meanReward(request)
		if err != nil {
			return nil, err
		}
		run.reward = &reward
	}
	run.state = state{Seed: options.Seed ^ request.Seed, Steps: options.Steps, Best: math.MaxFloat64}
	if run.state.Steps == 0 {
		run.state.Steps = max(request.Settings.Epochs, 1) * run.epochSteps()
	}
	return run, run.resume()
}

func (r *training) epochSteps() int {
	batch := orDefault(r.request.Settings.BatchSizeSamples, 8)
	return (r.rows + batch - 1) / batch
}

func (r *training) resume() error {
	if r.request.ResumeDir == "" {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(r.request.ResumeDir, stateFile))
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if err := json.Unmarshal(data, &r.state); err != nil {
		return fmt.Errorf("checkpoint: %s: %w", stateFile, err)
	}
	data, err = os.ReadFile(filepath.Join(r.request.ResumeDir, "metrics.jsonl"))
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	for decoder := json.NewDecoder(bytes.NewReader(data)); decoder.More(); {
		var row engines.Metrics
		if err := decoder.Decode(&row); err != nil {
			return fmt.Errorf("checkpoint: metrics.jsonl: %w", err)
		}
		r.metrics = append(r.metrics, row)
	}
	return nil
}

// step executes a step. Its metrics depend on the seed and the step: loss = 0.2 + 3 e^(-4
// step/steps) + noise in ±0.05.
func (r *training) step(ctx context.Context) error {
	next := r.state.Step + 1
	if err := r.options.fault(TrainStep, next); err != nil {
		return err
	}
	var duration time.Duration
	if r.options.StepTime != nil {
		duration = r.options.StepTime(next)
	}
	if err := wait(ctx, duration); err != nil {
		return err
	}
	source := random(r.state.Seed, strconv.Itoa(next))
	curve := 0.2 + 3*math.Exp(-4*float64(next)/float64(r.state.Steps))
	values := map[string]float64{"train/loss": curve + 0.1*(source.Float64()-0.5)}
	if r.reward != nil {
		values["reward/mean"] = *r.reward
	}
	evaluates := r.request.Settings.EvalAutoCarveout || len(r.request.EvalFiles) > 0
	if evaluates && (next%r.epochSteps() == 0 || next == r.state.Steps) {
		loss := 1.1*curve + 0.1*(source.Float64()-0.5)
		values["eval/loss"] = loss
		r.stopped = r.request.Settings.EarlyStop && loss >= r.state.Best
		r.state.Best = min(r.state.Best, loss)
	}
	r.state.Step = next
	r.state.Tokens += max(r.bytes/int64(r.epochSteps()), 1)
	r.metrics = append(r.metrics, engines.Metrics{
		Step: next, Steps: r.state.Steps, Epoch: float64(next) / float64(r.epochSteps()), Time: time.Now().UTC(),
		LearningRate: r.request.Settings.LearningRate, Tokens: r.state.Tokens, Values: values,
	})
	return nil
}

func (r *training) checkpoint(ctx context.Context, watch engines.TrainWatcher) error {
	if err := r.options.fault(WriteCheckpoint, r.state.Step); err != nil {
		return err
	}
	dir := filepath.Join(r.request.WorkDir, fmt.Sprintf("checkpoint-%d", r.state.Step))
	if err := r.write(dir); err != nil {
		return err
	}
	return watch.Checkpoint(ctx, r.state.Step, dir)
}

func (r *training) result() (engines.TrainResult, error) {
	files, err := r.files(map[string]any{stateField: r.state})
	if err != nil {
		return engines.TrainResult{}, err
	}
	values := map[string]float64{}
	for _, row := range r.metrics {
		for name, value := range row.Values {
			values[name] = value
		}
	}
	return engines.TrainResult{
		Files: files, Adapter: r.request.Settings.LoraRank > 0, Steps: r.state.Step, Tokens: r.state.Tokens,
		StoppedEarly: r.stopped, Values: values,
	}, nil
}

// write writes a model directory with the state and the metrics.
func (r *training) write(dir string) error {
	files, err := r.files(map[string]any{})
	if err == nil {
		files[stateFile], err = json.Marshal(r.state)
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// files returns the files of a model directory, by name: a configuration that contains settings,
// the metrics, and a valid .safetensors file without tensors, which consists of the length of the
// header and the header {}.
func (r *training) files(settings map[string]any) (map[string][]byte, error) {
	config, weights := "config.json", "model.safetensors"
	if r.request.Settings.LoraRank > 0 {
		config, weights = "adapter_config.json", "adapter_model.safetensors"
		settings["peft_type"], settings["r"] = "LORA", r.request.Settings.LoraRank
		settings["lora_alpha"] = r.request.Settings.LoraAlpha
	} else {
		settings["model_type"] = "simulated"
	}
	metrics := []byte{}
	for _, row := range r.metrics {
		line, err := json.Marshal(row)
		if err != nil {
			return nil, err
		}
		metrics = append(append(metrics, line...), '\n')
	}
	configJSON, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{config: configJSON, weights: []byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"),
		"metrics.jsonl": metrics}, nil
}

// countRows returns the number of rows in a JSONL file, and the size of the rows in bytes. It
// returns InvalidArgument for a line that is not a JSON object.
func countRows(file string) (rows int, size int64, err error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, fmt.Errorf("dataset: %w", err)
	}
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	scanner := bufio.NewScanner(f)
	scanner.Buffer(nil, 4<<20)
	for line := 1; scanner.Scan(); line++ {
		row := slices.Clone(bytes.TrimSpace(scanner.Bytes()))
		if len(row) == 0 {
			continue
		}
		if row[0] != '{' || !json.Valid(row) {
			return 0, 0, domain.Errorf(domain.InvalidArgument,
				"%s line %d: is not a JSON object; write one object per line", filepath.Base(file), line)
		}
		rows, size = rows+1, size+int64(len(row))
	}
	return rows, size, scanner.Err()
}
