package rows

import (
	"math/bits"

	"anneal/domain"
)

// A Chooser decides for each row of a dataset whether it is in the part that the split selects. It
// holds out exactly split.Held rows, and every set of that many rows has equal probability. It uses
// algorithm S of Knuth's The Art of Computer Programming, volume 2, section 3.4.2, with a hash of
// seed and row number as the random number.
type Chooser struct {
	split  domain.Split
	row    uint64 // number of the next row of the dataset, from 0
	chosen uint64
}

// NewChooser returns a chooser whose first row is the first row of the dataset.
func NewChooser(split domain.Split) *Chooser { return &Chooser{split: split} }

// Next reports whether the next row is in the part that the split selects. Rows after the first
// split.Of rows are not held out.
func (c *Chooser) Next() bool {
	held, of := uint64(c.split.Held), uint64(c.split.Of)
	hold := false
	if c.row < of {
		// Hold out the row if random/2^64 · rows left < rows still to be held out.
		random, _ := bits.Mul64(mix(uint64(c.split.Seed), c.row), of-c.row)
		hold = random < held-c.chosen
	}
	c.row++
	if hold {
		c.chosen++
	}
	return hold != c.split.Rest
}

// mix returns the pseudorandom number of a row: output number row of SplitMix64 (Steele, Lea and
// Flood, 2014) for the seed.
func mix(seed, row uint64) uint64 {
	z := seed*0xd1342543de82ef95 + (row+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
