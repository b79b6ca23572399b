package serve

import (
	"math/bits"
	"time"
)

// A costModel estimates the duration of a step from its number of rows. From the estimates it
// decides how many draft tokens are worth verifying: in a memory-bound step, further rows take
// little time; in a compute-bound step, each further row takes as long as the first.
type costModel struct {
	points [10]costPoint // moving averages for steps of 1, 2, 3 to 4, 5 to 8 … rows
	steps  int
}

// A costPoint has the moving averages of the numbers of rows, and of the durations (took), of steps
// with similar numbers of rows.
type costPoint struct {
	rows, took float64
	at         int // number of the latest step that updated the averages
}

const (
	costWeight = 0.2  // weight of the latest step in the moving averages
	costMaxAge = 5000 // number of steps after which a point that was not updated is ignored
	minSpeedup = 1.05 // minimum speedup for which draft tokens are verified
)

// observe records the duration of a step with a number of rows.
func (p *costModel) observe(rows int, took time.Duration) {
	p.steps++
	one := &p.points[min(bits.Len(uint(rows-1)), len(p.points)-1)]
	n, t := float64(rows), float64(took)
	if one.at == 0 || p.steps-one.at > costMaxAge {
		*one = costPoint{rows: n, took: t}
	}
	t = min(t, 3*one.took*max(n/one.rows, 1)) // limits the effect of outliers
	one.rows += costWeight * (n - one.rows)
	one.took += costWeight * (t - one.took)
	one.at = p.steps
}

// cost estimates the duration of a step by linear interpolation between the two nearest points.
// Above the last point, the duration is proportional to the rows. Below the first point, it falls
// linearly to half of that point's duration at zero rows.
func (p *costModel) cost(rows float64) float64 {
	var under, over *costPoint
	for i := range p.points {
		one := &p.points[i]
		switch {
		case one.at == 0 || p.steps-one.at > costMaxAge:
		case one.rows <= rows:
			under = one
		case over == nil:
			over = one
		}
	}
	switch {
	case under == nil && over == nil:
		return rows
	case over == nil:
		return under.took * rows / under.rows
	case under == nil:
		return over.took * (1 + rows/over.rows) / 2
	}
	return under.took + (over.took-under.took)*(rows-under.rows)/(over.rows-under.rows)
}

// draftTokens returns the number of draft tokens, at most limit, with which a step generates the
// most tokens per second. It returns 0 unless the rate rises by minSpeedup. rows is the number of
// rows of the step without draft tokens. chance is the probability that a draft token is accepted
// if all draft tokens before it were.
func (p *costModel) draftTokens(rows int, chance float64, limit int) int {
	return p.draftTokensAt(rows, chance, limit, 0)
}

// draftTokensAt is like draftTokens for a draft model. perToken is the time to draft one token.
func (p *costModel) draftTokensAt(rows int, chance float64, limit int, perToken time.Duration) int {
	n, best, tokens, likely := 0, minSpeedup*float64(rows)/p.cost(float64(rows)), float64(rows), chance
	for k := 1; k <= limit; k++ {
		tokens += likely
		likely *= chance
		if rate := tokens / (p.cost(float64(rows+k)) + float64(k)*float64(perToken)); rate > best {
			n, best = k, rate
		}
	}
	return n
}
