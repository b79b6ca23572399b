package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
)

// Trainer trains in this process. The zero value is ready.
type Trainer struct{}

// A job is one training under way.
type job struct {
	order    engines.TrainOrder
	settings engines.TrainSettings
	watch    engines.TrainWatcher
	loop     *Loop
	base     string // the base's hash
	data     string // the hash of all rows
	plan     *plan
	held     []*Sample // to evaluate on
	metrics  *os.File  // one row a line, since step 1
	state    state
	best     []float32          // the trained parameters of the lowest evaluation loss, for an early stop
	values   map[string]float64 // the last of each metric
}

// A state is where a training stands; with the parameters and the optimiser's
// moments it is all that a resume needs.
type state struct {
	Step      int     `json:"step"`
	Tokens    int64   `json:"tokens"`
	Evaluated int     `json:"evaluated"` // step of the last evaluation
	BestLoss  float64 `json:"bestLoss"`  // lowest evaluation loss so far
	BestStep  int     `json:"bestStep"`
	Worse     int     `json:"worse"` // evaluations since then
	Stopped   bool    `json:"stopped"`

	// What the training must have in common with the one that resumes it.
	Base     string                `json:"base"`
	Data     string                `json:"data"`
	Seed     uint64                `json:"seed"`
	Settings engines.TrainSettings `json:"settings"`
}

// Train implements engines.Trainer.
func (Trainer) Train(ctx context.Context, order engines.TrainOrder, watch engines.TrainWatcher) (result engines.TrainResult, err error) {
	j, err := begin(ctx, order, watch)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, j.metrics.Close()) }()
	if err := j.run(ctx); err != nil {
		return result, err
	}
	dir := filepath.Join(order.WorkDir, "result")
	if err := j.writeModel(dir, true); err != nil {
		return result, err
	}
	return engines.TrainResult{Dir: dir, Adapter: j.loop.Net.Adapter != nil, Steps: j.state.Step, Tokens: j.state.Tokens,
		StoppedEarly: j.state.Stopped, Values: j.values}, nil
}

// begin loads model and rows, and takes up the checkpoint to resume from.
func begin(ctx context.Context, order engines.TrainOrder, watch engines.TrainWatcher) (*job, error) {
	if order.Method != "" && order.Method != engines.Supervised {
		return nil, domain.Faultf(domain.InvalidArgument, "method: %q is unknown to the embedded engine; use %q", order.Method, engines.Supervised)
	}
	config, err := llama.ReadConfig(order.BaseDir)
	if err == nil {
		err = config.FitsTraining(order.Settings.LoraRank > 0, cores(order))
	}
	if err != nil {
		return nil, fmt.Errorf("base model: %w", err)
	}
	weights, err := llama.Load(order.BaseDir)
	if err != nil {
		return nil, fmt.Errorf("base model: %w", err)
	}
	tokens, err := tokenizer.Load(order.BaseDir)
	if err != nil {
		return nil, fmt.Errorf("base model: %w", err)
	}
	j := &job{order: order, watch: watch, base: weights.Hash(), values: map[string]float64{}}
	if j.settings, err = resolve(order, &weights.Config); err != nil {
		return nil, err
	}
	if err := j.read(tokens, weights.Config.VocabSize); err != nil {
		return nil, err
	}
	weights.Config.TorchDType = "float32" // a result and a checkpoint lose nothing
	if err := j.build(weights); err != nil {
		return nil, err
	}
	j.state = state{BestLoss: math.MaxFloat64, Base: j.base, Data: j.data, Seed: order.Seed, Settings: j.settings}
	if j.metrics, err = os.Create(filepath.Join(order.WorkDir, metricsFile)); err != nil {
		return nil, err
	}
	if order.ResumeDir != "" {
		if err := j.restore(order.ResumeDir); err != nil {
			return nil, errors.Join(err, j.metrics.Close())
		}
	}
	return j, ctx.Err()
}

// read turns the order's files into a plan and rows to evaluate on.
func (j *job) read(tokens *tokenizer.Tokenizer, vocab int) error {
	train := newReader(tokens, j.settings.MaxContextLength, vocab)
	for _, path := range j.order.DataFiles {
		if err := train.read(path); err != nil {
			return err
		}
	}
	held := newReader(tokens, j.settings.MaxContextLength, vocab)
	for _, path := range j.order.EvalFiles {
		if err := held.read(path); err != nil {
			return err
		}
	}
	j.data = train.hash() + " " + held.hash()
	samples := train.samples
	j.held = held.samples
	if len(j.held) == 0 && (j.settings.EvalAutoCarveout || j.settings.EarlyStop) && len(samples) > 1 {
		samples, j.held = carve(samples, j.order.Seed)
	}
	if len(samples) == 0 {
		return domain.Faultf(domain.InvalidArgument, "dataset: holds no rows to train on; upload a JSONL file with at least one")
	}
	s := j.settings
	j.plan = newPlan(samples, s.Epochs, s.BatchSizeTokens, s.BatchSizeSamples, s.GradientAccumulationSteps, j.order.Seed)
	fill(&j.settings.CheckpointSteps, min(max(j.plan.steps/4, 20), 1000))
	return nil
}

