package rows

import (
	"math/bits"

	"anneal/domain"
)

// A Chooser tells of one row after the other whether it lies on a split's side.
// It chooses exactly as many as the split holds, each set of rows as likely as
// any other: algorithm S of Knuth's The Art of Computer Programming, volume 2,
// section 3.4.2, with a hash of seed and row number for the dice.
type Chooser struct {
	split  domain.Split
	row    uint64 // number of the next one
	chosen uint64
}

// NewChooser begins before the first row.
func NewChooser(split domain.Split) *Chooser { return &Chooser{split: split} }

// Next tells whether the next row lies on the side. Beyond the rows that the
// split is of, none is held.
func (c *Chooser) Next() bool {
	held, of := uint64(c.split.Held), uint64(c.split.Of)
	hold := false
	if c.row < of {
		// dice/2^64 · rows left < rows still wanted
		dice, _ := bits.Mul64(mix(uint64(c.split.Seed), c.row), of-c.row)
		hold = dice < held-c.chosen
	}
	c.row++
	if hold {
		c.chosen++
	}
	return hold != c.split.Rest
}

// mix is the output function of SplitMix64 (Steele, Lea and Flood, 2014) at the
// row's place in the stream of the seed.
func mix(seed, row uint64) uint64 {
	z := seed*0xd1342543de82ef95 + (row+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
