package train

import "math/rand/v2"

// A plan divides samples into optimizer steps. It depends only on the samples, the settings and the
// seed, so a resumed training needs only the number of completed steps.
type plan struct {
	samples    []*Sample
	epochs     int
	maxTokens  int // maximum number of tokens in a micro-batch
	maxSamples int // maximum number of samples in a micro-batch
	accumulate int // number of micro-batches in a step
	seed       uint64

	steps  int   // total number of steps
	starts []int // number of the first step of each epoch
	epoch  int   // epoch whose steps are in cached
	cached [][]*Sample
}

func newPlan(samples []*Sample, epochs, maxTokens, maxSamples, accumulate int, seed uint64) *plan {
	p := &plan{
		samples: samples, epochs: epochs, maxTokens: maxTokens, maxSamples: maxSamples, accumulate: max(accumulate, 1),
		seed: seed, epoch: -1,
	}
	for e := range epochs {
		p.starts = append(p.starts, p.steps)
		p.steps += len(p.batches(e))
	}
	return p
}

// batch returns the samples of a step. Steps are numbered from 0.
func (p *plan) batch(step int) []*Sample {
	e := p.epochOf(step)
	return p.batches(e)[step-p.starts[e]]
}

func (p *plan) epochOf(step int) int {
	e := len(p.starts) - 1
	for e > 0 && p.starts[e] > step {
		e--
	}
	return e
}

// progress returns the number of epochs that are completed after a number of steps.
func (p *plan) progress(steps int) float64 {
	if steps >= p.steps {
		return float64(p.epochs)
	}
	e := p.epochOf(steps)
	end := p.steps
	if e+1 < len(p.starts) {
		end = p.starts[e+1]
	}
	return float64(e) + float64(steps-p.starts[e])/float64(end-p.starts[e])
}

// batches returns the samples of each step of an epoch. It shuffles the samples, divides them into
// micro-batches, and combines p.accumulate micro-batches in a step.
func (p *plan) batches(epoch int) [][]*Sample {
	if p.epoch == epoch {
		return p.cached
	}
	order := rand.New(rand.NewPCG(p.seed, uint64(epoch))).Perm(len(p.samples))
	var steps [][]*Sample
	var step []*Sample
	tokens, samples, batches := 0, 0, 0
	for _, i := range order {
		s := p.samples[i]
		if samples > 0 && (tokens+s.inputs() > p.maxTokens || samples == p.maxSamples) {
			tokens, samples, batches = 0, 0, batches+1
			if batches == p.accumulate {
				steps, step, batches = append(steps, step), nil, 0
			}
		}
		step = append(step, s)
		tokens, samples = tokens+s.inputs(), samples+1
	}
	if len(step) > 0 {
		steps = append(steps, step)
	}
	p.epoch, p.cached = epoch, steps
	return steps
}

// holdOut divides rows into a training set and an evaluation set, which gets a tenth of the rows,
// at least 1 and at most 256.
func holdOut[T any](rows []T, seed uint64) (train, held []T) {
	n := min(max(len(rows)/10, 1), 256)
	chosen := map[int]bool{}
	for _, i := range rand.New(rand.NewPCG(seed, 0x63617276)).Perm(len(rows))[:n] {
		chosen[i] = true
	}
	for i, row := range rows {
		if chosen[i] {
			held = append(held, row)
		} else {
			train = append(train, row)
		}
	}
	return train, held
}

// rateAt returns the learning rate of a step: linear warmup, and then linear decay to 0. Steps are
// numbered from 1.
func rateAt(step, steps, warmup int, peak float64) float64 {
	if step <= warmup {
		return peak * float64(step) / float64(warmup)
	}
	return peak * float64(steps-step+1) / float64(max(steps-warmup, 1))
}
