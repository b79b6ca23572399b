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

// A Trainer trains in this process. The zero value is ready to use.
type Trainer struct {
	// Cores are the CPU cores that the phases of reinforcement trainings with MaxStaleness share: each
	// training adds its own. If it is nil, each training uses only its own.
	Cores *Devices
}

// A job is one training run.
type job struct {
	request   engines.TrainRequest
	settings  engines.TrainSettings
	watch     engines.TrainWatcher
	loop      *Loop
	tokens    *tokenizer.Tokenizer
	base      string // hash of the base model's weights
	data      string // digests of the training files and of the evaluation files
	procedure procedure
	phases    *phases  // devices of the phases of rollouts; nil without MaxStaleness
	nothing   string   // reason why there is nothing to train; "" if there is something
	metrics   *os.File // metrics file, with a JSON object in each line from step 1 on
	state     state
	best      []float32          // parameters with the lowest evaluation loss; empty without early stopping
	values    map[string]float64 // last value of each metric
}

// A state is the progress of a training run. To resume, a run needs its state, the parameters and
// the optimizer's moments.
type state struct {
	Step      int     `json:"step"`
	Idle      int     `json:"idle,omitempty"` // number of steps without a training signal
	Rate      float64 `json:"rate"`           // learning rate of the last step
	Tokens    int64   `json:"tokens"`
	Evaluated int     `json:"evaluated"` // step of the last evaluation
	BestLoss  float64 `json:"bestLoss"`  // lowest evaluation loss so far
	BestStep  int     `json:"bestStep"`
	Worse     int     `json:"worse"` // number of evaluations since the one with BestLoss
	Stopped   bool    `json:"stopped"`
	Reason    string  `json:"reason,omitempty"` // why the training stopped early; "" unless Stopped
	Shift     float64 `json:"shift,omitempty"`  // moving average of the metric chosenShift, see guard

	// The following fields are the progress of rollouts.
	Chunk int `json:"chunk,omitempty"` // number of chunks that have begun
	At    int `json:"at,omitempty"`    // number of completed steps of the current chunk
	// Flat is the number of consecutive chunks without a training signal.
	Flat        int           `json:"flat,omitempty"`
	EvaluatedAt float64       `json:"evaluatedAt,omitempty"` // number of completed epochs at the last evaluation
	Rollouts    rolloutCounts `json:"rollouts"`              // counts of all chunks that have begun
	// Policy is the number of chunks on which the policy was trained that generated the current chunk;
	// 0 without MaxStaleness.
	Policy int `json:"policy,omitempty"`

	// The following fields identify the training. A resumed training must have the same values.
	Method   string                `json:"method"`
	Base     string                `json:"base"`
	Data     string                `json:"data"`
	Seed     uint64                `json:"seed"`
	Settings engines.TrainSettings `json:"settings"`
}

// Train implements engines.Trainer.
func (t Trainer) Train(
	ctx context.Context, request engines.TrainRequest, watch engines.TrainWatcher,
) (result engines.TrainResult, err error) {
	j, err := newJob(ctx, request, watch)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, j.metrics.Close()) }()
	if err := j.enlist(ctx); err != nil {
		return result, err
	}
	defer j.loop.endHelpers(ctx)
	defer j.shareCores(t.Cores)()
	if err := j.run(ctx); err != nil {
		return result, err
	}
	dir := filepath.Join(request.WorkDir, "result")
	if err := j.writeModel(dir, true); err != nil {
		return result, err
	}
	return engines.TrainResult{Dir: dir, Adapter: j.loop.Net.Adapter != nil, Steps: j.state.Step, Tokens: j.state.Tokens,
		StoppedEarly: j.state.Stopped, Reason: j.state.Reason, Values: j.values}, nil
}

