package serve

import (
	"math/bits"
	"time"
)

// A pace is how long steps take by their rows, as far as it was seen lately. It
// says whether guesses are worth reading: where a step waits for the weights
// some rows more cost little, where it computes they cost their share.
type pace struct {
	points [10]point // of 1, 2, 3 to 4, 5 to 8 … rows
	steps  int
}

// A point is the usual step of some number of rows.
type point struct {
	rows, took float64
	at         int // the number of the latest such step
}

const (
	paceWeight = 0.2  // of the latest step
	paceLasts  = 5000 // steps after which a point is no longer believed
	worthwhile = 1.05 // how much faster a guess must make an answer
)

// observe takes in a step.
func (p *pace) observe(rows int, took time.Duration) {
	p.steps++
	one := &p.points[min(bits.Len(uint(rows-1)), len(p.points)-1)]
	n, t := float64(rows), float64(took)
	if one.at == 0 || p.steps-one.at > paceLasts {
		*one = point{rows: n, took: t}
	}
	t = min(t, 3*one.took*max(n/one.rows, 1)) // something else held it up
	one.rows += paceWeight * (n - one.rows)
	one.took += paceWeight * (t - one.took)
	one.at = p.steps
}

// cost is what a step of so many rows should take: on the line between the
// points around it. Above the last it is taken to grow with the rows, below the
// first to be half as long for none.
func (p *pace) cost(rows float64) float64 {
	var under, over *point
	for i := range p.points {
		one := &p.points[i]
		switch {
		case one.at == 0 || p.steps-one.at > paceLasts:
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

// guesses is how many tokens of a guess are worth reading in a step that has
// some rows already, when each is right with a chance if those before it are.
func (p *pace) guesses(rows int, chance float64, most int) int {
	n, best, tokens, each := 0, worthwhile*float64(rows)/p.cost(float64(rows)), float64(rows), chance
	for k := 1; k <= most; k++ {
		tokens += each
		each *= chance
		if rate := tokens / p.cost(float64(rows+k)); rate > best {
			n, best = k, rate
		}
	}
	return n
}
