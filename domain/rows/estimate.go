package rows

import (
	"math"

	"anneal/domain"
)

// Only some texts are tokenized, so that the time to validate a large dataset does not depend on
// the tokenizer.
const (
	countedFirst = 1 << 20 // bytes of text at the beginning of a dataset that are tokenized
	countedEvery = 64      // after countedFirst bytes, one in countedEvery rows is tokenized
)

// An estimate is the number of tokens of a dataset, extrapolated from the tokens per byte of some
// rows.
type estimate struct {
	bytes  int64
	tokens int64
	count  func(text string)
}

// counter returns the function that adds a text of a row to the estimate; nil if the row is not
// tokenized. count returns the number of tokens of a text; row is the number of the row.
func (e *estimate) counter(count func(string) int, row domain.Count) func(text string) {
	if count == nil || e.bytes >= countedFirst && row%countedEvery != 0 {
		return nil
	}
	if e.count == nil {
		e.count = func(text string) {
			e.bytes += int64(len(text))
			e.tokens += int64(count(text))
		}
	}
	return e.count
}

// of returns the estimated number of tokens in a text of this many bytes, rounded up.
func (e *estimate) of(bytes int64) int64 {
	if e.bytes == 0 {
		return (bytes + 3) / 4
	}
	return int64(math.Ceil(float64(bytes) * (float64(e.tokens) / float64(e.bytes))))
}
