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

// Trainer trains in this process. The zero value is ready.
type Trainer struct{}

// A job is one training under way.
type job struct {
	order    engines.TrainOrder
	settings engines.TrainSettings
	watch    engines.TrainWatcher
	loop     *Loop
	tokens   *tokenizer.Tokenizer
	base     string // the base's hash
	data     string // the hash of all rows
	course   course
	nothing  string   // why there is nothing to learn, if so
	metrics  *os.File // one row a line, since step 1
	state    state
	best     []float32          // the trained parameters of the lowest evaluation loss, for an early stop
	values   map[string]float64 // the last of each metric
}

// A state is where a training stands; with the parameters and the optimiser's
// moments it is all that a resume needs.
type state struct {
	Step      int     `json:"step"`
	Idle      int     `json:"idle,omitempty"` // steps without anything to learn
	Rate      float64 `json:"rate"`           // learning rate of the last step
	Tokens    int64   `json:"tokens"`
	Evaluated int     `json:"evaluated"` // step of the last evaluation
	BestLoss  float64 `json:"bestLoss"`  // lowest evaluation loss so far
	BestStep  int     `json:"bestStep"`
	Worse     int     `json:"worse"` // evaluations since then
	Stopped   bool    `json:"stopped"`
	Reason    string  `json:"reason,omitempty"` // of Stopped
	Shift     float64 `json:"shift,omitempty"`  // see guard

	// Of rollouts.
	Chunk       int     `json:"chunk,omitempty"`       // chunks begun
	At          int     `json:"at,omitempty"`          // steps of the last of them that are done
	Flat        int     `json:"flat,omitempty"`        // chunks in a row that taught nothing
	EvaluatedAt float64 `json:"evaluatedAt,omitempty"` // epochs done at the last evaluation
	Rollouts    tally   `json:"rollouts"`              // of the chunks that were begun

	// What the training must have in common with the one that resumes it.
	Method   string                `json:"method"`
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
		StoppedEarly: j.state.Stopped, Reason: j.state.Reason, Values: j.values}, nil
}

// begin loads model and rows, and takes up the checkpoint to resume from.
func begin(ctx context.Context, order engines.TrainOrder, watch engines.TrainWatcher) (*job, error) {
	order.Method = cmp.Or(order.Method, engines.Supervised)
	if losses[order.Method] == nil {
		return nil, domain.Errorf(domain.InvalidArgument, "method: %q is unknown to the embedded engine; use one of %s", order.Method,
			strings.Join(slices.Sorted(maps.Keys(losses)), ", "))
	}
	if order.Method == engines.Reinforcement && order.Evaluation == nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "evaluator: this node runs no evaluator code, which scores the answers: start a worker that does")
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
	weights.Config.TorchDType = "float32" // a result and a checkpoint lose nothing
	if err := j.build(weights); err != nil {
		return nil, err
	}
	if err := j.enroll(ctx, train, held); err != nil {
		return nil, err
	}
	j.state = state{Stopped: j.nothing != "", Reason: j.nothing, BestLoss: math.MaxFloat64, Method: order.Method, Base: j.base, Data: j.data, Seed: order.Seed, Settings: j.settings}
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
		return nil, nil, domain.Errorf(domain.InvalidArgument, "dataset: holds no rows to train on; upload a JSONL file with at least one")
	}
	return train, held, nil
}