// build prepares what is trained: a new adapter, one to continue from, or all
// parameters.
func (j *job) build(weights *llama.Weights) error {
	var adapter *llama.Adapter
	if j.order.AdapterDir != "" {
		from, err := llama.LoadAdapter(j.order.AdapterDir, j.base, weights.Config)
		if err != nil {
			return fmt.Errorf("warmStartFrom: %w", err)
		}
		switch j.settings.LoraRank {
		case 0:
			weights = from.Merge(weights)
		case from.Rank:
			adapter = from
		default:
			return domain.Faultf(domain.InvalidArgument, "loraRank: the adapter to continue from has rank %d, not %d: ask for its own rank, or 0 to train all parameters", from.Rank, j.settings.LoraRank)
		}
	} else if j.settings.LoraRank > 0 {
		adapter = llama.NewAdapter(weights.Config, j.settings.LoraRank, j.settings.LoraAlpha, modules(j.settings))
		adapter.Initialize(j.order.Seed)
	}
	if adapter != nil {
		adapter.BaseHash = j.base
	}
	workers := cores(j.order)
	j.loop = NewLoop(llama.NewNet(weights, adapter, workers), workers)
	j.loop.Decay, j.loop.Seed = j.settings.OptimizerWeightDecay, j.order.Seed
	if adapter != nil {
		j.loop.Dropout = j.settings.LoraDropout
	}
	return nil
}

// run takes the steps that are left. When ctx ends it, the last step's
// checkpoint is handed over first.
func (j *job) run(ctx context.Context) error {
	err := j.advance(ctx)
	if err != nil && ctx.Err() != nil {
		return errors.Join(ctx.Err(), j.checkpoint(context.WithoutCancel(ctx)))
	}
	return err
}

// advance alternates steps, evaluations and checkpoints until nothing is left
// to do. A resumed training enters it wherever the state says.
func (j *job) advance(ctx context.Context) error {
	s := &j.state
	saved := s.Step
	for {
		if err := j.evaluate(ctx); err != nil {
			return err
		}
		ended := s.Step == j.plan.steps || s.Stopped
		if s.Step != saved && (ended || s.Step%j.settings.CheckpointSteps == 0) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := j.checkpoint(ctx); err != nil {
				return err
			}
			saved = s.Step
		}
		if ended {
			return nil
		}
		if err := j.step(ctx); err != nil {
			return err
		}
	}
}

// rate is the learning rate of a step, counted from 1.
func (j *job) rate(step int) float64 {
	return rateAt(step, j.plan.steps, j.settings.LearningRateWarmupSteps, j.settings.LearningRate)
}

// step takes one optimiser step. When ctx ends it, nothing has changed.
func (j *job) step(ctx context.Context) error {
	s := &j.state
	report, err := j.loop.Step(ctx, j.plan.batch(s.Step), j.rate(s.Step+1))
	if errors.Is(err, errDiverged) {
		return &domain.Fault{Code: errDiverged.Code, Reason: errDiverged.Reason, Message: fmt.Sprintf("step %d: %s", s.Step+1, errDiverged.Message)}
	}
	if err != nil {
		return err
	}
	s.Step++
	s.Tokens += int64(report.Tokens)
	return j.report(map[string]float64{"train/loss": report.Loss, "train/grad_norm": report.Norm})
}

// evaluate measures the rows held out when it is time, keeps the best parameters
// for an early stop, and decides on that.
func (j *job) evaluate(ctx context.Context) error {
	s := &j.state
	due := s.Step%max(1, j.plan.steps/evaluations) == 0 || s.Step == j.plan.steps
	if !due || len(j.held) == 0 || s.Evaluated >= s.Step {
		return nil
	}
	loss, accuracy, err := j.loop.Loss(ctx, j.held)
	if err != nil {
		return err
	}
	s.Evaluated = s.Step
	if s.Worse++; loss < s.BestLoss {
		s.BestLoss, s.BestStep, s.Worse = loss, s.Step, 0
		if j.settings.EarlyStop {
			j.best = append(j.best[:0], j.loop.Net.Trained()...)
		}
	}
	s.Stopped = j.settings.EarlyStop && s.Worse >= patience
	return j.report(map[string]float64{"eval/loss": loss, "eval/accuracy": accuracy})
}

// report adds a row to the metrics file and tells the watcher.
func (j *job) report(values map[string]float64) error {
	row := engines.Metrics{Step: j.state.Step, Steps: j.plan.steps, Epoch: j.plan.progress(j.state.Step), Time: time.Now().UTC(),
		LearningRate: j.rate(j.state.Step), Tokens: j.state.Tokens, Values: values}
	for name, value := range values {
		j.values[name] = value
	}
	line, err := json.Marshal(row)
	if err != nil {
		return err
	}
	if _, err := j.metrics.Write(append(line, '\n')); err != nil {
		return err
	}
	j.watch.Step(row)
	return nil
}

// writeModel writes the adapter, or the whole model with its tokenizer, into a
// new directory; of an early stop, when best is set, that of the lowest
// evaluation loss.
func (j *job) writeModel(dir string, best bool) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	net := j.loop.Net
	if best && len(j.best) > 0 {
		last := slices.Clone(net.Trained())
		copy(net.Trained(), j.best)
		defer copy(net.Trained(), last)
	}
	if net.Adapter != nil {
		return net.Adapter.Save(dir, j.loop.Dropout)
	}
	if err := net.Weights.Save(dir); err != nil {
		return err
	}
	return copyCompanions(dir, j.order.BaseDir)
}
