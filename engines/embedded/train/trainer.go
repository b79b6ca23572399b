package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/chat"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
)

// Trainer trains in this process. The zero value is ready to use.
type Trainer struct{}

// A job is one training in progress.
type job struct {
	order     engines.TrainRequest
	settings  engines.TrainSettings
	watch     engines.TrainWatcher
	loop      *Loop
	tokens    *tokenizer.Tokenizer
	base      string // hash of the base model
	data      string // hash of all rows
	procedure procedure
	nothing   string   // why there is nothing to train, if so
	metrics   *os.File // one row per line, from step 1
	state     state
	best      []float32          // trained parameters at the lowest evaluation loss, for early stopping
	values    map[string]float64 // last value of each metric
}

// A state is the progress of a training. With the parameters and the optimizer's moments it is
// all that a resume needs.
type state struct {
	Step      int     `json:"step"`
	Idle      int     `json:"idle,omitempty"` // steps without a training signal
	Rate      float64 `json:"rate"`           // learning rate of the last step
	Tokens    int64   `json:"tokens"`
	Evaluated int     `json:"evaluated"` // step of the last evaluation
	BestLoss  float64 `json:"bestLoss"`  // lowest evaluation loss
	BestStep  int     `json:"bestStep"`
	Worse     int     `json:"worse"` // evaluations since BestStep
	Stopped   bool    `json:"stopped"`
	Reason    string  `json:"reason,omitempty"` // of Stopped
	Shift     float64 `json:"shift,omitempty"`  // see guard

	// Progress of rollouts.
	Chunk       int           `json:"chunk,omitempty"`       // chunks started
	At          int           `json:"at,omitempty"`          // completed steps of the current chunk
	Flat        int           `json:"flat,omitempty"`        // consecutive chunks without a signal
	EvaluatedAt float64       `json:"evaluatedAt,omitempty"` // epochs completed at the last evaluation
	Rollouts    rolloutCounts `json:"rollouts"`              // of the chunks started

	// Identity of the training: a resumed training must have the same values.
	Method   string                `json:"method"`
	Base     string                `json:"base"`
	Data     string                `json:"data"`
	Seed     uint64                `json:"seed"`
	Settings engines.TrainSettings `json:"settings"`
}

// Train implements engines.Trainer.
func (Trainer) Train(
	ctx context.Context, order engines.TrainRequest, watch engines.TrainWatcher,
) (result engines.TrainResult, err error) {
	j, err := newJob(ctx, order, watch)
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
		StoppedEarly: j.state.Stopped, Reason: j.state.Reason, Values: j.values}, nil
}

// newJob loads model and rows, and restores the checkpoint to resume from.
func newJob(ctx context.Context, order engines.TrainRequest, watch engines.TrainWatcher) (*job, error) {
	order.Method = cmp.Or(order.Method, engines.Supervised)
	if losses[order.Method] == nil {
		return nil,
			domain.Errorf(domain.InvalidArgument, "method: %q is unknown to the embedded engine; use one of %s", order.Method,
				strings.Join(slices.Sorted(maps.Keys(losses)), ", "))
	}
	if order.Method == engines.Reinforcement && order.Evaluation == nil {
		return nil, domain.Errorf(domain.FailedPrecondition,
			"evaluator: this node cannot run evaluators: start a worker that can")
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
	j := &job{order: order, watch: watch, tokens: tokens, base: weights.Hash(), values: map[string]float64{}}
	if j.settings, err = resolve(order, &weights.Config); err != nil {
		return nil, err
	}
	train, held, err := j.read(weights.Config.VocabSize)
	if err != nil {
		return nil, err
	}
	weights.Config.TorchDType = "float32" // results and checkpoints are lossless
	if err := j.build(weights); err != nil {
		return nil, err
	}
	if err := j.prepare(ctx, train, held); err != nil {
		return nil, err
	}
	j.state = state{
		Stopped: j.nothing != "", Reason: j.nothing, BestLoss: math.MaxFloat64, Method: order.Method, Base: j.base,
		Data: j.data, Seed: order.Seed, Settings: j.settings,
	}
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

// read reads the order's files.
func (j *job) read(vocab int) (train, held *reader, err error) {
	train, held = j.reader(vocab), j.reader(vocab)
	for _, path := range j.order.DataFiles {
		if err := train.read(path); err != nil {
			return nil, nil, err
		}
	}
	for _, path := range j.order.EvalFiles {
		if err := held.read(path); err != nil {
			return nil, nil, err
		}
	}
	j.data = train.hash() + " " + held.hash()
	if train.kept == 0 {
		return nil, nil, domain.Errorf(domain.InvalidArgument,
			"dataset: has no rows; upload a JSONL file with at least one")
	}
	return train, held, nil
}

// reader returns a reader for the rows of the job's method.
func (j *job) reader(vocab int) *reader {
	r := newReader(j.tokens, j.settings.MaxContextLength, vocab)
	r.template, r.given, r.parseErr = j.template() // rows without messages need no template
	r.weights = j.settings.RewardWeights
	switch j.order.Method {
	case engines.DPO:
		r.take = r.pair
	case engines.RLOR:
		r.take = r.scored
	case engines.Reinforcement:
		r.take = r.prompt
	}
	return r
}

// template is the job's chat template, otherwise that of the adapter that is continued,
// otherwise the model's. given reports whether it is not the model's.
func (j *job) template() (t *chat.Template, given bool, err error) {
	source, err := j.customTemplate()
	if err != nil {
		return nil, false, err
	}
	if source == "" {
		t, err = chat.Load(j.order.BaseDir, j.tokens)
		return t, false, err
	}
	if t, err = chat.With(source, j.order.BaseDir, j.tokens); err != nil {
		err = domain.Errorf(domain.InvalidArgument,
			"jinjaTemplate: %v: correct it, or omit it to use the model's template", err)
	}
	return t, true, err
}

func (j *job) customTemplate() (string, error) {
	if j.settings.JinjaTemplate != "" || j.order.AdapterDir == "" {
		return j.settings.JinjaTemplate, nil
	}
	return chat.Source(j.order.AdapterDir)
}

// build prepares the trained parameters: a new adapter, an adapter to continue, or the full
// model.
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
			return domain.Errorf(domain.InvalidArgument,
				"loraRank: is %d, but the adapter to continue has rank %d: set its rank, or 0 to train all parameters",
				j.settings.LoraRank, from.Rank)
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
	j.loop.Decay, j.loop.Seed, j.loop.objective = j.settings.OptimizerWeightDecay, j.order.Seed,
		objectiveOf(j.settings.Loss)
	if adapter != nil {
		j.loop.Dropout = j.settings.LoraDropout
	}
	return nil
}

// run executes the remaining steps. When ctx ends, it hands over a checkpoint of the last step
// first.
func (j *job) run(ctx context.Context) error {
	err := j.advance(ctx)
	if err != nil && ctx.Err() != nil {
		return errors.Join(ctx.Err(), j.checkpoint(context.WithoutCancel(ctx)))
	}
	return err
}

// A checkpoint is written at the latest after checkpointWithin, independent of checkpointSteps,
// so that a crash loses no more. Slow checkpoints are followed by checkpointShare times their
// duration of training.
const (
	checkpointWithin = 30 * time.Second
	checkpointShare  = 20
)

// advance alternates steps, evaluations and checkpoints until the training ends. A resumed
// training enters it at any state.
func (j *job) advance(ctx context.Context) error {
	s := &j.state
	saved, due := s.Step, time.Now().Add(checkpointWithin)
	for {
		if err := j.evaluate(ctx); err != nil {
			return err
		}
		ended := s.Stopped || j.procedure.done()
		if s.Step != saved && (ended || s.Step%j.settings.CheckpointSteps == 0 || time.Now().After(due)) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			began := time.Now()
			if err := j.checkpoint(ctx); err != nil {
				return err
			}
			saved, due = s.Step, time.Now().Add(max(checkpointWithin, checkpointShare*time.Since(began)))
		}
		if ended {
			return nil
		}
		if err := j.step(ctx); err != nil {
			return err
		}
	}
}