// reader reads rows as the method needs them.
func (j *job) reader(vocab int) *reader {
	r := newReader(j.tokens, j.settings.MaxContextLength, vocab)
	r.template, r.given, r.noChat = j.template() // rows without messages need none
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

// template is the job's chat template, else that of the adapter that it goes on
// from, else the model's own. given tells that it is not the model's own.
func (j *job) template() (t *chat.Template, given bool, err error) {
	source, err := j.givenTemplate()
	if err != nil {
		return nil, false, err
	}
	if source == "" {
		t, err = chat.Load(j.order.BaseDir, j.tokens)
		return t, false, err
	}
	if t, err = chat.With(source, j.order.BaseDir, j.tokens); err != nil {
		err = domain.Errorf(domain.InvalidArgument, "jinjaTemplate: %v: correct it, or leave it out for the model's own", err)
	}
	return t, true, err
}

func (j *job) givenTemplate() (string, error) {
	if j.settings.JinjaTemplate != "" || j.order.AdapterDir == "" {
		return j.settings.JinjaTemplate, nil
	}
	return chat.Source(j.order.AdapterDir)
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
			return domain.Errorf(domain.InvalidArgument, "loraRank: the adapter to continue from has rank %d, not %d: ask for its own rank, or 0 to train all parameters", from.Rank, j.settings.LoraRank)
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
	j.loop.Decay, j.loop.Seed, j.loop.objective = j.settings.OptimizerWeightDecay, j.order.Seed, objectiveOf(j.settings.Loss)
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

// A checkpoint is written when this long has gone by without one, whatever the
// steps between two are, so that a crash costs no more; but a checkpoint that
// takes long is followed by checkpointShare times as much training.
const (
	checkpointWithin = 30 * time.Second
	checkpointShare  = 20
)

// advance alternates steps, evaluations and checkpoints until nothing is left
// to do. A resumed training enters it wherever the state says.
func (j *job) advance(ctx context.Context) error {
	s := &j.state
	saved, due := s.Step, time.Now().Add(checkpointWithin)
	for {
		if err := j.evaluate(ctx); err != nil {
			return err
		}
		ended := s.Stopped || j.course.over()
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

// step takes one optimiser step. When ctx ends it, nothing has changed. A step
// with nothing to learn leaves the model as it is.
func (j *job) step(ctx context.Context) error {
	s := &j.state
	batch, values, err := j.course.next(ctx)
	if err != nil {
		return err
	}
	rate := j.course.rate()
	report := StepReport{told: figures{}}
	if len(batch) > 0 {
		report, err = j.loop.Step(ctx, batch, rate)
	}
	if errors.Is(err, errDiverged) {
		return &domain.Error{Code: errDiverged.Code, Reason: errDiverged.Reason, Message: fmt.Sprintf("step %d: %s", s.Step+1, errDiverged.Message)}
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
	j.course.passed(report.told)
	told := report.told.values("train")
	maps.Copy(told, values)
	s.Rollouts.tell(told)
	if len(batch) > 0 {
		told["train/grad_norm"] = report.Norm
	}
	return j.report(told)
}

// evaluate measures the rows held out when it is time, keeps the best parameters
// for an early stop, and decides on that.
func (j *job) evaluate(ctx context.Context) error {
	s := &j.state
	if !j.course.due() || s.Evaluated >= s.Step {
		return nil
	}
	values, err := j.course.measure(ctx)
	if err != nil || values == nil {
		return err
	}
	s.Evaluated = s.Step
	if loss, ok := values["eval/loss"]; ok {
		j.judgeLoss(loss)
	}
	return j.report(values)
}

// judgeLoss compares an evaluation with the best one before it.
func (j *job) judgeLoss(loss float64) {
	s := &j.state
	if s.Worse++; loss < s.BestLoss {
		s.BestLoss, s.BestStep, s.Worse = loss, s.Step, 0
		if j.settings.EarlyStop {
			j.best = append(j.best[:0], j.loop.Net.Trained()...)
		}
	}
	if j.settings.EarlyStop && s.Worse >= patience {
		s.Stopped, s.Reason = true, fmt.Sprintf("the loss on the rows held out was lowest at step %d and did not improve on that: its model is kept", s.BestStep)
	}
}

// report adds a row to the metrics file and tells the watcher.
func (j *job) report(values map[string]float64) error {
	row := engines.Metrics{Step: j.state.Step, Steps: j.course.steps(), Epoch: j.course.epoch(), Time: time.Now().UTC(),
		LearningRate: j.state.Rate, Tokens: j.state.Tokens, Values: values}
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
		return errors.Join(net.Adapter.Save(dir, j.loop.Dropout), j.saveTemplate(dir))
	}
	if err := net.Weights.Save(dir); err != nil {
		return err
	}
	return errors.Join(copyCompanions(dir, j.order.BaseDir), j.saveTemplate(dir))
}

// saveTemplate leaves the template with a model that was not trained by its
// base's, for those who serve it.
func (j *job) saveTemplate(dir string) error {
	source, err := j.givenTemplate()
	if err != nil || source == "" {
		return err
	}
	return chat.Save(dir, source)
}
