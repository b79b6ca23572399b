package train

import "context"

// A course says what each step of a training learns from. Where it stands is
// part of the job's state.
type course interface {
	// next is what the next step learns from, and figures of how it came about.
	// It changes nothing; without samples there is nothing to be learnt.
	next(ctx context.Context) (batch []*Sample, told map[string]float64, err error)
	// passed goes on, now that what next answered was learnt, and judges how
	// that went.
	passed(told figures)
	over() bool
	steps() int     // expected in all
	epoch() float64 // done so far
	rate() float64  // the learning rate of the next step
	due() bool      // whether it is time to look at the rows held out
	// measure is the figures of the rows held out; nil when there are none.
	measure(ctx context.Context) (map[string]float64, error)
}

// A lesson is the course through samples that are all there from the beginning.
type lesson struct {
	*job
	plan *plan
	held []*Sample
	told map[string]float64 // of all samples
}

func (l *lesson) next(context.Context) ([]*Sample, map[string]float64, error) {
	return l.plan.batch(l.state.Step), l.told, nil
}

func (l *lesson) passed(told figures) { l.guard(told) }

func (l *lesson) over() bool     { return l.state.Step == l.plan.steps }
func (l *lesson) steps() int     { return l.plan.steps }
func (l *lesson) epoch() float64 { return l.plan.progress(l.state.Step) }

func (l *lesson) rate() float64 {
	return rateAt(l.state.Step+1, l.plan.steps, l.settings.LearningRateWarmupSteps, l.settings.LearningRate)
}

func (l *lesson) due() bool {
	return l.state.Step%max(1, l.plan.steps/evaluations) == 0 || l.over()
}

func (l *lesson) measure(ctx context.Context) (map[string]float64, error) {
	if len(l.held) == 0 {
		return nil, nil
	}
	told, err := l.loop.measure(ctx, l.held)
	return told.values("eval"), err
}
