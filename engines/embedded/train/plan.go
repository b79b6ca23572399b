package train

import "math/rand/v2"

// A plan says which samples each optimiser step takes. It follows from the
// samples, the settings and the seed alone, so a resumed training needs only
// the number of steps it has done.
type plan struct {
	samples    []*Sample
	epochs     int
	maxTokens  int // of a gradient batch
	maxSamples int // of a gradient batch
	accumulate int // gradient batches of one step
	seed       uint64

	steps  int   // in all
	starts []int // first step of each epoch
	epoch  int   // of batches
	cached [][]*Sample
}

func newPlan(samples []*Sample, epochs, maxTokens, maxSamples, accumulate int, seed uint64) *plan {
	p := &plan{samples: samples, epochs: epochs, maxTokens: maxTokens, maxSamples: maxSamples, accumulate: max(accumulate, 1), seed: seed, epoch: -1}
	for e := range epochs {
		p.starts = append(p.starts, p.steps)
		p.steps += len(p.batches(e))
	}
	return p
}

// batch is what step takes; steps count from 0.
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

// progress is how many epochs are done after so many steps.
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

// batches are the steps of one epoch: the samples in an order of its own, cut
// into gradient batches, and these joined for accumulation.
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

// carve takes a tenth of the rows, at least one and at most 256, out of
// training for evaluation.
func carve[T any](rows []T, seed uint64) (train, held []T) {
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

// rateAt is the learning rate of a step, counted from 1: it rises in a line
// over the warm-up and falls in a line to nothing after it.
func rateAt(step, steps, warmup int, peak float64) float64 {
	if step <= warmup {
		return peak * float64(step) / float64(warmup)
	}
	return peak * float64(steps-step+1) / float64(max(steps-warmup, 1))
}