// newJob loads the model and the rows, and the checkpoint from which the request resumes.
func newJob(ctx context.Context, request engines.TrainRequest, watch engines.TrainWatcher) (*job, error) {
	if request.Method == engines.Reinforcement && request.Evaluation == nil {
		return nil, domain.Errorf(domain.FailedPrecondition,
			"evaluator: this node cannot run evaluators: start a node with a Python interpreter")
	}
	j, weights, err := loadModel(request, watch)
	if err != nil {
		return nil, err
	}
	train, held, err := j.read(weights.Config.VocabSize)
	if err != nil {
		return nil, err
	}
	if err := j.build(weights); err != nil {
		return nil, err
	}
	keepInitial(j)
	if err := j.prepare(ctx, train, held); err != nil {
		return nil, err
	}
	j.state = state{
		Stopped: j.nothing != "", Reason: j.nothing, BestLoss: math.MaxFloat64, Method: j.request.Method, Base: j.base,
		Data: j.data, Seed: request.Seed, Settings: j.settings,
	}
	if err := os.MkdirAll(request.WorkDir, 0o700); err != nil {
		return nil, err
	}
	if j.metrics, err = os.Create(filepath.Join(request.WorkDir, metricsFile)); err != nil {
		return nil, err
	}
	if request.ResumeDir != "" {
		if err := j.restore(request.ResumeDir); err != nil {
			return nil, errors.Join(err, j.metrics.Close())
		}
	}
	return j, ctx.Err()
}

// loadModel loads the base model and the tokenizer, and sets the defaults of the settings.
func loadModel(request engines.TrainRequest, watch engines.TrainWatcher) (*job, *llama.Weights, error) {
	request.Method = cmp.Or(request.Method, engines.Supervised)
	if losses[request.Method] == nil {
		return nil, nil,
			domain.Errorf(domain.InvalidArgument, "method: the embedded engine does not support %q: use one of %s",
				request.Method,
				strings.Join(slices.Sorted(maps.Keys(losses)), ", "))
	}
	config, err := llama.ReadConfig(request.BaseDir)
	if err == nil {
		err = config.FitsTraining(request.Settings.LoraRank > 0, cores(request)+policyCopies(request.Settings))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("base model: %w", err)
	}
	weights, err := llama.Load(request.BaseDir)
	if err != nil {
		return nil, nil, fmt.Errorf("base model: %w", err)
	}
	tokens, err := tokenizer.Load(request.BaseDir)
	if err != nil {
		return nil, nil, fmt.Errorf("base model: %w", err)
	}
	j := &job{request: request, watch: watch, tokens: tokens, base: weights.Hash(), values: map[string]float64{}}
	j.settings, err = resolve(request, &weights.Config)
	weights.Config.TorchDType = "float32" // results and checkpoints then lose no precision
	return j, weights, err
}

// read reads the files of the request. train has the training rows, and held the evaluation rows.
func (j *job) read(vocab int) (train, held *reader, err error) {
	train, held = j.reader(vocab), j.reader(vocab)
	for _, path := range j.request.DataFiles {
		if err := train.read(path); err != nil {
			return nil, nil, err
		}
	}
	for _, path := range j.request.EvalFiles {
		if err := held.read(path); err != nil {
			return nil, nil, err
		}
	}
	j.data = train.hash() + " " + held.hash()
	if train.kept == 0 {
		return nil, nil, domain.Errorf(domain.InvalidArgument,
			"dataset: has no rows; upload a JSONL file with at least one row")
	}
	return train, held, nil
}

// reader returns a reader of rows for the method of the job.
func (j *job) reader(vocab int) *reader {
	r := newReader(j.tokens, j.settings.MaxContextLength, vocab)
	// parseErr only matters for rows with messages, because other rows need no template.
	r.template, r.given, r.parseErr = j.template()
	r.weights = j.settings.RewardWeights
	switch j.request.Method {
	case engines.DPO:
		r.take = r.pair
	case engines.RLOR:
		r.take = r.scored
	case engines.Reinforcement:
		r.take = r.prompt
	}
	return r
}

// template returns the chat template of the job, else that of the adapter to continue, else the
// model's. given is false for the model's.
func (j *job) template() (t *chat.Template, given bool, err error) {
	source, err := j.customTemplate()
	if err != nil {
		return nil, false, err
	}
	if source == "" {
		t, err = chat.Load(j.request.BaseDir, j.tokens)
		return t, false, err
	}
	if t, err = chat.With(source, j.request.BaseDir, j.tokens); err != nil {
		err = domain.Errorf(domain.InvalidArgument,
			"jinjaTemplate: %v: correct it, or omit it to use the model's template", err)
	}
	return t, true, err
}

func (j *job) customTemplate() (string, error) {
	if j.settings.JinjaTemplate != "" || j.request.AdapterDir == "" {
		return j.settings.JinjaTemplate, nil
	}
	return chat.Source(j.request.AdapterDir)
}

