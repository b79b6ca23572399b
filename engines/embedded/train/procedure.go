package train

import "context"

// A procedure supplies the samples of the steps of a training run: fixed samples, or rollouts. Its
// progress is part of the state of the job.
type procedure interface {
	// next returns the samples of the next step, and metrics about them. It does not change the
	// state. If batch is empty, the step has no training signal.
	next(ctx context.Context) (batch []*Sample, metrics map[string]float64, err error)
	// afterStep records that the step on the samples that next returned is completed. metrics are the
	// metrics of the step.
	afterStep(metrics means)
	done() bool
	steps() int     // returns the expected total number of steps
	epoch() float64 // returns the number of completed epochs
	rate() float64  // returns the learning rate of the next step
	evalDue() bool  // reports whether an evaluation is due
	// evaluate returns the metrics of the held-out rows; nil if there are none.
	evaluate(ctx context.Context) (map[string]float64, error)
}

// fixedSamples is the procedure for samples that are known from the start.
type fixedSamples struct {
	*job
	plan    *plan
	held    []*Sample
	metrics map[string]float64 // metrics of the scores of all samples, reported with each step; nil without scores
}

func (l *fixedSamples) next(context.Context) ([]*Sample, map[string]float64, error) {
	return l.plan.batch(l.state.Step), l.metrics, nil
}

func (l *fixedSamples) afterStep(metrics means) { l.guard(metrics) }

func (l *fixedSamples) done() bool     { return l.state.Step == l.plan.steps }
func (l *fixedSamples) steps() int     { return l.plan.steps }
func (l *fixedSamples) epoch() float64 { return l.plan.progress(l.state.Step) }

func (l *fixedSamples) rate() float64 {
	return rateAt(l.state.Step+1, l.plan.steps, l.settings.LearningRateWarmupSteps, l.settings.LearningRate)
}

func (l *fixedSamples) evalDue() bool {
	return l.state.Step%max(1, l.plan.steps/evaluations) == 0 || l.done()
}

func (l *fixedSamples) evaluate(ctx context.Context) (map[string]float64, error) {
	if len(l.held) == 0 {
		return nil, nil
	}
	metrics, err := l.loop.measure(ctx, l.held)
	return metrics.values("eval"), err
}