// step takes one optimizer step. If ctx ends, nothing has changed. A step without samples
// leaves the model unchanged.
func (j *job) step(ctx context.Context) error {
	s := &j.state
	batch, values, err := j.procedure.next(ctx)
	if err != nil {
		return err
	}
	rate := j.procedure.rate()
	report := StepReport{metrics: means{}}
	if len(batch) > 0 {
		report, err = j.loop.Step(ctx, batch, rate)
	}
	if errors.Is(err, errDiverged) {
		return &domain.Error{
			Code: errDiverged.Code, Reason: errDiverged.Reason,
			Message: fmt.Sprintf("step %d: %s", s.Step+1, errDiverged.Message),
		}
	}
	if err != nil {
		return err
	}
	if len(batch) == 0 {
		s.Idle++
	}
	s.Step++
	s.Rate = rate
	s.Tokens += int64(report.Tokens)
	j.procedure.afterStep(report.metrics)
	metrics := report.metrics.values("train")
	maps.Copy(metrics, values)
	s.Rollouts.addTo(metrics)
	if len(batch) > 0 {
		metrics["train/grad_norm"] = report.Norm
	}
	return j.report(metrics)
}

// evaluate computes the held-out metrics when they are due, keeps the best parameters, and
// decides on early stopping.
func (j *job) evaluate(ctx context.Context) error {
	s := &j.state
	if !j.procedure.evalDue() || s.Evaluated >= s.Step {
		return nil
	}
	values, err := j.procedure.evaluate(ctx)
	if err != nil || values == nil {
		return err
	}
	s.Evaluated = s.Step
	if loss, ok := values["eval/loss"]; ok {
		j.updateBest(loss)
	}
	return j.report(values)
}

// updateBest compares an evaluation loss with the lowest one.
func (j *job) updateBest(loss float64) {
	s := &j.state
	if s.Worse++; loss < s.BestLoss {
		s.BestLoss, s.BestStep, s.Worse = loss, s.Step, 0
		if j.settings.EarlyStop {
			j.best = append(j.best[:0], j.loop.Net.Trained()...)
		}
	}
	if j.settings.EarlyStop && s.Worse >= patience {
		s.Stopped, s.Reason = true, fmt.Sprintf(
			"early stop: the evaluation loss was lowest at step %d, whose model is kept", s.BestStep)
	}
}

// report appends a row to the metrics file and passes it to the watcher.
func (j *job) report(values map[string]float64) error {
	row := engines.Metrics{
		Step: j.state.Step, Steps: j.procedure.steps(), Epoch: j.procedure.epoch(), Time: time.Now().UTC(),
		LearningRate: j.state.Rate, Tokens: j.state.Tokens, Values: values,
	}
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

// writeModel writes the adapter, or the full model with its tokenizer, to a new directory. With
// best it writes the parameters of the lowest evaluation loss, if early stopping kept them.
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
		return errors.Join(net.Adapter.Save(dir, j.loop.Dropout), j.saveTemplate(dir))
	}
	if err := net.Weights.Save(dir); err != nil {
		return err
	}
	return errors.Join(copyCompanions(dir, j.order.BaseDir), j.saveTemplate(dir))
}

// saveTemplate stores the template with the model unless it is the base model's, for serving.
func (j *job) saveTemplate(dir string) error {
	source, err := j.customTemplate()
	if err != nil || source == "" {
		return err
	}
	return chat.Save(dir, source)
}