// build creates the net with the parameters to train: those of a new adapter, of an adapter to
// continue, or of the model.
func (j *job) build(weights *llama.Weights) error {
	var adapter *llama.Adapter
	if j.request.AdapterDir != "" {
		from, err := llama.LoadAdapter(j.request.AdapterDir, j.base, weights.Config)
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
				"loraRank: is %d, but the adapter to continue has rank %d: set loraRank to that rank, or to 0 to train all "+
					"parameters",
				j.settings.LoraRank, from.Rank)
		}
	} else if j.settings.LoraRank > 0 {
		adapter = llama.NewAdapter(weights.Config, j.settings.LoraRank, j.settings.LoraAlpha, modules(j.settings))
		adapter.Initialize(j.request.Seed)
	}
	if adapter != nil {
		adapter.BaseHash = j.base
	}
	workers := cores(j.request)
	j.loop = NewLoop(llama.NewNet(weights, adapter, workers), workers)
	j.loop.Decay, j.loop.Seed, j.loop.objective = j.settings.OptimizerWeightDecay, j.request.Seed,
		objectiveOf(j.settings.Loss, stale(j.settings))
	if adapter != nil {
		j.loop.Dropout = j.settings.LoraDropout
	}
	return nil
}

// run executes the remaining steps. When ctx is done, it passes a checkpoint of the last completed
// step to the watcher, and returns.
func (j *job) run(ctx context.Context) error {
	defer stopGenerations(j.procedure) // also if advance panics
	err := j.advance(ctx)
	stopGenerations(j.procedure)
	if err != nil && ctx.Err() != nil {
		return errors.Join(ctx.Err(), j.checkpoint(context.WithoutCancel(ctx)))
	}
	return err
}

// checkpointWithin is the maximum time between checkpoints, whatever CheckpointSteps is, to limit
// what a crash loses. checkpointShare makes slow checkpoints rarer: after a checkpoint, the
// training runs for at least checkpointShare times the duration of that checkpoint before the next
// one.
const (
	checkpointWithin = 30 * time.Second
	checkpointShare  = 20
)

// advance executes steps, evaluations and checkpoints until the training ends. A resumed training
// can begin with any of these.
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

// step takes one optimizer step. If ctx is done, it returns an error and leaves the job unchanged.
// A step without samples does not change the model.
func (j *job) step(ctx context.Context) error {
	s := &j.state
	batch, values, err := j.procedure.next(ctx)
	if err != nil {
		return err
	}
	rate := j.procedure.rate()
	report := StepReport{metrics: means{}}
	if len(batch) > 0 {
		report, err = j.train(ctx, batch, rate)
	}
	if errors.Is(err, errDiverged) {
		diverged := *errDiverged
		diverged.Message = fmt.Sprintf("in step %d, %s", s.Step+1, errDiverged.Message)
		return &diverged
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

// train takes an optimizer step on batch when its devices are free.
func (j *job) train(ctx context.Context, batch []*Sample, rate float64) (StepReport, error) {
	leave, err := j.phases.enter(ctx, phaseTrain)
	if err != nil {
		return StepReport{metrics: means{}}, err
	}
	defer leave()
	return j.loop.Step(ctx, batch, rate)
}

// evaluate computes the metrics of the held-out rows if an evaluation is due, keeps the best
// parameters, and decides on an early stop.
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

// updateBest records loss if it is the lowest evaluation loss so far, and otherwise increments
// s.Worse. With early stopping, it stops the training after patience evaluations without a lower
// loss.
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
			"early stop: the result is the model of step %d, which had the lowest evaluation loss", s.BestStep)
	}
}

// report appends a row to the metrics file, and passes it to the watcher.
func (j *job) report(values map[string]float64) error {
	engines.RoundMetrics(values)
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

// writeModel writes the adapter, or the model with its tokenizer, to a new directory. If best is
// true and early stopping has kept the parameters with the lowest evaluation loss, it writes these
// instead of the latest.
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
	return errors.Join(copyCompanions(dir, j.request.BaseDir), j.saveTemplate(dir))
}

// saveTemplate writes the chat template to dir, for serving, unless it is the base model's.
func (j *job) saveTemplate(dir string) error {
	source, err := j.customTemplate()
	if err != nil || source == "" {
		return err
	}
	return chat.Save(dir, source)
}
